"""The command ``pyspark-mq``, without Spark: reads, repairs and releases checkpoints, examines queues and set-ups."""
