"""The verdict: rows in parquet files against records of the streams, read with `rstream` and nothing of the source.

A record is known by its stream and offset, by the time of its chunk, and by the number in its body. A row that is none
of the records is invented, one beyond the first of its record is twice, and a record without a row is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rstream import schema

from testbed.chaos.streams.messages import BODY_BYTES, ENTRY_BYTES, numbers_of
from testbed.publishers.streams import Place, leader_client

__all__ = ["Records", "StreamVerdict", "joined", "milliseconds", "rows_of", "streams_of", "verdict"]

_CREDITS = 20
_QUIET_S = 3.0


@dataclass(frozen=True, slots=True)
class Records:
    """Offsets, numbers, and times of chunks in milliseconds, in any order."""

    offsets: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    times_ms: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)

    def at(self, which: npt.NDArray[Any]) -> Records:
        """Some of them, by a mask or by where they are."""
        return Records(self.offsets[which], self.numbers[which], self.times_ms[which])

    def within(self, others: Records) -> npt.NDArray[np.bool_]:
        """Which of them are among others."""
        return np.isin(self._keys(), others._keys())

    def repeated(self) -> int:
        """How many of them are there beyond the first of their kind."""
        return len(self) - len(np.unique(self._keys()))

    def _keys(self) -> npt.NDArray[np.void]:
        return np.rec.fromarrays([self.offsets, self.numbers, self.times_ms])


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """How the output of a chaos test differs from the streams.

    Attributes:
        sent: messages that were to be published.
        records: of the streams.
        rows: of the output.
        lost, twice, invented: by stream and offset; a row with another body than its record is invented.
        lost_bodies, twice_bodies: by the number in the body, of those that the streams have once.
        missing: numbers that are in no stream: confirmed, and not there.
        repeated: records beyond the first of their number.
    """

    sent: int
    records: int
    rows: int
    lost: int
    twice: int
    invented: int
    lost_bodies: int
    twice_bodies: int
    missing: int
    repeated: int

    @property
    def holds(self) -> bool:
        """Whether each record is in the output once, and each message in a stream."""
        wrong = self.lost + self.twice + self.invented + self.lost_bodies + self.twice_bodies
        return wrong + self.missing + self.repeated == 0 < self.sent


def verdict(sent: int, streams: Mapping[str, Records], output: Mapping[str, Records]) -> StreamVerdict:
    """Compare them.

    Args:
        sent: messages of each stream, numbered from 0.
    """
    counts = dict.fromkeys(("lost", "twice", "invented", "lost_bodies", "twice_bodies", "missing", "repeated"), 0)
    for name in {*streams, *output}:
        there, found = streams.get(name, joined([])), output.get(name, joined([]))
        known = found.within(there)
        counts["lost"] += int((~there.within(found)).sum())
        counts["twice"] += found.at(known).repeated()
        counts["invented"] += int((~known).sum())
        in_stream, in_output = _counted(there.numbers, sent), _counted(found.numbers, sent)
        counts["missing"] += int((in_stream == 0).sum())
        counts["repeated"] += int(np.maximum(in_stream - 1, 0).sum())
        counts["lost_bodies"] += int(((in_stream == 1) & (in_output == 0)).sum())
        counts["twice_bodies"] += int(np.maximum(in_output - 1, 0)[in_stream == 1].sum())
    records, rows = (sum(map(len, side.values())) for side in (streams, output))
    return StreamVerdict(sent * len(streams), records, rows, **counts)


def _counted(numbers: npt.NDArray[np.int64], sent: int) -> npt.NDArray[np.int64]:
    return np.bincount(numbers[numbers < sent], minlength=sent)


def rows_of(files: Iterable[Path]) -> dict[str, Records]:
    """The rows of parquet files, by stream.

    Raises:
        ValueError: one has a body that no producer has written.
    """
    parts: dict[str, list[Records]] = {}
    for file in files:
        table = pq.read_table(file, columns=["partition", "streamOffset", "chunkTimestamp", "body"]).combine_chunks()
        streams = table.column("partition").combine_chunks().dictionary_encode()
        offsets = table.column("streamOffset").to_numpy()
        times_ms = milliseconds(table.column("chunkTimestamp"))
        bodies = table.column("body").to_pylist()
        if any(len(body) != BODY_BYTES for body in bodies):
            raise ValueError(f"{file} has a body of another size")
        numbers = numbers_of(b"".join(bodies), BODY_BYTES)
        codes = np.asarray(streams.indices)
        for code, name in enumerate(streams.dictionary.to_pylist()):
            mine = codes == code
            parts.setdefault(name, []).append(Records(offsets[mine], numbers[mine], times_ms[mine]))
    return {name: joined(some) for name, some in parts.items()}


def streams_of(places: Sequence[Place], streams: Sequence[str], messages: int) -> dict[str, Records]:
    """All records of streams, at their leaders; those that come within seconds behind the last message too.

    Raises:
        ValueError: one has an entry that no producer has written.
    """

    async def read() -> list[Records]:
        return await asyncio.gather(*(_stream_of(places, stream, messages) for stream in streams))

    return dict(zip(streams, asyncio.run(read()), strict=True))


async def _stream_of(places: Sequence[Place], stream: str, messages: int) -> Records:
    parts: list[Records] = []
    arrived = asyncio.Event()
    async with leader_client(places, stream) as client:

        async def note(frame: schema.Deliver) -> None:
            if len(frame.data) != ENTRY_BYTES * frame.num_records:
                raise ValueError(f"{stream}: the chunk at {frame.chunk_first_offset} has other entries")
            offsets = np.arange(frame.chunk_first_offset, frame.chunk_first_offset + frame.num_records)
            times_ms = np.full(frame.num_records, frame.timestamp)
            parts.append(Records(offsets, numbers_of(frame.data, ENTRY_BYTES), times_ms))
            arrived.set()
            await client.credit(1, 1)

        client.add_handler(schema.Deliver, note, name="1")
        await client.subscribe(stream, 1, initial_credit=_CREDITS)
        await client.run_queue_listener_task(1, note)
        last = -1
        while True:
            arrived.clear()
            try:
                await asyncio.wait_for(arrived.wait(), _QUIET_S if last >= messages - 1 else 10 * _QUIET_S)
            except asyncio.TimeoutError:
                break
            last = max(last, int(parts[-1].numbers[-1]))
    return joined(parts)


def joined(parts: Sequence[Records]) -> Records:
    """All of them, one after the other."""
    empty = np.empty(0, np.int64)
    return Records(
        np.concatenate([empty, *(part.offsets for part in parts)]),
        np.concatenate([empty, *(part.numbers for part in parts)]),
        np.concatenate([empty, *(part.times_ms for part in parts)]),
    )


def milliseconds(column: Any) -> npt.NDArray[np.int64]:
    """The times of a column `chunkTimestamp`, in whatever unit: Spark writes nanoseconds."""
    found: npt.NDArray[np.int64] = (
        column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()).to_numpy()
    )
    return found
