"""Batches of AMQP 1.0 deliveries. Most messages are decoded together, and other messages are decoded one by one.

When a session has received several messages at once, :mod:`pyspark_mq.decode.amqp10_columns` decodes them together
into columns; such messages are called *walked* here. That module skips malformed messages and messages of uncommon
forms. Each skipped message becomes a single delivery between two batches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import methodcaller
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from pyspark_mq.decode.amqp10_columns import (
    COLUMN_TYPES,
    NOT_REDELIVERED,
    PADDING,
    Messages,
    WalkedGroup,
    walked_groups,
)
from pyspark_mq.decode.amqp10_message import (
    DECODERS,
    Raw,
    UnreadableMessage,
    id_of,
    is_not_redelivered,
    lasting,
    property_of,
    unreadable_of,
)
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.batch import BATCH_MIN, MESSAGE_ID, Column, DeliveryBatch, Unreadable, array_of
from pyspark_mq.decode.spans import binary, joined
from pyspark_mq.dedup import IdSource, TextKeys, content_digest, id_text

__all__ = ["Amqp10Batch", "ReadBatch", "WalkedBatch", "find_batches", "message_columns"]

#: Messages that have more bytes than this in total are decoded one by one, because copying them into one buffer takes
#: longer than decoding them together saves.
_BYTES_MAX = 4 << 20
#: The column with the ID, by the kind of ID source.
_ID_COLUMNS = {"message-id": "messageId", "correlation-id": "correlationId"}


class Amqp10Batch(DeliveryBatch):
    """Deliveries of one AMQP 1.0 session, in order of arrival."""

    @classmethod
    def of(cls, items: Sequence[Raw | Amqp10Batch]) -> Amqp10Batch:
        walked = [item for item in items if isinstance(item, WalkedBatch)]
        if len(walked) == len(items):
            return WalkedBatch.joined(walked)
        return ReadBatch(
            [raw for item in items for raw in (item.read.raws if isinstance(item, Amqp10Batch) else (item,))]
        )

    @classmethod
    def size(cls, raw: Raw) -> int:
        return raw.size

    @property
    @abstractmethod
    def read(self) -> ReadBatch:
        """The same deliveries as a batch whose messages are decoded one by one."""

    @abstractmethod
    def column(self, name: str) -> pa.Array:
        """Return the column with this name, which is one of :data:`.COLUMN_TYPES`, as an Arrow array."""

    columns: ClassVar[Mapping[str, Column]] = MappingProxyType(
        {name: methodcaller("column", name) for name in DECODERS}
    )


class ReadBatch(Amqp10Batch):
    """Deliveries whose messages were decoded one by one."""

    def __init__(self, raws: Sequence[Raw]) -> None:
        self.raws = raws
        self.tags = np.array([raw.tag for raw in raws], np.int64)
        self.unreadable = {
            place: unreadable_of(raw) for place, raw in enumerate(raws) if isinstance(raw, UnreadableMessage)
        }

    @property
    def read(self) -> ReadBatch:
        return self

    def taken(self, places: Any) -> ReadBatch:
        return ReadBatch([self.raws[place] for place in places.tolist()])

    @property
    def sizes(self) -> Any:
        return np.array([raw.size for raw in self.raws], np.int64)

    def body(self) -> pa.Array:
        return joined([raw.body for raw in self.raws])

    def ids(self, source: IdSource) -> list[object]:
        if source.kind == "message-id":
            return [id_of(raw.of.id) for raw in self.raws]
        if source.kind == "correlation-id":
            return [id_of(raw.of.correlation_id) for raw in self.raws]
        return [id_of(property_of(raw, source.name)) for raw in self.raws]

    def digests(self) -> list[bytes]:
        # The body of an unreadable message is the whole message. The reason is not part of the digest, because the
        # reason may contain the position of a byte, which differs between deliveries.
        made = super().digests()
        for place in self.unreadable:
            made[place] = content_digest(b"", lasting(self.raws[place].body))
        return made

    def not_redelivered(self) -> list[bool]:
        return list(map(is_not_redelivered, self.raws))

    def column(self, name: str) -> pa.Array:
        if name == "messageId":
            return pa.array([id_text(value) for value in self.ids(MESSAGE_ID)], pa.string())
        return self.body() if name == "body" else array_of(DECODERS[name](self.raws), COLUMN_TYPES[name])


class WalkedBatch(Amqp10Batch):
    """Deliveries whose messages were decoded together, into columns.

    Args:
        messages: the messages as received.
        tags: the numbers of the deliveries in the session.
        group: the columns of the messages.
        reader: the session's reader, which decodes the messages one by one where this is needed.
    """

    def __init__(self, messages: Messages, tags: Any, group: WalkedGroup, reader: SectionReader) -> None:
        self.messages, self.tags, self.group = messages, tags, group
        self.reader = reader

    @classmethod
    def joined(cls, batches: Sequence[WalkedBatch]) -> WalkedBatch:
        """Merge `batches`, in order, into one batch."""
        if len(batches) == 1:
            return batches[0]
        pieces: list[bytes] = []
        begins, ends, groups = [], [], []
        start = end = 0
        for batch in batches:
            (data, *spans), group = batch.messages, batch.group
            if not pieces or data is not pieces[-1]:  # slices of one batch share a buffer, which is copied only once
                pieces.append(data)
                start, end = end, end + len(data)
            begins.append(spans[0] + start)
            ends.append(spans[1] + start)
            groups.append(group._replace(begins=group.begins + start, ends=group.ends + start))
        messages = Messages(b"".join(pieces), np.concatenate(begins), np.concatenate(ends))
        tags = np.concatenate([batch.tags for batch in batches])
        return cls(messages, tags, WalkedGroup.of(groups), batches[0].reader)

    @cached_property
    def read(self) -> ReadBatch:
        return ReadBatch(list(map(self.reader.read, self.tags.tolist(), self.messages.cut())))

    def taken(self, places: Any) -> WalkedBatch:
        return WalkedBatch(self.messages.taken(places), self.tags[places], self.group.taken(places), self.reader)

    @property
    def sizes(self) -> Any:
        return self.messages.ends - self.messages.begins

    def body(self) -> pa.Array:
        return binary(self.messages.data, self.group.begins, self.group.ends)

    def ids(self, source: IdSource) -> Sequence[object]:
        name = _ID_COLUMNS.get(source.kind)
        if name is None:
            return self.read.ids(source)
        found = self.group.column(name)
        texts = pa.types.is_string(found.type) and not found.null_count
        return TextKeys([found]) if texts else list(found.to_pylist())

    def not_redelivered(self) -> list[bool]:
        return list(self.group.column(NOT_REDELIVERED).to_pylist())

    def column(self, name: str) -> pa.Array:
        return self.body() if name == "body" else self.group.column(name)


def find_batches(first: int, messages: Sequence[bytes], reader: SectionReader) -> Iterator[Raw | WalkedBatch]:
    """Decode received messages. Yield the deliveries in order: batches where possible, and single deliveries otherwise.

    Args:
        first: number of the first delivery in the session.
        messages: the encoded messages in order of arrival.
        reader: the session's reader, which decodes single messages.
    """
    count = len(messages)
    if count < BATCH_MIN or sum(map(len, messages)) > _BYTES_MAX:
        yield from map(reader.read, range(first, first + count), messages)
        return
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, count))
    whole = Messages(b"".join([*messages, PADDING]), np.concatenate(([0], ends[:-1])), ends)
    batch, left = _walked(first, whole, reader)
    # Messages that must be decoded alone split the batch. The messages between two of them are a batch if there are at
    # least `BATCH_MIN` of them.
    at = done = 0
    for row in [*left.tolist(), count]:
        run = row - at
        if batch is not None and run >= BATCH_MIN:
            yield batch if run == len(batch) else batch[done : done + run]
        else:
            yield from map(reader.read, range(first + at, first + row), messages[at:row])
        if row < count:
            yield reader.read(first + row, messages[row])
        done, at = done + run, row + 1


def _walked(first: int, messages: Messages, reader: SectionReader) -> tuple[WalkedBatch | None, Any]:
    """Decode messages together as far as possible.

    Returns:
        a batch of the messages that were decoded together, or None if there are none; and the row numbers of all other
        messages.
    """
    groups, left = walked_groups(messages, reader)
    if not groups:
        return None, left
    group = WalkedGroup.of(groups)
    if len(groups) > 1:
        group = group.taken(np.argsort(group.rows))
    return WalkedBatch(messages.taken(group.rows), group.rows + first, group, reader), left


def message_columns(
    messages: Messages, names: Collection[str], reader: SectionReader
) -> tuple[dict[str, pa.Array], list[Unreadable]]:
    """Decode messages into columns.

    Args:
        messages: the encoded messages.
        names: names of the columns.
        reader: decodes messages one by one where this is needed.

    Returns:
        the columns by name, and the unreadable messages. The tag of an unreadable message is its row number.
    """
    walked, left = _walked(0, messages, reader)
    parts: list[Amqp10Batch] = [] if walked is None else [walked]
    if len(left) or walked is None:
        read = map(reader.read, left.tolist(), messages.taken(left).cut())
        parts.append(ReadBatch(list(read)))
    columns = [{name: part.column(name) for name in names} for part in parts]
    malformed = list(parts[-1].unreadable.values())
    if len(parts) == 1:
        return columns[0], malformed
    order = pa.array(np.argsort(np.concatenate([part.tags for part in parts])))
    return {name: pa.concat_arrays([some[name] for some in columns]).take(order) for name in names}, malformed
