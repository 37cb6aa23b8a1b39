"""Receiving without Spark: epochs over the queues of a query, and the connections to their broker."""

from pyspark_mq.logs import escape_log_lines

escape_log_lines()
