"""Columns of deliveries over STOMP, each from the bytes of the headers when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_mq.brokers.base import PASSING_HEADERS, PASSING_PREFIXES, StompDialect
from pyspark_mq.dedup import IdSource, content_digest
from pyspark_mq.sources.connections.decoder import (
    INT32_MAX,
    INT64_MAX,
    ROW_BYTES,
    UNREADABLE_PROPERTY,
    Column,
    Decoder,
    Picked,
    Unreadable,
    column_of,
)
from pyspark_mq.sources.stomp.batch import TOGETHER_MIN, MessageBatch, Raw, find_frames
from pyspark_mq.sources.stomp.frames import UnreadableHeaders
from pyspark_mq.sources.stomp.headers import as_text, as_texts, parse, searchable, values

__all__ = ["StompDecoder", "whole_number"]

_MESSAGE_ID = IdSource("message-id")
#: For so many columns each header is searched for.
_SEARCHED_MAX = 3
#: Larger deliveries that have come one by one are not copied to be looked at together.
_COPIED_MAX = 4 << 20

#: The exchange of destinations that name none (RabbitMQ's documentation, "STOMP", "Destinations").
_EXCHANGES = {"queue": "", "topic": "amq.topic"}

#: Headers of MESSAGE and SEND in the specification, and those with a column of their own.
_NAMED = frozenset(
    {
        "ack", "content-length", "content-type", "correlation-id", "destination", "message-id", "priority",
        "receipt", "redelivered", "reply-to", "subscription", "timestamp", "transaction", "type",
    }
)  # fmt: skip


#: Headers that differ between deliveries of one message.
_PASSING = PASSING_HEADERS | {
    b"ack", b"destination", b"expiration", b"expires", b"message-id", b"original-expiration", b"redelivered",
    b"subscription",
}  # fmt: skip
_DEATHS = b"\nx-death:"


def _lasting(block: bytes) -> bytes:
    """Header lines without those that differ between deliveries, sorted: RabbitMQ changes their order."""
    lines = [
        line
        for line in block[1:-1].split(b"\n")
        if (name := line.partition(b":")[0]) not in _PASSING and not name.startswith(PASSING_PREFIXES)
    ]
    lines.sort()
    return b"\n".join(lines)


def whole_number(text: bytes | None, maximum: int) -> int | None:
    """The number in a header, from 0 to `maximum`, or None."""
    # Python refuses to convert thousands of digits.
    if text is None or not text.isdigit() or len(text) > 19:
        return None
    value = int(text)
    return value if value <= maximum else None


def _dialect(raws: Sequence[Raw]) -> StompDialect:
    """That of the broker, which is one."""
    return raws.dialect if isinstance(raws, MessageBatch) else raws[0][3]


def _values(raws: Sequence[Raw], name: str) -> list[bytes | None]:
    """A header as it is written, for each delivery; None where there is none."""
    return values([raw[1] for raw in raws], name, _dialect(raws).last_header)


def _texts(raws: Sequence[Raw], name: str) -> list[str | None]:
    """A header of any name, as text."""
    if not searchable(name):
        return [parse(raw[1], raw[3].last_header).get(name) for raw in raws]
    return as_texts(_values(raws, name))


def _shown_texts(raws: Sequence[Raw], name: str) -> list[str | None]:
    return [as_text(found) for found in _texts(raws, name)]


def _numbers(raws: Sequence[Raw], name: str, maximum: int) -> list[int | None]:
    found = _values(raws, name)
    # The priority, the moment of sending: many have the same.
    meanings = {text: whole_number(text, maximum) for text in set(found)}
    return [meanings[text] for text in found]


def _text_column(name: str) -> Column:
    return column_of(lambda raws: _shown_texts(raws, name), lambda batch: batch.texts(name))


def _properties(raws: Sequence[Raw]) -> list[list[tuple[str, str | None]]]:
    dialect = _dialect(raws)
    hidden, prefixes = _NAMED | dialect.internal_headers, dialect.internal_prefixes
    rows = []
    for raw in raws:
        row: list[tuple[str, str | None]] = (
            [(UNREADABLE_PROPERTY, raw[1].error)] if type(raw[1]) is UnreadableHeaders else []
        )
        row += [
            (str(as_text(name)), as_text(value))
            for name, value in parse(raw[1], dialect.last_header).items()
            if name not in hidden and not name.startswith(prefixes)
        ]
        rows.append(row)
    return rows


def _properties_of(batch: MessageBatch) -> Any:
    return batch.others(_NAMED | batch.dialect.internal_headers, batch.dialect.internal_prefixes)


def _timestamps_us(raws: Sequence[Raw]) -> list[int | None]:
    unit = _dialect(raws).timestamp_us
    moments = _numbers(raws, "timestamp", INT64_MAX // unit)
    return [None if moment is None else moment * unit for moment in moments]


def _timestamps_of(batch: MessageBatch) -> Any:
    unit = batch.dialect.timestamp_us
    moments = batch.numbers("timestamp", INT64_MAX // unit)
    return None if moments is None else pc.multiply(moments, unit)


def _expirations_us(raws: Sequence[Raw]) -> list[int | None]:
    expires_header = _dialect(raws).expires_header
    if expires_header:
        moments = _numbers(raws, expires_header, INT64_MAX // 1000)
        return [moment * 1000 if moment else None for moment in moments]
    # A time to live in milliseconds, counted from publishing, as in AMQP 0-9-1.
    lives = _numbers(raws, "expiration", INT64_MAX // 1000)
    return [_sum_us(published, life) for published, life in zip(_timestamps_us(raws), lives, strict=True)]


def _expirations_of(batch: MessageBatch) -> Any:
    expires_header = batch.dialect.expires_header
    if not expires_header:
        return None if batch.has("expiration") and batch.has("timestamp") else batch.nothing()
    moments = batch.numbers(expires_header, INT64_MAX // 1000)
    return None if moments is None else pc.multiply(pc.if_else(pc.equal(moments, 0), None, moments), 1000)


def _sum_us(published_us: int | None, lives_ms: int | None) -> int | None:
    if published_us is None or lives_ms is None:
        return None
    moment = published_us + lives_ms * 1000
    return moment if moment <= INT64_MAX else None


_redelivered = column_of(
    lambda raws: [found == b"true" for found in _values(raws, "redelivered")],
    lambda batch: batch.are("redelivered", b"true"),
)


def _persistent(raws: Sequence[Raw]) -> list[bool | None]:
    # Without it a message is not; of one whose headers cannot be read it may be among them.
    return [
        None if value is None and type(raw[1]) is UnreadableHeaders else value == b"true"
        for value, raw in zip(_values(raws, "persistent"), raws, strict=True)
    ]


def _delivery_counts(raws: Sequence[Raw]) -> list[int | None]:
    count_header = _dialect(raws).count_header
    if not count_header:
        return [None] * len(raws)
    counts = _numbers(raws, count_header, INT32_MAX - 1)
    return [
        counted + 1 if counted is not None else None if again else 1
        for counted, again in zip(counts, _redelivered(raws), strict=True)
    ]


def _delivery_counts_of(batch: MessageBatch) -> Any:
    if not batch.dialect.count_header:
        return batch.nothing()
    counts = batch.numbers(batch.dialect.count_header, INT32_MAX - 1)
    if counts is None:
        return None
    uncounted = pc.if_else(_redelivered(batch), pa.scalar(None, pa.int64()), 1)
    return pc.coalesce(pc.add(counts, 1), uncounted)


def _routings(raws: Sequence[Raw]) -> list[tuple[str | None, str | None]]:
    """Exchange and routing key, as `destination` has them (RabbitMQ, `rabbit_stomp_util:format_destination`)."""
    if not _dialect(raws).routed:
        return [(None, None)] * len(raws)
    found = _texts(raws, "destination")
    meanings = {destination: _routing(destination) for destination in set(found)}
    return [meanings[destination] for destination in found]


def _routing_column(part: int) -> Column:
    """A column of exchanges, or of routing keys."""

    def of_batch(batch: MessageBatch) -> Picked | None:
        if not batch.dialect.routed:
            return batch.nothing()
        found = batch.distinct("destination")
        return None if found is None else Picked([_routing(where)[part] for where in found[0]], found[1])

    return column_of(lambda raws: [routing[part] for routing in _routings(raws)], of_batch)


def _routing(destination: str | None) -> tuple[str | None, str | None]:
    kind, _, rest = (destination or "").removeprefix("/").partition("/")
    written = rest.encode("utf-8", "surrogateescape").split(b"/")
    names = [unquote_to_bytes(name).decode("utf-8", "backslashreplace") for name in written]
    if kind == "exchange" and len(names) <= 2:
        return names[0], names[1] if len(names) > 1 else ""
    if kind in _EXCHANGES and len(names) == 1:
        return _EXCHANGES[kind], names[0]
    return None, None


def _long_numbers(raws: Sequence[Raw], name: str) -> list[int | None]:
    return _numbers(raws, name, INT64_MAX)


def _first_of(
    names: str,
    alone: Callable[[Sequence[Raw], str], list[Any]],
    together: Callable[[MessageBatch, str], Any],
) -> Column:
    """Make a column of the first of several headers that has a value.

    Args:
        names: what the dialect calls them.
        alone, together: a header of deliveries, and of a batch; see :func:`.column_of`.
    """

    def of_each(raws: Sequence[Raw]) -> list[Any]:
        column: list[Any] = [None] * len(raws)
        for name in reversed(getattr(_dialect(raws), names)):
            column = [old if new is None else new for new, old in zip(alone(raws, name), column, strict=True)]
        return column

    def of_batch(batch: MessageBatch) -> Any:
        columns = [together(batch, name) for name in getattr(batch.dialect, names) if batch.has(name)]
        if not columns:
            return batch.nothing()
        return None if any(column is None for column in columns) else pc.coalesce(*columns)

    return column_of(of_each, of_batch)


def _of_some(column: Column) -> Column:
    """A column that is never asked about no deliveries at all."""
    return lambda raws: column(raws) if raws else []


class StompDecoder(Decoder):
    """Columns of :data:`~pyspark_mq.sources.stomp.batch.Raw`, all from one broker."""

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        """Numbers of the consumer's own: 1, 2, 3… in each session."""
        return list(raws.tags.tolist()) if isinstance(raws, MessageBatch) else [raw[0] for raw in raws]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        """Bodies as they came; texts in UTF-8.

        Of JMS messages, STOMP carries texts and bytes. ActiveMQ Classic sends the others with an empty
        body; Artemis sends a MapMessage in its own encoding, and a StreamMessage not at all.
        """
        return [raw[2] for raw in raws]

    def sizes(self, raws: Sequence[Raw]) -> list[int]:
        """Bytes of headers and bodies."""
        if isinstance(raws, MessageBatch):
            return list(raws.sizes.tolist())
        return [ROW_BYTES + len(raw[1]) + len(raw[2]) for raw in raws]

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        """The broker's ID where it gives one, or the producer's; None where a property hides the broker's."""
        if not raws:
            return []
        dialect, name = _dialect(raws), source.name
        if source.kind == "message-id":
            name = dialect.id_header
        elif source.kind == "correlation-id":
            name = source.kind
        together = raws.texts(name) if isinstance(raws, MessageBatch) else None
        found = _texts(raws, name) if together is None else together.to_pylist()
        ids: list[object] = [value if value is None or value.isascii() else _id(value) for value in found]
        if source.kind != "message-id":
            return ids
        if dialect.own_id is not None:
            own = dialect.own_id.search
            return [value if isinstance(value, str) and own(value) else None for value in ids]
        if dialect.id_separator:
            return [value.rpartition(dialect.id_separator)[2] if isinstance(value, str) else value for value in ids]
        return ids

    def digests(self, raws: Sequence[Raw]) -> list[bytes]:
        return [content_digest(_lasting(raw[1]), raw[2]) for raw in raws]

    def unmarked(self, raws: Sequence[Raw]) -> list[bool]:
        if not raws:
            return []
        alone = list(raws)
        return [not again and _DEATHS not in raw[1] for again, raw in zip(_redelivered(alone), alone, strict=True)]

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

    def batch(self, raws: Sequence[Raw], names: Collection[str]) -> Sequence[Raw]:
        is_worth_it = "properties" in names or len(self.columns.keys() & names) > _SEARCHED_MAX
        return _together(raws) if is_worth_it and not isinstance(raws, MessageBatch) else raws

    columns: ClassVar[Mapping[str, Column]] = MappingProxyType(
        {
            name: _of_some(column)
            for name, column in {
                "properties": column_of(_properties, _properties_of),
                "correlationId": _text_column("correlation-id"),
                "replyTo": _text_column("reply-to"),
                "contentType": _text_column("content-type"),
                "type": _text_column("type"),
                "priority": column_of(
                    lambda raws: _numbers(raws, "priority", INT32_MAX),
                    lambda batch: batch.numbers("priority", INT32_MAX),
                ),
                "timestamp": column_of(_timestamps_us, _timestamps_of),
                "expiration": column_of(_expirations_us, _expirations_of),
                "redelivered": _redelivered,
                "deliveryCount": column_of(_delivery_counts, _delivery_counts_of),
                "routingKey": _routing_column(1),
                "exchange": _routing_column(0),
                "userId": _first_of("user_id", _shown_texts, MessageBatch.texts),
                "appId": _first_of("app_id", _shown_texts, MessageBatch.texts),
                "contentEncoding": _first_of("content_encoding", _shown_texts, MessageBatch.texts),
                "persistent": column_of(_persistent, lambda batch: batch.are("persistent", b"true")),
                "groupId": _first_of("group_id", _shown_texts, MessageBatch.texts),
                "groupSequence": _first_of(
                    "group_sequence", _long_numbers, lambda batch, name: batch.numbers(name, INT64_MAX)
                ),
            }.items()
        }
    )


def _together(raws: Sequence[Raw]) -> Sequence[Raw]:
    """Return deliveries that have come one by one as a batch if all are alike enough."""
    size = sum(len(raw[1]) + len(raw[2]) for raw in raws)
    if len(raws) < TOGETHER_MIN or size > _COPIED_MAX or any(type(raw[1]) is UnreadableHeaders for raw in raws):
        return raws
    # As frames again, and behind them the beginning of another one.
    data = b"".join(part for raw in raws for part in (b"MESSAGE", raw[1], b"\n", raw[2], b"\0\n")) + b"MESSAGE\n"
    found, _ = find_frames(data, 0, len(raws), len(raws), _dialect(raws).last_header)
    if found is None or len(found.kinds) < len(raws):
        return raws
    return MessageBatch(found, np.array([raw[0] for raw in raws]), _dialect(raws))


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
