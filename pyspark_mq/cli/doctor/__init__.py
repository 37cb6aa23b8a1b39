"""``pyspark-mq doctor``: what is in the way of acknowledging late, looked for before a query meets it."""
