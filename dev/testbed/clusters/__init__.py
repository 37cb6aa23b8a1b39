"""Several private brokers that serve one queue."""
