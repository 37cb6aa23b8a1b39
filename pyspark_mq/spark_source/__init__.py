"""The Spark side: data source, reader, options, schema, offsets. The only folder that imports pyspark."""
