"""A peer over AMQP 1.0 that answers as no broker may: the client library's engine on the other side of a socket."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from proton import Connection, Delivery, Endpoint, Message, Transport

__all__ = ["Peer", "peer"]

_READ_BYTES = 1 << 16
_TURN_S = 0.02


class Peer:
    """Lets anybody in and hands out messages, in as many connections as there come.

    Args:
        bodies: of the messages that each connection is handed.
        answer: called with each delivery that the client has accepted; its tag is its body.
        prepare: called with each connection before it is opened.
        released: bodies of the messages that are taken back as soon as they were handed out.

    Attributes:
        accepted: bodies of the messages that were accepted, by connection.
    """

    def __init__(
        self,
        bodies: Sequence[str] = (),
        answer: Callable[[Delivery], None] = lambda delivery: delivery.settle(),
        prepare: Callable[[Connection], None] = lambda connection: None,  # noqa: ARG005
        released: Sequence[str] = (),
    ) -> None:
        self._bodies, self._answer, self._prepare, self._released = bodies, answer, prepare, released
        self.accepted: list[list[str]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        connection, transport = Connection(), Transport(Transport.SERVER)
        transport.sasl().allowed_mechs("ANONYMOUS")
        connection.container = "peer"
        self._prepare(connection)
        transport.bind(connection)
        accepted: list[str] = []
        self.accepted.append(accepted)
        sent: dict[Delivery, str] = {}
        left = list(self._bodies)
        with suppress(OSError), client:
            while True:
                while (pending := transport.pending()) > 0:
                    data = transport.peek(pending) or b""
                    client.sendall(data)
                    transport.pop(len(data))
                if transport.capacity() < 0:
                    return
                if select.select([client], [], [], _TURN_S)[0]:
                    data = client.recv(min(_READ_BYTES, transport.capacity()))
                    if not data:
                        return
                    transport.push(data)
                self._turn(connection, left, sent, accepted)

    def _turn(self, connection: Connection, left: list[str], sent: dict[Delivery, str], accepted: list[str]) -> None:
        if connection.state & Endpoint.REMOTE_CLOSED:
            connection.close()
            return
        if connection.state & Endpoint.LOCAL_UNINIT and connection.state & Endpoint.REMOTE_ACTIVE:
            connection.open()
        session = connection.session_head(Endpoint.LOCAL_UNINIT | Endpoint.REMOTE_ACTIVE)
        if session is not None:
            session.open()
        # What was accepted is answered before a link that was opened behind it.
        for delivery in [one for one in sent if one.remote_state == Delivery.ACCEPTED]:
            accepted.append(sent.pop(delivery))
            self._answer(delivery)
        link: Any = connection.link_head(Endpoint.LOCAL_UNINIT | Endpoint.REMOTE_ACTIVE)
        if link is not None:
            link.source.copy(link.remote_source)
            link.target.copy(link.remote_target)
            link.open()
        link = connection.link_head(Endpoint.LOCAL_ACTIVE | Endpoint.REMOTE_ACTIVE)
        while link is not None:
            while left and link.is_sender and link.credit:
                body = left.pop(0)
                delivery = link.delivery(body)
                link.stream(Message(id=body, body=body).encode())
                link.advance()
                if body in self._released:
                    delivery.update(Delivery.RELEASED)
                    delivery.settle()
                else:
                    sent[delivery] = body
            link = link.next(Endpoint.LOCAL_ACTIVE | Endpoint.REMOTE_ACTIVE)

    def url(self) -> str:
        """Where it listens."""
        return f"amqp://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def peer(*args: Any, **kwargs: Any) -> Iterator[Peer]:
    """One while the block runs."""
    opened = Peer(*args, **kwargs)
    try:
        yield opened
    finally:
        opened.close()
