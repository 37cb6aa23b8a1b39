"""Reads RabbitMQ streams, which are logs: they are read by offset, by parallel tasks, without acknowledgements."""
