"""Connects over AMQP 0-9-1, with pika."""
