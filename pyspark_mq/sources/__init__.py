"""Receives messages: plans epochs over the queues of a query, and keeps the connections to their broker.

The modules of this folder do not use Spark.
"""
