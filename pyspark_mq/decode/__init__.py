"""Decoders that turn batches of received deliveries into columns. They use no sockets, sessions or clocks."""
