"""Writes rows to queues: each row becomes a message with a stable ID, and the broker confirms each message."""
