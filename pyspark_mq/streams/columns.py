"""Columns of many messages at once, without an object for any of them.

All messages of a batch are walked together: what begins at a position of each is looked at with one operation of NumPy
over all. Where values begin and end makes the bytes of the batch themselves an array of Arrow, of values and of what is
between them, and a column is every second of those.

What is taken is what :mod:`pyspark_mq.sources.amqp10.scan` takes, and less of it: messages that begin alike (header and
annotations, byte by byte), have texts or nothing in `properties`, texts, whole numbers and booleans in
`application-properties`, and one body. All others are read one by one. So this never decides that a message is broken,
and a column has the same values whoever read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_mq.sources.amqp10.decoder import Raw
from pyspark_mq.sources.connections.decoder import Unreadable
from pyspark_mq.sources.connections.spans import binary, decimals, distinct, is_ascii, text
from pyspark_mq.streams.scanned import COLUMN_TYPES, TIMESTAMP, arrays_of, read_messages, unreadable
from pyspark_mq.streams.walk import Walked, prefix_of, walk

__all__ = ["PADDING", "Messages", "message_columns"]

PADDING = bytes(16)

#: For fewer the walk takes longer than reading them one by one.
_WALKED_MIN = 16
#: Beginnings that are looked for in a batch; the messages with others are read one by one.
_ROUNDS = 4
_MAX_MS = (2**63 - 1) // 1000


class Messages(NamedTuple):
    """Messages in one piece of memory, in ascending order.

    Attributes:
        data: ends with :data:`PADDING`, so that reading a number leads out of it nowhere.
        begins, ends: of each, as arrays of 64-bit integers.
    """

    data: bytes
    begins: Any
    ends: Any

    def taken(self, rows: Any) -> Messages:
        """Some of them."""
        return Messages(self.data, self.begins[rows], self.ends[rows])

    def cut(self) -> list[bytes]:
        """Each by itself."""
        return [self.data[begin:end] for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True)]


def message_columns(messages: Messages, names: Collection[str]) -> tuple[dict[str, pa.Array], list[Unreadable]]:
    """The columns of these names, and the messages that cannot be read, by their numbers."""
    groups: list[tuple[Any, dict[str, pa.Array]]] = []
    others: list[Any] = []
    open_: list[tuple[Any, int]] = [(np.arange(len(messages.begins)), 0)]
    while open_:
        rows, rounds = open_.pop()
        if len(rows) < _WALKED_MIN or rounds == _ROUNDS:
            others.append(rows)
            continue
        try:
            walked, columns = _walked(messages.taken(rows), names)
        except _MalformedError:
            # Of whichever message it is, the others need not be read one by one for it.
            open_ += [(half, rounds) for half in np.array_split(rows, 2)]
            continue
        if columns is None:
            others.append(rows)
            continue
        groups.append((rows[walked], columns))
        open_.append((rows[~walked], rounds + 1))
    left = np.sort(np.concatenate(others))
    malformed: list[Unreadable] = []
    if len(left):
        raws = read_messages(messages.taken(left).cut())
        malformed = unreadable([raw._replace(tag=int(row)) for raw, row in zip(raws, left, strict=True)])
        groups.append((left, arrays_of(raws, names)))
    if len(groups) == 1:
        return groups[0][1], malformed
    order = pa.array(np.argsort(np.concatenate([rows for rows, _ in groups])))
    merged = {name: pa.concat_arrays([columns[name] for _, columns in groups]).take(order) for name in names}
    return merged, malformed


def _walked(messages: Messages, names: Collection[str]) -> tuple[Any, dict[str, pa.Array] | None]:
    """Return which messages were walked, and their columns; None if none were.

    Raises:
        _MalformedError: one of them is not to be walked.
    """
    first = messages.data[messages.begins[0] : messages.ends[0]]
    known = prefix_of(first)
    if known is None:
        return None, None
    size, like, ttl_ms = known
    data = np.frombuffer(messages.data, np.uint8)
    walked = walk(data, messages.begins, messages.ends, first[:size])
    if not walked.rows.any():
        return None, None
    return walked.rows, _columns(_Source(messages.data, walked), like, ttl_ms, names)


class _MalformedError(Exception):
    """A text is none, or names of properties repeat: what that means is for others to say."""


class _Source:
    """Spans of a batch, of the rows that were walked, as arrays of Arrow."""

    def __init__(self, data: bytes, walked: Walked) -> None:
        self._data = data
        self.walked = walked
        self.count = int(walked.rows.sum())

    def binary(self, begins: Any, lengths: Any, valid: Any | None = None) -> pa.Array:
        """Return spans in ascending order as bytes; null where they are not valid."""
        return binary(self._data, begins, begins + lengths, valid)

    def text(self, begins: Any, lengths: Any, symbols: Any, valid: Any | None = None) -> pa.Array:
        """Return a text column."""
        found = self.binary(begins, lengths, valid)
        if symbols.any() and not is_ascii(self.binary(begins, lengths, symbols)):
            raise _MalformedError
        try:
            return text(found)
        except ValueError:
            raise _MalformedError from None


#: Fields of `properties` that are texts, by their number, and the numbers of others.
_FIELDS = {
    0: "messageId", 1: "userId", 3: "type", 4: "replyTo", 5: "correlationId", 6: "contentType", 7: "contentEncoding",
}  # fmt: skip
_EXPIRY, _CREATED, _SEQUENCE = 8, 9, 11
_NO_SYMBOLS = np.zeros(1, bool)


def _columns(source: _Source, like: Raw, ttl_ms: int, names: Collection[str]) -> dict[str, pa.Array]:
    count, walked = source.count, source.walked
    # All are looked at, asked for or not: a text that is none makes its message unreadable.
    if walked.texts.any():
        source.text(walked.body_begins[walked.texts], walked.body_lengths[walked.texts], _NO_SYMBOLS)
    made = _texts(source)
    constants: Mapping[str, object] = {
        "priority": like.priority, "persistent": like.durable, "exchange": like.routing[0],
        "routingKey": like.routing[1], "groupId": None, "appId": None,
    }  # fmt: skip
    made["properties"] = _maps(source)
    made["timestamp"], made["expiration"] = _times(walked, ttl_ms)
    if _SEQUENCE in walked.fields:
        sequence = walked.fields[_SEQUENCE]
        made["groupSequence"] = pa.array(sequence.numbers, mask=~sequence.valid)
    if "body" in names:
        made["body"] = source.binary(walked.body_begins, walked.body_lengths)
    return {
        name: made[name] if name in made else _constant(constants.get(name), COLUMN_TYPES[name], count)
        for name in names
    }


def _texts(source: _Source) -> dict[str, pa.Array]:
    """The fields of `properties` that are texts."""
    found: dict[str, pa.Array] = {}
    for number, field in source.walked.fields.items():
        if number in {_EXPIRY, _CREATED, _SEQUENCE}:
            continue
        # An empty ID is none.
        valid = field.valid & (field.lengths > 0) if number == 0 else field.valid
        found[_FIELDS.get(number, "")] = source.text(field.begins, field.lengths, field.symbols, valid)
    return found


def _times(walked: Walked, ttl_ms: int) -> tuple[pa.Array, pa.Array]:
    """Return creation and expiry times of messages."""
    nothing = np.zeros(len(walked.body_begins), np.int64)
    created = walked.fields[_CREATED].numbers if _CREATED in walked.fields else nothing
    expires = walked.fields[_EXPIRY].numbers if _EXPIRY in walked.fields else nothing
    if ttl_ms:
        expires = np.where((expires == 0) & (created != 0), created + ttl_ms, expires)
    return _timestamps(created), _timestamps(expires)


def _constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _timestamps(milliseconds: Any) -> pa.Array:
    valid = (milliseconds > 0) & (milliseconds <= _MAX_MS)
    return pa.array(np.where(valid, milliseconds, 0) * 1000, mask=~valid).cast(TIMESTAMP)


def _maps(source: _Source) -> pa.Array:
    """Application properties."""
    pairs = source.walked.pairs
    ends = pa.array(np.concatenate(([0], np.cumsum(pairs.counts))).astype(np.int32))
    total = len(pairs.key_begins)
    if not total:
        return pa.MapArray.from_arrays(ends, pa.array([], pa.string()), pa.array([], pa.string()))
    keys = source.text(pairs.key_begins, pairs.key_lengths, _NO_SYMBOLS)
    names, codes = distinct(keys)
    if "JMSXAppID" in names or _repeats(codes, pairs.counts):
        raise _MalformedError
    items = source.text(pairs.begins, pairs.lengths, _NO_SYMBOLS, pairs.texts)
    if pairs.whole.any():
        items = pc.coalesce(items, decimals(pairs.numbers, pairs.whole))
    if pairs.truths.any():
        written = pa.array(np.where(pairs.numbers != 0, "true", "false").tolist(), pa.string(), mask=~pairs.truths)
        items = pc.coalesce(items, written)
    return pa.MapArray.from_arrays(ends, keys, items)


def _repeats(codes: Any, counts: Any) -> bool:
    """Whether a row has the same twice, of codes of all rows behind each other."""
    width = int(counts[0])
    if width and (counts == width).all():
        table = codes.reshape(-1, width)
        if (table == table[0]).all():
            return len(np.unique(table[0])) < width
    rows = np.repeat(np.arange(len(counts)), counts)
    return len(np.unique(rows * (int(codes.max()) + 1) + codes)) < len(codes)
