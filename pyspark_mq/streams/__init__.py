"""RabbitMQ streams: logs that are read by offset, in parallel, without acknowledgements."""
