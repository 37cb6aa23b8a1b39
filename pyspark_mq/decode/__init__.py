"""Decoders that turn batches of received deliveries into the columns of rows. Sessions receive the deliveries."""
