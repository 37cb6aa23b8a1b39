"""``pyspark-mq doctor``: finds problems of a machine, a broker and its queues before a query runs into them."""
