"""Decodes many AMQP 1.0 messages together into columns, without a Python object for each message.

NumPy *walks* all messages at the same time: it goes from one field to the next, and finds the positions at which the
field begins and ends in each message. From these positions :mod:`pyspark_mq.decode.spans` makes Arrow arrays.

This is possible only for messages of common forms. The header and the annotations must be equal in all messages of a
group, byte by byte. In `properties`, `group-id` must be null. Each other field must be null or have one type: binary
for `user-id`, timestamp for the two times, uint for `group-sequence`, and text for all other fields, including IDs.
`application-properties` may have text, whole numbers, booleans and nulls. The body must be one section with binary,
text or null. All other messages are skipped here and decoded one by one by :mod:`pyspark_mq.decode.amqp10_sections`. So
only that module decides whether a message is malformed. For messages that are not skipped, both modules give equal
columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_mq.brokers.destinations import as_row
from pyspark_mq.decode.amqp10_message import DECODERS, OF_PROPERTIES, Named, Raw, is_not_redelivered
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.amqp10_walk import Walk, Walked, prefix_of
from pyspark_mq.decode.batch import INT64_MAX
from pyspark_mq.decode.columns import COLUMNS, TIMESTAMP
from pyspark_mq.decode.spans import binary, decimals, distinct, is_ascii, text

__all__ = ["COLUMN_TYPES", "NOT_REDELIVERED", "PADDING", "Messages", "WalkedGroup", "walked_groups"]

#: Padding after the last message, so that reading a number needs no bounds check.
PADDING = bytes(16)
#: Walking fewer messages than this takes longer than decoding them one by one.
_WALKED_MIN = 16
#: Name of an internal column, which has the result of :meth:`.DeliveryBatch.not_redelivered`.
NOT_REDELIVERED = "not_redelivered"
#: Types of the columns that depend only on the bytes of a message.
COLUMN_TYPES: Mapping[str, pa.DataType] = {name: column.kind for name, column in COLUMNS.items() if column.decoded}
_TYPES = {**COLUMN_TYPES, NOT_REDELIVERED: pa.bool_()}
#: How many different beginnings (header and annotations) of messages to look for. Messages with further beginnings are
#: decoded one by one.
_ROUNDS = 4


class Messages(NamedTuple):
    """Encoded messages in one buffer, in ascending order of their positions.

    Attributes:
        data: the buffer, which ends with :data:`PADDING`.
        begins, ends: positions in the buffer at which each message begins and ends, as arrays of 64-bit integers.
    """

    data: bytes
    begins: Any
    ends: Any

    def taken(self, rows: Any) -> Messages:
        """Return the messages with the row numbers `rows`, an integer array."""
        return Messages(self.data, self.begins[rows], self.ends[rows])

    def cut(self) -> Iterator[bytes]:
        """Yield the bytes of each message."""
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            yield self.data[begin:end]


class WalkedGroup(NamedTuple):
    """Columns of messages that were decoded together.

    Attributes:
        rows: the row numbers of the messages, ascending.
        columns: by name, the columns whose values differ between the messages.
        constants: by name, the value of each column that has the same value in all messages. A column that is neither
            in `columns` nor in `constants` is null.
        begins, ends: positions at which each body begins and ends.
    """

    rows: Any
    columns: dict[str, pa.Array]
    constants: Mapping[str, object]
    begins: Any
    ends: Any

    def column(self, name: str) -> pa.Array:
        """Return the column with this name as an Arrow array."""
        if name in self.columns:
            return self.columns[name]
        kind, value, count = _TYPES[name], self.constants.get(name), len(self.rows)
        return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)

    def taken(self, places: Any) -> WalkedGroup:
        """Return the messages with the indices `places`, an integer array in any order.

        The columns are copied, not shared, because other code takes the size of a column from its buffers.
        """
        columns = {name: column.take(pa.array(places)) for name, column in self.columns.items()}
        return WalkedGroup(self.rows[places], columns, self.constants, self.begins[places], self.ends[places])

    @classmethod
    def of(cls, groups: Sequence[WalkedGroup]) -> WalkedGroup:
        """Merge `groups`, in order, into one group."""
        first = groups[0]
        if len(groups) == 1:
            return first
        varying = {name for group in groups for name in group.columns}
        for name in {name for group in groups for name in group.constants}:
            if any(group.constants.get(name) != first.constants.get(name) for group in groups):
                varying.add(name)
        columns = {name: pa.concat_arrays([group.column(name) for group in groups]) for name in varying}
        rows, begins, ends = (
            np.concatenate(parts) for parts in zip(*((one.rows, one.begins, one.ends) for one in groups), strict=True)
        )
        return cls(rows, columns, first.constants, begins, ends)


def walked_groups(messages: Messages, reader: SectionReader) -> tuple[list[WalkedGroup], Any]:
    """Decode messages together, in groups with equal beginnings, as far as possible.

    Returns:
        the groups, and the row numbers of all other messages, which have to be decoded one by one.
    """
    groups: list[WalkedGroup] = []
    others: list[Any] = []
    rows = np.arange(len(messages.begins))
    for _ in range(_ROUNDS):
        if len(rows) < _WALKED_MIN:
            break
        group, done = _walked(messages.taken(rows), reader)
        if not len(done):
            break
        if group is None:
            others.append(rows[done])
        else:
            groups.append(group._replace(rows=rows[done]))
        rows = np.delete(rows, done)
    return groups, np.sort(np.concatenate([rows, *others]))


def _walked(messages: Messages, reader: SectionReader) -> tuple[WalkedGroup | None, Any]:
    """Decode together the messages that begin like the first message.

    Returns:
        a group with the decoded messages, and their row numbers. If some messages have invalid text, repeated
        property names, or a property with a column of its own: None, and the row numbers of these messages, which are
        then decoded one by one. If no
        message can be decoded in this way: None, and no row numbers.
    """
    first = messages.data[messages.begins[0] : messages.ends[0]]
    known = prefix_of(first, reader)
    if known is None:
        return None, ()
    size, like, ttl_ms = known
    walked = Walk(messages.data, messages.begins, messages.ends, first[:size]).walked()
    if not walked.rows.any():
        return None, ()
    source = _Source(messages.data, walked)
    columns, rows = _columns(source, like, ttl_ms), np.flatnonzero(walked.rows)
    if "replyTo" in columns:
        texts, places = distinct(columns["replyTo"])
        shown = [text and as_row(text, reader.forms, like.of.reply_kind) for text in texts]
        columns["replyTo"] = pa.array(shown, pa.string()).take(pa.array(places))
    if source.malformed.any():
        return None, rows[source.malformed]
    constants = {name: DECODERS[name]([like])[0] for name in _OF_THE_BEGINNING}
    constants[NOT_REDELIVERED] = is_not_redelivered(like)
    return WalkedGroup(rows, columns, constants, walked.body_begins, walked.body_begins + walked.body_lengths), rows


class _Source:
    """Makes Arrow arrays of text from the values that a walk has found.

    Attributes:
        walked: the result of the walk.
        malformed: array that tells whether each row is malformed. It is complete once all columns are made.
    """

    def __init__(self, data: bytes, walked: Walked) -> None:
        self._data = data
        self.walked = walked
        self.malformed = np.zeros(len(walked.body_begins), bool)

    def text(
        self, begins: Any, lengths: Any, symbols: Any, valid: Any | None = None, rows: Any | None = None
    ) -> pa.Array:
        """Return the text of each span, that is, of the bytes from one position to another.

        If a text is not UTF-8, or a symbol is not ASCII, mark rows with such a text as malformed and return nulls.

        Args:
            begins: the position at which each span begins, in ascending order.
            lengths: the length of each span.
            symbols: whether each span is a symbol, which must be ASCII.
            valid: whether each span is valid; the text of other spans is null. None if all spans are valid.
            rows: the row of each span; None if there is one span for each row.
        """
        found = binary(self._data, begins, begins + lengths, valid)
        ascii_symbols = not symbols.any() or is_ascii(binary(self._data, begins, begins + lengths, symbols))
        with suppress(ValueError):
            if ascii_symbols:
                return text(found)
        # Do not search for the invalid texts: mark all rows that have non-ASCII text, to decode these one by one.
        more = np.concatenate(([0], np.cumsum(np.frombuffer(self._data, np.uint8) >= 0x80)))
        last = len(self._data)
        wrong = more[np.minimum(begins + lengths, last)] != more[np.minimum(begins, last)]
        if valid is not None:
            wrong &= valid
        self.malformed[wrong if rows is None else rows[wrong]] = True
        return pa.nulls(len(begins), pa.string())


#: Columns of the text fields of section `properties`, by the field's number. Then the numbers of the other fields.
_FIELDS = {
    0: "messageId", 1: "userId", 3: "type", 4: "replyTo", 5: "correlationId", 6: "contentType", 7: "contentEncoding",
}  # fmt: skip
_EXPIRY, _CREATED, _SEQUENCE = 8, 9, 11
_NO_SYMBOLS = np.zeros(1, bool)
#: Columns whose values come from the beginning of a message (header and annotations).
_OF_THE_BEGINNING = ("priority", "persistent", "exchange", "routingKey", "redelivered", "deliveryCount")


def _columns(source: _Source, like: Raw, ttl_ms: int) -> dict[str, pa.Array]:
    walked = source.walked
    # Check all text, even that of columns which are not requested, because invalid text makes a message unreadable.
    if walked.texts.any():
        texts = np.flatnonzero(walked.texts)
        source.text(walked.body_begins[texts], walked.body_lengths[texts], _NO_SYMBOLS, rows=texts)
    made = _texts(source)
    made["properties"] = _maps(source, like.of.named)
    if not walked.fields.keys().isdisjoint((_CREATED, _EXPIRY)):
        made["timestamp"], made["expiration"] = _times(walked, ttl_ms)
    if _SEQUENCE in walked.fields:
        sequence = walked.fields[_SEQUENCE]
        made["groupSequence"] = pa.array(sequence.numbers, mask=~sequence.valid)
    return made


def _texts(source: _Source) -> dict[str, pa.Array]:
    """Return the text fields of section `properties` as columns by name."""
    found: dict[str, pa.Array] = {}
    for number, field in source.walked.fields.items():
        if number in {_EXPIRY, _CREATED, _SEQUENCE}:
            continue
        # An empty ID counts as missing.
        valid = field.valid & (field.lengths > 0) if number == 0 else field.valid
        column = source.text(field.begins, field.lengths, field.symbols, valid)
        if number in _FIELDS:
            found[_FIELDS[number]] = column
    return found


def _times(walked: Walked, ttl_ms: int) -> tuple[pa.Array, pa.Array]:
    """Return columns `timestamp` and `expiration`."""
    nothing = np.zeros(len(walked.body_begins), np.int64)
    created = walked.fields[_CREATED].numbers if _CREATED in walked.fields else nothing
    expires = walked.fields[_EXPIRY].numbers if _EXPIRY in walked.fields else nothing
    if ttl_ms:
        expires = np.where((expires == 0) & (created != 0), created + ttl_ms, expires)
    return _timestamps(created), _timestamps(expires)


def _timestamps(milliseconds: Any) -> pa.Array:
    valid = (milliseconds > 0) & (milliseconds <= INT64_MAX // 1000)
    return pa.array(np.where(valid, milliseconds, 0) * 1000, mask=~valid).cast(TIMESTAMP)


def _maps(source: _Source, named: Named) -> pa.Array:
    """Return column `properties`: the application properties of each row, followed by the entries of `named`.

    The entries of `named` come from other sections, and are the same for all rows. A row is marked as malformed, so
    that its message is decoded alone, if a name occurs twice or a property has a column of its own
    (:data:`.OF_PROPERTIES`).
    """
    pairs = source.walked.pairs
    ends = np.concatenate(([0], np.cumsum(pairs.counts + len(named))))
    if not ends[-1]:
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(ends.astype(np.int32)), nothing, nothing)
    rows = np.repeat(np.arange(len(pairs.counts)), pairs.counts)
    keys = source.text(pairs.key_begins, pairs.key_lengths, _NO_SYMBOLS, rows=rows)
    if keys.null_count:
        return pa.nulls(len(pairs.counts), COLUMN_TYPES["properties"])
    names, codes = distinct(keys)
    alone = frozenset(OF_PROPERTIES.values())
    known = alone | dict(named).keys()
    if not alone.isdisjoint(dict(named)):
        source.malformed[:] = True
    elif not known.isdisjoint(names):
        source.malformed[rows[np.isin(codes, [code for code, name in enumerate(names) if name in known])]] = True
    source.malformed[_repeating(rows, codes, pairs.counts)] = True
    items = source.text(pairs.begins, pairs.lengths, _NO_SYMBOLS, pairs.texts, rows)
    if pairs.whole.any():
        items = pc.coalesce(items, decimals(pairs.numbers, pairs.whole))
    if pairs.truths.any():
        written = pa.array(np.where(pairs.numbers != 0, "true", "false").tolist(), pa.string(), mask=~pairs.truths)
        items = pc.coalesce(items, written)
    if named:
        keys, items = (
            pa.concat_arrays([column, pa.array([pair[part] for pair in named], pa.string())]).take(places)
            for places in [_interleaved(pairs.counts, ends, len(named))]
            for part, column in enumerate((keys, items))
        )
    return pa.MapArray.from_arrays(pa.array(ends.astype(np.int32)), keys, items)


def _interleaved(counts: Any, ends: Any, more: int) -> pa.Array:
    """Return indices that append the entries common to all rows to the own entries of each row.

    Args:
        counts: the number of own entries of each row.
        ends: positions at which the entries of each row end in the result, preceded by 0.
        more: the number of common entries.

    Returns:
        for each entry of the result, its index in an array that has first the own entries of all rows, and then the
        common entries once.
    """
    places = np.empty(ends[-1], np.int64)
    common = (ends[1:, None] - more + np.arange(more)).ravel()
    own = np.ones(len(places), bool)
    own[common] = False
    places[own] = np.arange(counts.sum())
    places[common] = np.tile(counts.sum() + np.arange(more), len(counts))
    return pa.array(places)


def _repeating(rows: Any, codes: Any, counts: Any) -> Any:
    """Return the rows in which a property name occurs twice.

    Args:
        rows: the row of each property.
        codes: for each property, a number that stands for its name.
        counts: the number of properties in each row.
    """
    width = int(counts[0])
    if width and (counts == width).all():
        table = codes.reshape(-1, width)
        if (table == table[0]).all() and len(np.unique(table[0])) == width:
            return rows[:0]
    several = int(codes.max(initial=0)) + 1
    both = np.sort(rows * several + codes)
    return both[1:][both[1:] == both[:-1]] // several
