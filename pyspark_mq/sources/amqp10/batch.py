"""Deliveries of AMQP 1.0 that were looked at together.

What a session takes in at a time is walked as :mod:`pyspark_mq.sources.amqp10.columns` says, and has its columns then.
A message that is not walked is a delivery by itself, between batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_mq.sources.amqp10.columns import PADDING, Group, Messages, walked_groups
from pyspark_mq.sources.amqp10.decoder import Raw
from pyspark_mq.sources.amqp10.sections import SectionReader
from pyspark_mq.sources.connections.decoder import TOGETHER_MIN, RawBatch
from pyspark_mq.sources.connections.spans import binary

__all__ = ["EncodedBatch", "find_batches"]

#: Copies of more cost more than they save.
_BYTES_MAX = 4 << 20


class EncodedBatch(RawBatch):
    """Deliveries whose messages were walked, in order.

    Args:
        messages: as they came.
        tags: their numbers in the session.
        group: their columns.
        reader: of the session.
    """

    def __init__(self, messages: Messages, tags: Any, group: Group, reader: SectionReader) -> None:
        self.messages, self.tags, self.group = messages, tags, group
        self.reader = reader

    @classmethod
    def of(cls, batches: Sequence[EncodedBatch]) -> EncodedBatch:
        """Make one batch of several."""
        if len(batches) == 1:
            return batches[0]
        pieces: list[bytes] = []
        begins, ends, groups = [], [], []
        start = end = 0
        for batch in batches:
            (data, *spans), group = batch.messages, batch.group
            if not pieces or data is not pieces[-1]:  # parts of one batch share their memory
                pieces.append(data)
                start, end = end, end + len(data)
            begins.append(spans[0] + start)
            ends.append(spans[1] + start)
            groups.append(group._replace(begins=group.begins + start, ends=group.ends + start))
        messages = Messages(b"".join(pieces), np.concatenate(begins), np.concatenate(ends))
        tags = np.concatenate([batch.tags for batch in batches])
        return cls(messages, tags, Group.of(groups), batches[0].reader)

    def taken(self, places: Any) -> EncodedBatch:
        group = self.group.taken(np.arange(len(self))[places])
        return EncodedBatch(self.messages.taken(places), self.tags[places], group, self.reader)

    def cut(self) -> list[Raw]:
        return list(map(self.reader.read, self.tags.tolist(), self.messages.cut()))

    @property
    def sizes(self) -> Any:
        """Bytes of each message."""
        return self.messages.ends - self.messages.begins

    def body_column(self) -> Any:
        return binary(self.messages.data, self.group.begins, self.group.ends)

    def column(self, name: str) -> pa.Array:
        """Return the column of that name."""
        return self.group.column(name)


def find_batches(first: int, messages: Sequence[bytes], reader: SectionReader) -> Iterator[Raw | EncodedBatch]:
    """Yield deliveries in order, as many together as can be.

    Args:
        first: number of the first.
        messages: in the order of arrival.
        reader: of the session.
    """
    count = len(messages)
    if count < TOGETHER_MIN or sum(map(len, messages)) > _BYTES_MAX:
        yield from map(reader.read, range(first, first + count), messages)
        return
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, count))
    whole = Messages(b"".join([*messages, PADDING]), np.concatenate(([0], ends[:-1])), ends)
    groups, left = walked_groups(whole, reader)
    if not groups:
        yield from map(reader.read, range(first, first + count), messages)
        return
    group = Group.of(groups)
    if len(groups) > 1:
        group = group.taken(np.argsort(group.rows))
    batch = EncodedBatch(whole.taken(group.rows), group.rows + first, group, reader)
    # Rows that are left part the batch: each run of the others is one, if it is long enough to be worth it.
    at = done = 0
    for row in [*left.tolist(), count]:
        run = int(np.searchsorted(group.rows, row)) - done
        if run >= TOGETHER_MIN:
            yield batch if run == len(batch) else batch[done : done + run]
        else:
            yield from map(reader.read, range(first + at, first + row), messages[at:row])
        if row < count:
            yield reader.read(first + row, messages[row])
        done, at = done + run, row + 1
