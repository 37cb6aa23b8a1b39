"""Writing to queues: rows become messages with stable IDs, and the broker confirms each message."""
