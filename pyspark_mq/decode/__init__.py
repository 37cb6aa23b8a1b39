"""From bytes to columns: decoders of received deliveries, in batches. No socket, no session, no clock."""
