"""The Spark side: data source, readers, writers, options, schema, offsets. Only this folder imports pyspark."""
