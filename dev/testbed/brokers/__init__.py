"""Private brokers that can be killed and started again: local processes, or containers."""
