"""From bytes to columns: decoders of received deliveries, in batches. No sockets, sessions or clocks."""
