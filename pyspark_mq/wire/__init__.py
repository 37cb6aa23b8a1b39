"""Connects to brokers, for reading and for writing: URLs, login, TLS, heartbeats, and what brokers say."""

from pyspark_mq.logs import escape_log_lines

escape_log_lines()
