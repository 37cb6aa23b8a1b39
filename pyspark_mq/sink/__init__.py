"""Writing to queues: rows become messages with stable IDs, and a broker confirms each of them."""
