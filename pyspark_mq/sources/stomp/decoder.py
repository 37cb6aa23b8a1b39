"""Columns of deliveries over STOMP, each from the bytes of the headers when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote_to_bytes

from pyspark_mq.brokers.base import PASSING_HEADERS, PASSING_PREFIXES, StompDialect
from pyspark_mq.dedup import IdSource, content_digest
from pyspark_mq.sources.connections.decoder import ROW_BYTES, UNREADABLE_PROPERTY, Decoder, Unreadable
from pyspark_mq.sources.stomp.frames import UnreadableHeaders
from pyspark_mq.sources.stomp.headers import as_text, parse
from pyspark_mq.sources.stomp.table import HeaderTable

__all__ = ["Raw", "StompDecoder", "whole_number"]

#: (tag, block of headers, body, how the broker speaks)
Raw = tuple[int, bytes, bytes, StompDialect]

_MESSAGE_ID = IdSource("message-id")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

#: The exchange of destinations that name none (RabbitMQ's documentation, "STOMP", "Destinations").
_EXCHANGES = {"queue": "", "topic": "amq.topic"}

#: Up to so many columns of headers, each is searched for.
_SEARCHED_MAX = 3

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


class _Deliveries(list[Raw]):
    """Deliveries of which several columns are made."""

    table: HeaderTable


def _table(raws: Sequence[Raw], *, turned: bool = False) -> HeaderTable:
    """The headers of deliveries, of which there are some."""
    if isinstance(raws, _Deliveries):
        return raws.table
    return HeaderTable([raw[1] for raw in raws], _dialect(raws).last_header, turned=turned)


def _dialect(raws: Sequence[Raw]) -> StompDialect:
    """That of the broker, which is one."""
    return raws[0][3]


def _texts(name: str) -> Callable[[Sequence[Raw]], list[Any]]:
    return lambda raws: _header_texts(raws, name)


def _numbers(raws: Sequence[Raw], name: str, maximum: int) -> list[int | None]:
    found = _table(raws).values(name)
    # The priority, the moment of sending: many have the same.
    meanings = {text: whole_number(text, maximum) for text in set(found)}
    return [meanings[text] for text in found]


def _properties(raws: Sequence[Raw]) -> list[list[tuple[str, str | None]]]:
    dialect = _dialect(raws)
    rows = _table(raws, turned=True).others(_NAMED | dialect.internal_headers, dialect.internal_prefixes)
    for row, raw in zip(rows, raws, strict=True):
        if type(raw[1]) is UnreadableHeaders:
            row.insert(0, (UNREADABLE_PROPERTY, raw[1].error))
    return rows


def _timestamps_us(raws: Sequence[Raw]) -> list[int | None]:
    unit = _dialect(raws).timestamp_us
    moments = _numbers(raws, "timestamp", _INT64_MAX // unit)
    return [None if moment is None else moment * unit for moment in moments]


def _expirations_us(raws: Sequence[Raw]) -> list[int | None]:
    expires_header = _dialect(raws).expires_header
    if expires_header:
        moments = _numbers(raws, expires_header, _INT64_MAX // 1000)
        return [moment * 1000 if moment else None for moment in moments]
    # A time to live in milliseconds, counted from publishing, as in AMQP 0-9-1.
    lives = _numbers(raws, "expiration", _INT64_MAX // 1000)
    return [_sum_us(published, life) for published, life in zip(_timestamps_us(raws), lives, strict=True)]


def _sum_us(published_us: int | None, lives_ms: int | None) -> int | None:
    if published_us is None or lives_ms is None:
        return None
    moment = published_us + lives_ms * 1000
    return moment if moment <= _INT64_MAX else None


def _redelivered(raws: Sequence[Raw]) -> list[bool]:
    return [found == b"true" for found in _table(raws).values("redelivered")]


def _persistent(raws: Sequence[Raw]) -> list[bool | None]:
    # Without it a message is not; of one whose headers cannot be read it may be among them.
    found = _table(raws).values("persistent")
    return [
        None if value is None and type(raw[1]) is UnreadableHeaders else value == b"true"
        for value, raw in zip(found, raws, strict=True)
    ]


def _delivery_counts(raws: Sequence[Raw]) -> list[int | None]:
    count_header = _dialect(raws).count_header
    if not count_header:
        return [None] * len(raws)
    counts = _numbers(raws, count_header, _INT32_MAX - 1)
    return [
        counted + 1 if counted is not None else None if again else 1
        for counted, again in zip(counts, _redelivered(raws), strict=True)
    ]


def _first_of(names: str, values: Callable[[Sequence[Raw], str], list[Any]]) -> Callable[[Sequence[Raw]], list[Any]]:
    """Make a column of the first of several headers that has a value."""

    def column(raws: Sequence[Raw]) -> list[Any]:
        found: list[Any] = [None] * len(raws)
        for name in reversed(getattr(_dialect(raws), names)):
            found = [known if value is None else value for value, known in zip(values(raws, name), found, strict=True)]
        return found

    return column


def _header_texts(raws: Sequence[Raw], name: str) -> list[str | None]:
    return [as_text(found) for found in _table(raws).texts(name)]


def _long_numbers(raws: Sequence[Raw], name: str) -> list[int | None]:
    return _numbers(raws, name, _INT64_MAX)


def _routings(raws: Sequence[Raw]) -> list[tuple[str | None, str | None]]:
    """Exchange and routing key, as `destination` has them (RabbitMQ, `rabbit_stomp_util:format_destination`)."""
    if not _dialect(raws).routed:
        return [(None, None)] * len(raws)
    found = _table(raws).texts("destination")
    meanings = {destination: _routing(destination) for destination in set(found)}
    return [meanings[destination] for destination in found]


def _routing(destination: str | None) -> tuple[str | None, str | None]:
    kind, _, rest = (destination or "").removeprefix("/").partition("/")
    written = rest.encode("utf-8", "surrogateescape").split(b"/")
    names = [unquote_to_bytes(name).decode("utf-8", "backslashreplace") for name in written]
    if kind == "exchange" and len(names) <= 2:
        return names[0], names[1] if len(names) > 1 else ""
    if kind in _EXCHANGES and len(names) == 1:
        return _EXCHANGES[kind], names[0]
    return None, None


def _of_some(column: Callable[[Sequence[Raw]], list[Any]]) -> Callable[[Sequence[Raw]], list[Any]]:
    """A column that is never asked about no deliveries at all."""
    return lambda raws: column(raws) if raws else []


class StompDecoder(Decoder):
    """Columns of (tag, block of headers, body, dialect), all from one broker."""

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        """Numbers of the consumer's own: 1, 2, 3… in each session."""
        return [raw[0] for raw in raws]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        """Bodies as they came; texts in UTF-8.

        Of JMS messages, STOMP carries texts and bytes. ActiveMQ Classic sends the others with an empty
        body; Artemis sends a MapMessage in its own encoding, and a StreamMessage not at all.
        """
        return [raw[2] for raw in raws]

    def sizes(self, raws: Sequence[Raw]) -> list[int]:
        """Bytes of headers and bodies."""
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
        found = _table(raws).texts(name)
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
        return [not again and _DEATHS not in raw[1] for again, raw in zip(_redelivered(raws), raws, strict=True)]

    def hidden(self, raws: Sequence[Raw]) -> list[str]:
        if not raws or _dialect(raws).own_id is None:
            return []
        names = _table(raws).texts(_dialect(raws).id_header)
        keys = self.ids(raws, _MESSAGE_ID)
        return [str(as_text(name)) for name, key in zip(names, keys, strict=True) if key is None]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        return [_unreadable(raw, raw[1]) for raw in raws if type(raw[1]) is UnreadableHeaders]

    def batch(self, raws: Sequence[Raw], names: Collection[str]) -> Sequence[Raw]:
        if not raws:
            return raws
        made = _Deliveries(raws)
        turned = "properties" in names or len(self.columns.keys() & names) > _SEARCHED_MAX
        made.table = HeaderTable([raw[1] for raw in raws], _dialect(raws).last_header, turned=turned)
        return made

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], list[Any]]]] = MappingProxyType(
        {
            name: _of_some(column)
            for name, column in {
                "properties": _properties,
                "correlationId": _texts("correlation-id"),
                "replyTo": _texts("reply-to"),
                "contentType": _texts("content-type"),
                "type": _texts("type"),
                "priority": lambda raws: _numbers(raws, "priority", _INT32_MAX),
                "timestamp": _timestamps_us,
                "expiration": _expirations_us,
                "redelivered": _redelivered,
                "deliveryCount": _delivery_counts,
                "routingKey": lambda raws: [key for _, key in _routings(raws)],
                "exchange": lambda raws: [exchange for exchange, _ in _routings(raws)],
                "userId": _first_of("user_id", _header_texts),
                "appId": _first_of("app_id", _header_texts),
                "contentEncoding": _first_of("content_encoding", _header_texts),
                "persistent": _persistent,
                "groupId": _first_of("group_id", _header_texts),
                "groupSequence": _first_of("group_sequence", _long_numbers),
            }.items()
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
