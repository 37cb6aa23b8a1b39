"""Columns of deliveries over STOMP: of a batch from its memory, of deliveries one by one from their headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_mq.brokers.base import StompDialect
from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.connections.decoder import (
    INT32_MAX,
    INT64_MAX,
    UNREADABLE_PROPERTY,
    Column,
    Decoder,
    Picked,
    Unreadable,
    column_of,
    listed,
)
from pyspark_mq.sources.connections.spans import distinct
from pyspark_mq.sources.stomp.batch import Deliveries, Message, MessageBatch, Raw
from pyspark_mq.sources.stomp.headers import UnreadableHeaders, as_text, parse

__all__ = ["StompDecoder"]

_MESSAGE_ID = IdSource("message-id")

#: The exchange of destinations that name none (RabbitMQ's documentation, "STOMP", "Destinations").
_EXCHANGES = {"queue": "", "topic": "amq.topic"}

#: Headers of MESSAGE and SEND in the specification, and those with a column of their own.
_NAMED = frozenset(
    {
        "ack", "content-length", "content-type", "correlation-id", "destination", "message-id", "priority",
        "receipt", "redelivered", "reply-to", "subscription", "timestamp", "transaction", "type",
    }
)  # fmt: skip


def _dialect(raws: Sequence[Raw]) -> StompDialect:
    """That of the broker, which is one."""
    return raws.dialect if isinstance(raws, MessageBatch) else raws[0][3]


def _messages(raws: Sequence[Raw]) -> list[Message]:
    return Deliveries.of(raws.alone if isinstance(raws, MessageBatch) else raws).messages


def _texts(raws: Sequence[Raw], name: str) -> list[str | None]:
    """A header of any name."""
    together = raws.text(name) if isinstance(raws, MessageBatch) else None
    found = [message.headers.get(name) for message in _messages(raws)] if together is None else together.to_pylist()
    return list(found)


def _column(alone: Callable[[Message], Any], together: Callable[[MessageBatch], Any]) -> Column:
    """Make a column.

    Args:
        alone: the value of a message.
        together: the column of a batch; see :func:`.column_of`.
    """
    column = column_of(lambda raws: [alone(message) for message in _messages(raws)], together)
    return lambda raws: column(raws) if raws else []


def _read(read: Callable[[Any], Any]) -> Column:
    """Make a column that is read of a message as it is of a batch."""
    return _column(read, read)


def _text_column(name: str) -> Column:
    return _read(lambda some: some.text(name))


def _properties(message: Message) -> list[tuple[str, str | None]]:
    block, headers, dialect = message
    row: list[tuple[str, str | None]] = (
        [(UNREADABLE_PROPERTY, block.error)] if isinstance(block, UnreadableHeaders) else []
    )
    for name, found in headers.items():
        if not (name in _NAMED or name in dialect.internal_headers or name.startswith(dialect.internal_prefixes)):
            row.append((str(as_text(name)), as_text(found)))
    return row


def _properties_of(batch: MessageBatch) -> Any:
    return batch.others(_NAMED | batch.dialect.internal_headers, batch.dialect.internal_prefixes)


def _timestamp_us(some: Any) -> Any:
    return some.number("timestamp", INT64_MAX, some.dialect.timestamp_us)


def _expiration_us(message: Message) -> int | None:
    expires_header = message.dialect.expires_header
    if expires_header:
        return message.number(expires_header, INT64_MAX, 1000) or None
    # A time to live in milliseconds, counted from publishing, as in AMQP 0-9-1.
    published_us, lives_us = _timestamp_us(message), message.number("expiration", INT64_MAX, 1000)
    if published_us is None or lives_us is None:
        return None
    moment_us: int = published_us + lives_us
    return moment_us if moment_us <= INT64_MAX else None


def _expirations_of(batch: MessageBatch) -> Any:
    expires_header = batch.dialect.expires_header
    if not expires_header:
        return None if {"expiration", "timestamp"} <= batch.frames.fields.keys() else batch.nothing()
    moments = batch.number(expires_header, INT64_MAX, 1000)
    return None if moments is None else pc.if_else(pc.equal(moments, 0), None, moments)


def _redelivered(some: Any) -> Any:
    return some.has("redelivered", "true")


def _persistent(message: Message) -> bool | None:
    # Without it a message is not; of one whose headers cannot be read it may be among them.
    is_unknown = isinstance(message.block, UnreadableHeaders) and "persistent" not in message.headers
    return None if is_unknown else message.has("persistent", "true")


def _delivery_count(message: Message) -> int | None:
    count_header = message.dialect.count_header
    if not count_header:
        return None
    before = message.number(count_header, INT32_MAX - 1)
    if before is not None:
        return before + 1
    return None if _redelivered(message) else 1


def _delivery_counts_of(batch: MessageBatch) -> Any:
    if not batch.dialect.count_header:
        return batch.nothing()
    counts = batch.number(batch.dialect.count_header, INT32_MAX - 1)
    if counts is None:
        return None
    uncounted = pc.if_else(_redelivered(batch), pa.scalar(None, pa.int64()), 1)
    return pc.coalesce(pc.add(counts, 1), uncounted)


def _routing_column(part: int) -> Column:
    """A column of exchanges, or of routing keys, as `destination` has them.

    RabbitMQ writes them in `rabbit_stomp_util:format_destination`.
    """

    def of_batch(batch: MessageBatch) -> Picked | None:
        if not batch.dialect.routed:
            return batch.nothing()
        found = batch.text("destination")
        if found is None:
            return None
        destinations, rows = distinct(found)
        return Picked([_routing(where)[part] for where in destinations], rows)

    def of_message(message: Message) -> str | None:
        return _routing(message.headers.get("destination"))[part] if message.dialect.routed else None

    return _column(of_message, of_batch)


def _routing(destination: str | None) -> tuple[str | None, str | None]:
    kind, _, rest = (destination or "").removeprefix("/").partition("/")
    written = rest.encode("utf-8", "surrogateescape").split(b"/")
    names = [unquote_to_bytes(name).decode("utf-8", "backslashreplace") for name in written]
    if kind == "exchange" and len(names) <= 2:
        return names[0], names[1] if len(names) > 1 else ""
    if kind in _EXCHANGES and len(names) == 1:
        return _EXCHANGES[kind], names[0]
    return None, None


def _first_of(names: str, read: Callable[[Any, str], Any] = lambda some, name: some.text(name)) -> Column:
    """Make a column of the first of several headers that has a value.

    Args:
        names: what the dialect calls them.
        read: a header of a message, or of a batch; otherwise it is a text.
    """

    def of_message(message: Message) -> Any:
        values = (read(message, name) for name in getattr(message.dialect, names))
        return next((value for value in values if value is not None), None)

    def of_batch(batch: MessageBatch) -> Any:
        columns = [read(batch, name) for name in getattr(batch.dialect, names) if name in batch.frames.fields]
        if not columns:
            return batch.nothing()
        return None if any(column is None for column in columns) else pc.coalesce(*columns)

    return _column(of_message, of_batch)


class StompDecoder(Decoder):
    """Columns of :data:`~pyspark_mq.sources.stomp.batch.Raw`, all from one broker."""

    def prepared(self, raws: Sequence[Raw]) -> Sequence[Raw]:
        return raws if isinstance(raws, MessageBatch) else Deliveries.of(raws)

    def body(self, raw: Raw) -> bytes:
        """The body as it came; a text in UTF-8.

        Of JMS messages, STOMP carries texts and bytes. ActiveMQ Classic sends the others with an empty
        body; Artemis sends a MapMessage in its own encoding, and a StreamMessage not at all.
        """
        return raw[2]

    def size(self, raw: Raw) -> int:
        return len(raw[1]) + len(raw[2])

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        """The broker's ID where it gives one, or the producer's; None where a property hides the broker's."""
        if not raws:
            return []
        dialect = _dialect(raws)
        name = {"message-id": dialect.id_header, "correlation-id": "correlation-id"}.get(source.kind, source.name)
        ids = [value if value is None or value.isascii() else _id(value) for value in _texts(raws, name)]
        if source.kind != "message-id":
            return ids
        if dialect.own_id is not None:
            own = dialect.own_id.search
            return [value if isinstance(value, str) and own(value) else None for value in ids]
        if dialect.id_separator:
            return [value.rpartition(dialect.id_separator)[2] if isinstance(value, str) else value for value in ids]
        return ids

    def given(self, raws: Sequence[Raw]) -> list[object]:
        """The producer's ID, where the broker has a header for it besides its own; and the time as it is written."""
        is_the_brokers = not raws or _dialect(raws).id_header == "message-id"
        ids = [None] * len(raws) if is_the_brokers else self.ids(raws, _MESSAGE_ID)
        return [*zip(ids, _texts(raws, "timestamp"), strict=True)]

    def unmarked(self, raws: Sequence[Raw]) -> list[bool]:
        again, deaths = listed(self.columns["redelivered"](raws)), listed(_text_column("x-death")(raws))
        return [not one and death is None for one, death in zip(again, deaths, strict=True)]

    def hidden(self, raws: Sequence[Raw]) -> list[str]:
        if not raws or _dialect(raws).own_id is None:
            return []
        names = _texts(raws, _dialect(raws).id_header)
        keys = self.ids(raws, _MESSAGE_ID)
        return [str(as_text(name)) for name, key in zip(names, keys, strict=True) if key is None]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        if isinstance(raws, MessageBatch):
            return []
        return [_unreadable(raw, raw[1]) for raw in raws if type(raw[1]) is UnreadableHeaders]

    passing = Decoder.passing | {"expiration", "expires", "original-expiration"}
    columns: ClassVar[Mapping[str, Column]] = MappingProxyType(
        {
            "properties": _column(_properties, _properties_of),
            "correlationId": _text_column("correlation-id"),
            "replyTo": _text_column("reply-to"),
            "contentType": _text_column("content-type"),
            "type": _text_column("type"),
            "priority": _read(lambda some: some.number("priority", INT32_MAX)),
            "timestamp": _read(_timestamp_us),
            "expiration": _column(_expiration_us, _expirations_of),
            "redelivered": _read(_redelivered),
            "deliveryCount": _column(_delivery_count, _delivery_counts_of),
            "routingKey": _routing_column(1),
            "exchange": _routing_column(0),
            "userId": _first_of("user_id"),
            "appId": _first_of("app_id"),
            "contentEncoding": _first_of("content_encoding"),
            "persistent": _column(_persistent, lambda batch: batch.has("persistent", "true")),
            "groupId": _first_of("group_id"),
            "groupSequence": _first_of("group_sequence", lambda some, name: some.number(name, INT64_MAX)),
        }
    )


def _unreadable(raw: Raw, block: UnreadableHeaders) -> Unreadable:
    dialect = raw[3]
    headers = parse(block, dialect.last_header)
    wanted = dict.fromkeys((dialect.id_header, "message-id", "correlation-id", "type"))
    known = {name: str(as_text(headers[name])) for name in wanted if name in headers}
    return Unreadable(raw[0], known, raw[2], block.error)


def _id(value: str) -> object:
    data = value.encode("utf-8", "surrogateescape")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data  # not text: distinguished by its bytes
