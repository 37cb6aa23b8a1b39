"""Two engines of proton, to be joined in memory."""

from __future__ import annotations

from proton import Connection, Transport

__all__ = ["engines"]


def engines(frame_bytes: int) -> tuple[list[Transport], list[Connection]]:
    """Return the transports and connections of a client and of a server, opened, with frames of at most that size."""
    transports = [Transport(Transport.CLIENT), Transport(Transport.SERVER)]
    connections = [Connection(), Connection()]
    for transport, connection in zip(transports, connections, strict=True):
        transport.max_frame_size = frame_bytes
        transport.bind(connection)
        connection.open()
    return transports, connections
