"""Messages of AMQP 1.0 as they are, sent by the client library to a matrix entry."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from proton import Message
from proton.utils import BlockingConnection

from tests.support.entries import LiveEntry

__all__ = ["send"]


def send(entry: LiveEntry, *messages: Message | bytes) -> None:
    """Send messages, or encoded ones, as they are."""
    url = urlsplit(entry.url())
    connection = BlockingConnection(
        f"amqp://127.0.0.1:{url.port}", user=url.username, password=url.password, allow_insecure_mechs=True, timeout=30
    )
    try:
        sender = connection.create_sender(entry.amqp10_address())
        for message in messages:
            sender.send(_Encoded(message) if isinstance(message, bytes) else message)
    finally:
        connection.close()


class _Encoded:
    """Encoded bytes that a sender takes in place of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def send(self, sender: Any, tag: str | None = None) -> Any:
        delivery = sender.delivery(tag or sender.delivery_tag())
        sender.stream(self._data)
        sender.advance()
        return delivery
