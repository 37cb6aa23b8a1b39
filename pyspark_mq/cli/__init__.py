"""The command ``pyspark-mq``: looks into checkpoints and queues, without Spark and without taking anything."""
