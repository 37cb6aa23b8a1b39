"""Classes that the modules of the sink share: the settings of a write, a message, and its destination."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pyspark_mq.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "COPY_ID", "DROP_ROWS", "MQ_ID", "NO_DESTINATION", "NO_MESSAGE", "TEXT_TYPE", "Destination", "Message",
    "OnUnwritable", "Remarks", "SinkSettings", "ttl_ms",
]  # fmt: skip

#: Advice at the end of errors about a row.
DROP_ROWS = "To drop such rows, set option 'onUnwritableRow' to 'drop'"
#: Content type of a text on RabbitMQ, if the row has none. Without it JMS clients would get a bytes message instead of
#: a text message, because RabbitMQ's messages do not have these two kinds.
TEXT_TYPE = "text/plain; charset=utf-8"
#: Property that has a message's ID on both ActiveMQ brokers, because not all their protocols let a client set the
#: broker's own ID header.
MQ_ID = "mq_id"
#: Property by which Artemis recognises copies of a message (Artemis' manual, "Duplicate Message Detection").
COPY_ID = "_AMQ_DUPL_ID"


class Destination(NamedTuple):
    """The destination of a message.

    Attributes:
        kind: `queue`, `topic`, `temp-queue`, `temp-topic` or `exchange`.
        name: name of the queue, topic or exchange.
        key: the routing key, if the destination is an exchange; otherwise empty.
    """

    kind: str
    name: str
    key: str = ""

    def __str__(self) -> str:
        routed = f" with routing key '{self.key}'" if self.kind == "exchange" else ""
        return f"{self.kind} '{self.name}'{routed}"


class Message(NamedTuple):
    """A message that was made from a row. The message does not have the fields that are None.

    Attributes:
        id: the value of column `messageId`, or a stable ID that was created for the row.
        is_text: True for a text message, whose body is UTF-8; False for a bytes message.
        timestamp_us, expiration_us: microseconds since 1970.
        properties: names and values, without properties that brokers add.
        copy_id: ID of the row within its write, by which Artemis recognises a copy of this message. Empty if `id` was
            created for the row: Artemis then recognises a copy by `id`.
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


#: Reasons for dropping rows, as the log states them: keys of :attr:`Remarks.dropped`.
NO_MESSAGE, NO_DESTINATION = "that cannot be messages", "whose destination is not there or refused"


class OnUnwritable(Enum):
    """Values of option `onUnwritableRow`: what happens to a row that cannot be written."""

    FAIL = "fail"
    DROP = "drop"


@dataclass
class Remarks:
    """Findings of the tasks of a successful write, which the driver logs as warnings.

    Attributes:
        dropped: reason for dropping rows (:data:`NO_MESSAGE`, :data:`NO_DESTINATION`) -> number of rows.
        first: the error for the row that was dropped first.
        properties: names of properties that were left out of messages, because the broker would act on them.
        reading: the warning that :meth:`.Publisher.reading` returned; empty if there is none.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    first: str = ""
    properties: set[str] = field(default_factory=set)
    reading: str = ""

    def drop(self, why: str, text: str, count: int = 1) -> None:
        """Count rows that are dropped.

        Args:
            why: the reason: a key of `dropped`.
            text: text of the error that is raised for such a row if `onUnwritableRow` is `fail`.
            count: number of these rows.
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
    """The options of a write, parsed into typed values. Spark sends them to the tasks, including the password.

    Attributes:
        queue, topic, exchange, routing_key: where all rows go; each is None if the option is not set. Without `queue`,
            `topic` and `exchange`, columns of the rows name the destinations.
        send_timeout_s: longest wait for a confirmation. While the broker blocks the connection, the wait is longer.
        write_id: value of option `writeId`: a rerun of a write with the same name gives rows the same IDs. None to
            give each write a random name.
        on_unwritable: what happens to rows that the protocol cannot carry, or whose destination does not exist.
        broker_properties: properties that are written although the broker acts on them (option `brokerProperties`).
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
        """Whether rows that cannot be converted into messages are dropped."""
        return self.on_unwritable is OnUnwritable.DROP

    @property
    def drops_destinations(self) -> bool:
        """Whether rows are dropped if the destination that they name does not exist or is refused."""
        return self.drops and self.destination is None

    @property
    def destination(self) -> Destination | None:
        """The destination of all rows, if options name it; None if columns of the rows name the destinations."""
        if self.queue is not None:
            return Destination("queue", self.queue)
        if self.topic is not None:
            return Destination("topic", self.topic)
        if self.exchange is not None:
            return Destination("exchange", self.exchange, self.routing_key or "")
        return None


def ttl_ms(expiration_us: int) -> int:
    """Return the milliseconds from now until the expiration; at least 1.

    So a message that has expired already is written nevertheless, and expires at once.
    """
    return max(1, expiration_us // 1000 - time.time_ns() // 1_000_000)
