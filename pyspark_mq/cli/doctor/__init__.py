"""``pyspark-mq doctor``: find obstacles to late acknowledgement before a query meets them."""
