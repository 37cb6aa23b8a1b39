"""Batches of STOMP deliveries. Most messages are decoded together, and other messages are decoded one by one.

:class:`FramesBatch` decodes messages together, and :class:`ParsedBatch` one by one; each returns any header as a
column. :class:`StompBatch`, their common base, makes the columns of rows from headers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_mq.brokers.base import StompDialect
from pyspark_mq.brokers.destinations import as_row
from pyspark_mq.decode.batch import (
    INT32_MAX,
    INT64_MAX,
    MESSAGE_ID,
    UNREADABLE_PROPERTY,
    Column,
    DeliveryBatch,
    DictionaryColumn,
    Unreadable,
    first_of_each,
)
from pyspark_mq.decode.spans import binary, distinct, joined, maps, text
from pyspark_mq.decode.stomp_frames import Frames
from pyspark_mq.decode.stomp_headers import UnreadableHeaders, as_text, parse
from pyspark_mq.dedup import IdSource

__all__ = ["FramesBatch", "ParsedBatch", "Raw", "StompBatch", "unreadable_of"]

#: A single delivery: (tag, header block, body, the broker's dialect of STOMP).
Raw: TypeAlias = "tuple[int, bytes, bytes, StompDialect]"

#: Any number with this many digits fits into an unsigned integer of 64 bits. Longer numbers are not converted.
_NUMBER_DIGITS_MAX = 19
#: The exchange of destinations that do not name an exchange (RabbitMQ's documentation, "STOMP", "Destinations").
_EXCHANGES = {"queue": "", "topic": "amq.topic"}

#: Headers of MESSAGE and SEND in the specification, and headers that have a column of their own.
_NAMED = frozenset(
    {
        "ack", "content-length", "content-type", "correlation-id", "destination", "message-id", "priority",
        "receipt", "redelivered", "reply-to", "subscription", "timestamp", "transaction", "type",
    }
)  # fmt: skip


class StompBatch(DeliveryBatch):
    """Deliveries of one STOMP session, in order of arrival. Methods take header names without escapes.

    Attributes:
        dialect: how the broker differs from other STOMP brokers.
    """

    dialect: StompDialect
    passing = DeliveryBatch.passing | {"expiration", "expires", "original-expiration"}

    @classmethod
    def of(cls, items: Sequence[Raw | StompBatch]) -> StompBatch:
        together = [item for item in items if isinstance(item, FramesBatch)]
        if len(together) == len(items):
            return FramesBatch.joined(together)
        return ParsedBatch(
            [raw for item in items for raw in (item.parsed.raws if isinstance(item, StompBatch) else (item,))]
        )

    @classmethod
    def size(cls, raw: Raw) -> int:
        return len(raw[1]) + len(raw[2])

    @property
    @abstractmethod
    def parsed(self) -> ParsedBatch:
        """The same deliveries as a batch whose messages are decoded one by one."""

    # -- access to headers

    @abstractmethod
    def has_any(self, name: str) -> bool:
        """Return whether any message has this header."""

    @abstractmethod
    def values(self, name: str) -> list[str | None]:
        """Return the value of a header in each message; None for a message without the header.

        Bytes that are not UTF-8 become surrogate characters, from which they can be restored.
        """

    @abstractmethod
    def text(self, name: str) -> pa.Array:
        """Return a header as a column of text. The column is null where the header is missing."""

    @abstractmethod
    def number(self, name: str, maximum: int, unit: int = 1) -> pa.Array:
        """Return a header as a column of integers, each multiplied by `unit`.

        A value is null if the header is not a number, or if the product exceeds `maximum`.
        """

    @abstractmethod
    def has(self, name: str, value: str) -> pa.Array:
        """Return a column that tells for each message whether the header has this value."""

    @abstractmethod
    def others(self, hidden: Collection[str], prefixes: tuple[str, ...]) -> Any:
        """Return a column with each message's headers as pairs of name and value, except some headers.

        Args:
            hidden: names of headers that are not included.
            prefixes: headers whose names begin with one of these prefixes are not included either.
        """

    # -- columns made from headers

    def ids(self, source: IdSource) -> list[object]:
        """Return each message's ID from the header or property that `source` names.

        For the default source, `message-id`, this is the broker's ID if the broker sets an ID, and otherwise the
        producer's ID. If a property of the message is named like the broker's ID header and hides its ID, the result
        is None, or the property's value if it looks like an ID of the broker.
        """
        dialect = self.dialect
        name = {"message-id": dialect.id_header, "correlation-id": "correlation-id"}.get(source.kind, source.name)
        ids = [value if value is None or value.isascii() else _id(value) for value in self.values(name)]
        if source.kind != "message-id":
            return ids
        if dialect.own_id is not None:
            own = dialect.own_id.search
            return [value if isinstance(value, str) and own(value) else None for value in ids]
        if dialect.id_separator:
            return [value.rpartition(dialect.id_separator)[2] if isinstance(value, str) else value for value in ids]
        return ids

    def given(self) -> list[object]:
        """Return the producer's ID and header `timestamp` of each message as received, for the digest of its content.

        If the broker sets header `message-id` to its own ID, the producer's ID is None, because no header has it.
        """
        is_the_brokers = self.dialect.id_header == "message-id"
        ids = [None] * len(self) if is_the_brokers else self.ids(MESSAGE_ID)
        return [*zip(ids, self.values("timestamp"), strict=True)]

    def not_redelivered(self) -> list[bool]:
        # Over STOMP RabbitMQ does not send headers that are arrays, such as `x-death`, but it sends this header, which
        # is text (measured on 3.10 and 4.3).
        deaths = self.values("x-first-death-reason")
        return [not one and death is None for one, death in zip(self.redelivered, deaths, strict=True)]

    def hidden(self) -> list[str]:
        if self.dialect.own_id is None:
            return []
        names, keys = self.values(self.dialect.id_header), self.ids(MESSAGE_ID)
        return [str(as_text(name)) for name, key in zip(names, keys, strict=True) if key is None]

    def properties(self) -> Any:
        """Return column `properties`: the headers that are not part of STOMP and have no column of their own."""
        return self.others(_NAMED | self.dialect.internal_headers, self.dialect.internal_prefixes)

    def timestamps_us(self) -> pa.Array:
        """Return column `timestamp`: when each message was published, in microseconds since 1970."""
        return self.number("timestamp", INT64_MAX, self.dialect.timestamp_us)

    def expirations_us(self) -> Any:
        """Return column `expiration`: when each message expires, in microseconds since 1970."""
        expires_header = self.dialect.expires_header
        if expires_header:
            moments = self.number(expires_header, INT64_MAX, 1000)
            return pc.if_else(pc.equal(moments, 0), None, moments)
        if not self.has_any("expiration"):
            return self.nothing()
        # The header is a time to live in milliseconds, counted from publishing, as in AMQP 0-9-1.
        published, lives = self.timestamps_us().to_pylist(), self.number("expiration", INT64_MAX, 1000).to_pylist()
        return [_sum(*both) for both in zip(published, lives, strict=True)]

    def persistent(self) -> pa.Array:
        """Return column `persistent`: whether the message should survive a broker restart.

        A message without header `persistent` is not persistent. If such a message is unreadable, the column is null,
        because the header may be in the missing part.
        """
        found = self.has("persistent", "true")
        if not self.unreadable:
            return found
        unknown = [place in self.unreadable and value is None for place, value in enumerate(self.values("persistent"))]
        return pc.if_else(pa.array(unknown), None, found)

    def delivery_counts(self) -> Any:
        """Return column `deliveryCount`, which is null if the broker does not report how often it has delivered."""
        if not self.dialect.count_header:
            return self.nothing()
        counts = self.number(self.dialect.count_header, INT32_MAX - 1)
        uncounted = pc.if_else(self.has("redelivered", "true"), pa.scalar(None, pa.int64()), 1)
        return pc.coalesce(pc.add(counts, 1), uncounted)

    def replies(self) -> DictionaryColumn:
        """Return column `replyTo`: the destination for replies, in the form in which rows name destinations."""
        if not self.has_any("reply-to"):
            return self.nothing()
        texts, rows = distinct(self.text("reply-to"))
        return DictionaryColumn([text and as_row(text, self.dialect.forms) for text in texts], rows)

    def routing(self, part: int) -> DictionaryColumn:
        """Return column `exchange` (`part` is 0) or `routingKey` (`part` is 1), taken from header `destination`.

        RabbitMQ's function `rabbit_stomp_util:format_destination` writes this header. For other brokers and for other
        formats the column is null.
        """
        if not self.dialect.routed:
            return self.nothing()
        destinations, rows = distinct(self.text("destination"))
        return DictionaryColumn([_routing(where)[part] for where in destinations], rows)

    def first_of(self, names: Sequence[str], read: Callable[[StompBatch, str], pa.Array]) -> Any:
        """Return a column with each message's value of the first header in `names` that the message has.

        Args:
            names: names of the headers, in order of precedence.
            read: returns a header of the batch as a column.
        """
        columns = [read(self, name) for name in names if self.has_any(name)]
        return pc.coalesce(*columns) if columns else self.nothing()

    columns: ClassVar[Mapping[str, Column]] = MappingProxyType(
        {
            "properties": lambda batch: batch.properties(),
            "correlationId": lambda batch: batch.text("correlation-id"),
            "replyTo": lambda batch: batch.replies(),
            "contentType": lambda batch: batch.text("content-type"),
            "type": lambda batch: batch.text("type"),
            "priority": lambda batch: batch.number("priority", INT32_MAX),
            "timestamp": lambda batch: batch.timestamps_us(),
            "expiration": lambda batch: batch.expirations_us(),
            "redelivered": lambda batch: batch.has("redelivered", "true"),
            "deliveryCount": lambda batch: batch.delivery_counts(),
            "routingKey": lambda batch: batch.routing(1),
            "exchange": lambda batch: batch.routing(0),
            "userId": lambda batch: batch.first_of(batch.dialect.user_id, _text),
            "appId": lambda batch: batch.first_of(batch.dialect.app_id, _text),
            "contentEncoding": lambda batch: batch.first_of(batch.dialect.content_encoding, _text),
            "persistent": lambda batch: batch.persistent(),
            "groupId": lambda batch: batch.first_of(batch.dialect.group_id, _text),
            "groupSequence": lambda batch: batch.first_of(batch.dialect.group_sequence, _sequences),
        }
    )


class ParsedBatch(StompBatch):
    """Deliveries whose headers are parsed one by one. A batch has at least one delivery."""

    def __init__(self, raws: Sequence[Raw]) -> None:
        self.raws = raws
        self.tags, self.dialect = np.array([raw[0] for raw in raws], np.int64), raws[0][3]
        self.unreadable = {
            place: unreadable_of(raw) for place, raw in enumerate(raws) if isinstance(raw[1], UnreadableHeaders)
        }

    @property
    def parsed(self) -> ParsedBatch:
        return self

    def taken(self, places: Any) -> ParsedBatch:
        return ParsedBatch([self.raws[place] for place in places.tolist()])

    @property
    def sizes(self) -> Any:
        return np.array(list(map(self.size, self.raws)), np.int64)

    def body(self) -> pa.Array:
        """Return column `body`: the bodies as received. Text is encoded as UTF-8.

        Over STOMP, brokers send the bodies of JMS text messages and bytes messages. ActiveMQ Classic sends other kinds
        of messages with an empty body. Artemis sends a MapMessage in its own encoding, and does not send a
        StreamMessage.
        """
        return joined([raw[2] for raw in self.raws])

    @cached_property
    def _headers(self) -> list[dict[str, str]]:
        return [parse(raw[1], self.dialect.last_header) for raw in self.raws]

    def has_any(self, name: str) -> bool:
        return any(name in headers for headers in self._headers)

    def values(self, name: str) -> list[str | None]:
        return [headers.get(name) for headers in self._headers]

    def text(self, name: str) -> pa.Array:
        return pa.array(list(map(as_text, self.values(name))), pa.string())

    def number(self, name: str, maximum: int, unit: int = 1) -> pa.Array:
        return pa.array([_number(value, maximum, unit) for value in self.values(name)], pa.int64())

    def has(self, name: str, value: str) -> pa.Array:
        return pa.array([found == value for found in self.values(name)])

    def others(self, hidden: Collection[str], prefixes: tuple[str, ...]) -> list[list[tuple[str, str | None]]]:
        rows: list[list[tuple[str, str | None]]] = []
        for raw, headers in zip(self.raws, self._headers, strict=True):
            row = [(UNREADABLE_PROPERTY, raw[1].error)] if isinstance(raw[1], UnreadableHeaders) else []
            shown = (pair for pair in headers.items() if pair[0] not in hidden and not pair[0].startswith(prefixes))
            rows.append(first_of_each([*row, *((str(as_text(name)), as_text(value)) for name, value in shown)]))
        return rows


class FramesBatch(StompBatch):
    """Deliveries whose messages are decoded together.

    Args:
        frames: the frames as received.
        tags: the numbers of the deliveries in the session.
        dialect: how the broker differs from other STOMP brokers.
    """

    def __init__(self, frames: Frames, tags: Any, dialect: StompDialect) -> None:
        self.frames, self.tags, self.dialect = frames, tags, dialect

    @classmethod
    def joined(cls, batches: Sequence[FramesBatch]) -> FramesBatch:
        """Merge `batches`, in order, into one batch."""
        if len(batches) == 1:
            return batches[0]
        tags = np.concatenate([batch.tags for batch in batches])
        return cls(Frames.of([batch.frames for batch in batches]), tags, batches[0].dialect)

    @cached_property
    def parsed(self) -> ParsedBatch:
        raws = zip(self.tags.tolist(), self.frames.cut(), strict=True)
        return ParsedBatch([(tag, block, body, self.dialect) for tag, (block, body) in raws])

    def taken(self, places: Any) -> FramesBatch:
        return FramesBatch(self.frames.taken(places), self.tags[places], self.dialect)

    @property
    def sizes(self) -> Any:
        a, b, c, d = self.frames.spans
        return b - a + d - c

    def body(self) -> pa.Array:
        return binary(self.frames.data, self.frames.spans[2], self.frames.spans[3])

    def has_any(self, name: str) -> bool:
        return name in self.frames.fields

    def values(self, name: str) -> list[str | None]:
        found = self._text(name)
        return self.parsed.values(name) if found is None else list(found.to_pylist())

    def text(self, name: str) -> pa.Array:
        found = self._text(name)
        return self.parsed.text(name) if found is None else found

    def number(self, name: str, maximum: int, unit: int = 1) -> pa.Array:
        found = self._number(name, maximum, unit)
        return self.parsed.number(name, maximum, unit) if found is None else found

    def has(self, name: str, value: str) -> pa.Array:
        return pc.equal(self._written(name), pa.scalar(value.encode())).fill_null(False)

    def others(self, hidden: Collection[str], prefixes: tuple[str, ...]) -> Any:
        shown = [name for name in self.frames.fields if name not in hidden and not name.startswith(prefixes)]
        texts: dict[str, Any] = {name: self._text(name) for name in shown}
        if any(found is None for found in texts.values()):
            return self.parsed.others(hidden, prefixes)
        parts, places = [], []
        for kind, layout in enumerate(self.frames.layouts):
            rows = np.flatnonzero(self.frames.kinds == kind)
            if len(rows):
                names = [name for name in dict.fromkeys(reversed(layout)) if name in texts]  # in the order of `parse`
                of_layout = pa.array(rows)
                parts.append(maps([(name, texts[name].take(of_layout)) for name in names], len(rows)))
                places.append(rows)
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places))))

    # -- access to headers in the buffer

    def _written(self, name: str) -> pa.Array:
        """Return a header as a column of bytes, with its escapes. The column is null where the header is missing."""
        field = self.frames.fields.get(name)
        return pa.nulls(len(self), pa.binary()) if field is None else binary(self.frames.data, *field)

    def _text(self, name: str) -> pa.Array | None:
        """Return a header as a column of text, or None if its values must be decoded one by one.

        The result is None if a value is not UTF-8, or has an escape other than the one for a colon.
        """
        try:
            found = text(self._written(name))
        except ValueError:
            return None
        content = found.buffers()[2]
        written = b"" if content is None else content.to_pybytes()
        escapes = written.count(b"\\")
        if not escapes:
            return found
        # If a value ends in a backslash and the next value begins with `c`, the count includes these two characters,
        # but `replace_substring` does not replace them, because it handles each value by itself.
        return pc.replace_substring(found, "\\c", ":") if escapes == written.count(b"\\c") else None

    def _number(self, name: str, maximum: int, unit: int = 1) -> pa.Array | None:
        """Return a header as :meth:`number` does, or None if its values must be decoded one by one."""
        found = self._written(name)
        if found.null_count == len(found):
            return pa.nulls(len(found), pa.int64())
        content = np.frombuffer(found.buffers()[2] or b"", np.uint8)
        lengths = pc.min_max(pc.binary_length(found)).as_py()
        if not 1 <= lengths["min"] <= lengths["max"] <= _NUMBER_DIGITS_MAX:
            return None
        if content.min() < ord("0") or content.max() > ord("9"):
            return None
        values = found.cast(pa.string()).cast(pa.uint64())
        known = pc.less_equal(values, pa.scalar(maximum // unit, pa.uint64()))
        numbers = pc.if_else(known, values, None).cast(pa.int64())
        return numbers if unit == 1 else pc.multiply(numbers, unit)


def unreadable_of(raw: Raw) -> Unreadable:
    """Return a description of an unreadable message, whose headers are an :class:`.UnreadableHeaders`."""
    tag, block, body, dialect = raw
    assert isinstance(block, UnreadableHeaders)
    headers = parse(block, dialect.last_header)
    wanted = dict.fromkeys((dialect.id_header, "message-id", "correlation-id", "type"))
    known = {name: str(as_text(headers[name])) for name in wanted if name in headers}
    return Unreadable(tag, known, body, block.error)


def _text(batch: StompBatch, name: str) -> pa.Array:
    return batch.text(name)


def _sequences(batch: StompBatch, name: str) -> pa.Array:
    return batch.number(name, INT64_MAX)


def _number(value: str | None, maximum: int, unit: int) -> int | None:
    # Python refuses to convert thousands of digits.
    if value is None or not (value.isascii() and value.isdigit()) or len(value) > _NUMBER_DIGITS_MAX:
        return None
    return number if (number := int(value) * unit) <= maximum else None


def _sum(published_us: int | None, lives_us: int | None) -> int | None:
    if published_us is None or lives_us is None:
        return None
    return moment if (moment := published_us + lives_us) <= INT64_MAX else None


def _routing(destination: str | None) -> tuple[str | None, str | None]:
    kind, _, rest = (destination or "").removeprefix("/").partition("/")
    written = rest.encode("utf-8", "surrogateescape").split(b"/")
    names = [unquote_to_bytes(name).decode("utf-8", "backslashreplace") for name in written]
    if kind == "exchange" and len(names) <= 2:
        return names[0], names[1] if len(names) > 1 else ""
    if kind in _EXCHANGES and len(names) == 1:
        return _EXCHANGES[kind], names[0]
    return None, None


def _id(value: str) -> object:
    data = value.encode("utf-8", "surrogateescape")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data  # this ID is not text, so its bytes are the ID
