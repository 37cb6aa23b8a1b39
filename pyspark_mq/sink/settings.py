"""Settings of a write, and the destination of a message."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_mq.sources.endpoint import Endpoint

__all__ = ["MQ_ID", "Destination", "Message", "SinkSettings", "ttl_ms"]

#: Property that carries the ID on both ActiveMQ brokers. Their own header cannot carry an ID over every protocol.
MQ_ID = "mq_id"


class Destination(NamedTuple):
    """Destination of a message.

    Attributes:
        kind: `queue`, `topic`, `temp-queue`, `temp-topic` or `exchange`.
        key: routing key, for an exchange.
    """

    kind: str
    name: str
    key: str = ""

    def __str__(self) -> str:
        routed = f" with routing key '{self.key}'" if self.kind == "exchange" else ""
        return f"{self.kind} '{self.name}'{routed}"


class Message(NamedTuple):
    """One message, from a row. Fields that are None are not written.

    Attributes:
        is_text: True for a text message, whose body is UTF-8; False for a bytes message.
        timestamp_us, expiration_us: microseconds since 1970.
        properties: names and values, without properties that brokers add.
    """

    destination: Destination
    id: str
    body: bytes
    is_text: bool
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    type: str | None = None
    priority: int | None = None
    timestamp_us: int | None = None
    expiration_us: int | None = None
    app_id: str | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    persistent: bool = True
    properties: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The typed options of a write. They are sent to the tasks, including the password.

    Attributes:
        queue, topic, exchange, routing_key: where all rows go. None if columns of the rows decide.
        send_timeout_s: longest wait for a confirmation, unless the broker reports that it blocks.
        write_id: name of a write that may be rerun with the same IDs; None to give each write an ID of its own.
    """

    endpoint: Endpoint
    queue: str | None = None
    topic: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    send_timeout_s: float = 120.0
    write_id: str | None = None

    @property
    def destination(self) -> Destination | None:
        """The destination of all rows, if options name it; None if columns of the rows decide."""
        if self.queue is not None:
            return Destination("queue", self.queue)
        if self.topic is not None:
            return Destination("topic", self.topic)
        if self.exchange is not None:
            return Destination("exchange", self.exchange, self.routing_key or "")
        return None


def ttl_ms(expiration_us: int) -> int:
    """Return the milliseconds until an expiration, at least 1. An expired message is written, and expires at once."""
    return max(1, expiration_us // 1000 - time.time_ns() // 1_000_000)
