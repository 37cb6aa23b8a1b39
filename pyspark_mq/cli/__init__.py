"""The command ``pyspark-mq``. It reads, repairs and releases checkpoints, and examines queues and installations.

The command does not start Spark.
"""
