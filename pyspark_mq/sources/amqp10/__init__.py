"""AMQP 1.0 by python-qpid-proton."""
