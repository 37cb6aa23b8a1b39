"""The columns of rows that are read from queues and streams, and of rows that are written.

This module has the type and the description of each column. The decoders take the values from messages.

To add a column, add it here, and add a function under its name to each decoder: to `columns` of :class:`.Amqp091Batch`
and :class:`.StompBatch`, and to `DECODERS` in :mod:`.amqp10_message`. If AMQP 1.0 transfers the value as an application
property, add the column to `OF_PROPERTIES` instead of `DECODERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

__all__ = ["COLUMNS", "QUEUES", "STREAMS", "TIMESTAMP", "MessageColumn", "WrittenColumn"]

TIMESTAMP = pa.timestamp("us", tz="UTC")
_TEXT = pa.string()
_MAP = pa.map_(pa.string(), pa.string())
#: The members of :attr:`MessageColumn.where`: rows that are read from queues, and rows that are read from streams.
QUEUES, STREAMS = "queues", "streams"
_READ = frozenset({QUEUES, STREAMS})


class WrittenColumn(NamedTuple):
    """The use of a column by a write.

    Attributes:
        code: number that stands for the column in the digest from which a row's ID is made; 0 if the digest does not
            include the column. Codes never change, because the IDs of equal rows would change, too.
        kinds: Spark's names of the accepted types.
        text: what the column means in a message, as Markdown for docs/write-to-queues.md. Empty if it means the same
            as in a message that is read.
    """

    code: int
    kinds: tuple[str, ...]
    text: str = ""


class MessageColumn(NamedTuple):
    """The type, the description and the use of a column.

    Attributes:
        kind: Arrow type of the column.
        text: description of the column in Markdown, from which `make docs` writes the table in docs/options.md. Empty
            for a column that only streams or only writes have.
        written: what the column means in a write. None if a write accepts the column but ignores it, because it
            describes a delivery, or a position in a stream.
        where: the sources that have the column: :data:`QUEUES`, :data:`STREAMS`, or both; empty if only writes have it.
        asked_for: whether the column is present only if a schema names it or `includeMetadata` is set.
        content: whether a producer sets the value, so that it is part of a message's content. The content identifies a
            message without an ID. The body and the properties are part of it, too.
        decoded: whether the value comes from a message's bytes, and not from its queue or its place in a stream.
    """

    kind: pa.DataType
    text: str = ""
    written: WrittenColumn | None = None
    where: frozenset[str] = _READ
    asked_for: bool = False
    content: bool = False
    decoded: bool = True


def _text(text: str, code: int, written: str = "", *, asked_for: bool = False) -> MessageColumn:
    """Return a column of text that a producer sets."""
    return MessageColumn(_TEXT, text, WrittenColumn(code, ("string",), written), asked_for=asked_for, content=True)


#: All columns, in the order of the documentation.
COLUMNS: Mapping[str, MessageColumn] = MappingProxyType({
    "messageId": MessageColumn(
        _TEXT,
        "the ID that `messageIdFrom` chooses, in full. Null if the message has no ID: do not merge by this column "
        "unless all messages have an ID",
        WrittenColumn(0, ("string",), "the message's ID; a row without an ID gets a [stable ID](#ids)"),
    ),
    "body": MessageColumn(
        pa.binary(),
        "the payload",
        WrittenColumn(1, ("string", "binary"), "a string is sent as a text message, binary as a bytes message. The "
                      "column is required and must not be null"),
    ),
    "destination": MessageColumn(
        _TEXT,
        "the `queue` or `topic` that the message was read from",
        decoded=False,
    ),
    "queue": MessageColumn(
        _TEXT,
        written=WrittenColumn(0, ("string",), "the queue for this row, if no option names a destination. On ActiveMQ "
                              "Classic and Artemis also `topic://name`, and the [`replyTo`](request-reply.md) of a row "
                              "that was read"),
        where=frozenset(),
        decoded=False,
    ),
    "properties": MessageColumn(
        _MAP,
        "the message's headers or application properties as text; an empty map if there are none",
        WrittenColumn(14, ("map<string,string>",)),
    ),
    "correlationId": _text("an ID by which producers match replies with requests", 3),
    "replyTo": _text("[where to send the reply](request-reply.md)", 4),
    "contentType": _text(
        "MIME type of the body", 5,
        "over AMQP 1.0 on RabbitMQ and Artemis, bytes with `text/plain` become a text for JMS clients",
    ),
    "type": _text("the producer's name for this kind of message", 7, "sent as the subject over AMQP 1.0"),
    "priority": MessageColumn(
        pa.int32(),
        "the priority by which the broker sorts",
        WrittenColumn(8, ("int", "bigint", "smallint", "tinyint"), "0 to 255; on ActiveMQ Classic and Artemis 0 to 9"),
        content=True,
    ),
    "timestamp": MessageColumn(
        TIMESTAMP,
        "when the message was created; null if absent or out of range",
        WrittenColumn(9, ("timestamp",), "sent in whole seconds over AMQP 0-9-1"),
        content=True,
    ),
    "expiration": MessageColumn(
        TIMESTAMP,
        "when the message expires; null if only the queue or a policy sets an expiration, or none is set",
        WrittenColumn(0, ("timestamp",), "sent as a time to live"),
    ),
    "redelivered": MessageColumn(
        pa.bool_(),
        "the broker's flag that this delivery is a redelivery. Brokers sometimes omit it",
        where=frozenset({QUEUES}),
    ),
    "deliveryCount": MessageColumn(
        pa.int32(),
        "1 at the first delivery; null if the broker does not count deliveries",
        where=frozenset({QUEUES}),
    ),
    "routingKey": MessageColumn(
        _TEXT,
        "the message's routing key",
        WrittenColumn(0, ("string",), "RabbitMQ only: the routing key for this row, unless an option sets one"),
        asked_for=True,
    ),
    "exchange": MessageColumn(
        _TEXT,
        "the message's exchange; empty for the default exchange",
        WrittenColumn(0, ("string",), "RabbitMQ only: the exchange for this row, if no option names a destination"),
        asked_for=True,
    ),
    "userId": MessageColumn(
        _TEXT,
        "the user that published the message, if the broker checks it",
        asked_for=True,
        content=True,
    ),
    "appId": _text("name of the publishing application", 10, asked_for=True),
    "contentEncoding": _text(
        "how the body is encoded, for example `gzip`; it is not decoded", 6,
        "the body itself is sent unchanged", asked_for=True,
    ),
    "persistent": MessageColumn(
        pa.bool_(),
        "whether the message should survive a broker restart",
        WrittenColumn(13, ("boolean",), "if false, a broker restart may lose the message. Null means true"),
        asked_for=True,
        content=True,
    ),
    "groupId": _text("the message's group", 11, asked_for=True),
    "groupSequence": MessageColumn(
        pa.int64(),
        "the message's number within its group",
        WrittenColumn(12, ("bigint", "int")),
        asked_for=True,
        content=True,
    ),
    "partition": MessageColumn(_TEXT, where=frozenset({STREAMS}), decoded=False),
    "streamOffset": MessageColumn(pa.int64(), where=frozenset({STREAMS}), decoded=False),
    "chunkTimestamp": MessageColumn(TIMESTAMP, where=frozenset({STREAMS}), decoded=False),
})  # fmt: skip
