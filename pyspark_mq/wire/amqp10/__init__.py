"""Connects over AMQP 1.0, with python-qpid-proton."""
