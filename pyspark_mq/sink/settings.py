"""Settings of a write, and the destination of a message."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pyspark_mq.sources.endpoint import Endpoint

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "COPY_ID", "DROP_ROWS", "MQ_ID", "NO_DESTINATION", "NO_MESSAGE", "TEXT_TYPE", "Destination", "Message",
    "OnUnwritable", "Remarks", "SinkSettings", "ttl_ms",
]  # fmt: skip

#: Advice in errors about rows.
DROP_ROWS = "To drop such rows, set option 'onUnwritableRow' to 'drop'"
#: Type of a text without one on RabbitMQ, whose messages do not tell texts from bytes. JMS clients then get a text.
TEXT_TYPE = "text/plain; charset=utf-8"
#: Property that carries the ID on both ActiveMQ brokers. Their own header cannot carry an ID over every protocol.
MQ_ID = "mq_id"
#: Property by which Artemis recognises copies (Artemis' manual, "Duplicate Message Detection").
COPY_ID = "_AMQ_DUPL_ID"


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
        copy_id: ID of the row within its write, if `id` is the row's own; empty if `id` is that.
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
    copy_id: str = ""


#: Keys of :attr:`Remarks.dropped`.
NO_MESSAGE, NO_DESTINATION = "that cannot be messages", "whose destination is not there or refused"


class OnUnwritable(Enum):
    """Reactions to a row that cannot be written."""

    FAIL = "fail"
    DROP = "drop"


@dataclass
class Remarks:
    """What the log says of a write that succeeded.

    Attributes:
        dropped: how many rows cannot be messages, and how many name a destination that is not there or is refused.
        first: why the first of them was dropped.
        properties: properties that were left out of rows, because they steer the broker.
        reading: what readers find instead of the messages; empty if readers find the messages.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    first: str = ""
    properties: set[str] = field(default_factory=set)
    reading: str = ""

    def drop(self, why: str, text: str, count: int = 1) -> None:
        """Count dropped rows.

        Args:
            why: key of `dropped`.
            text: of the error that they would have raised.
        """
        self.dropped[why] += count
        self.first = self.first or text

    def __iadd__(self, other: Remarks) -> Self:
        self.dropped += other.dropped
        self.properties |= other.properties
        self.reading = self.reading or other.reading
        self.first = self.first or other.first
        return self


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The typed options of a write. They are sent to the tasks, including the password.

    Attributes:
        queue, topic, exchange, routing_key: where all rows go. None if columns of the rows decide.
        send_timeout_s: longest wait for a confirmation, unless the broker reports that it blocks.
        write_id: name of a write that may be rerun with the same IDs; None to give each write an ID of its own.
        on_unwritable: what to do with rows that the protocol cannot carry, or whose own destination is not there.
        broker_properties: properties that steer the broker and are written.
    """

    endpoint: Endpoint
    queue: str | None = None
    topic: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    send_timeout_s: float = 120.0
    write_id: str | None = None
    on_unwritable: OnUnwritable = OnUnwritable.FAIL
    broker_properties: frozenset[str] = frozenset()

    @property
    def drops(self) -> bool:
        """Whether rows that cannot be messages are dropped."""
        return self.on_unwritable is OnUnwritable.DROP

    @property
    def drops_destinations(self) -> bool:
        """Whether rows are dropped if the destination that they name is not there."""
        return self.drops and self.destination is None

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
