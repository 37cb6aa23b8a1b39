"""The command ``pyspark-mq``: reads, repairs and releases checkpoints, examines queues and set-ups. No Spark."""
