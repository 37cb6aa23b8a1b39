"""Cuts of the power below the one node of a stream, which confirms what it has not flushed.

Producers write numbered messages, the source reads without Spark, and the power is cut at random moments. Behind each
cut the source has two ways: it goes on, and then its rows are those of the stream; or it says that what it has read is
not there any more. Then a query begins anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_mq.errors import DataLossError
from pyspark_mq.spark_source.datasource import MqDataSource
from testbed.brokers.rabbitmq import RabbitNode
from testbed.brokers.rabbitmq_erlang import SYNC
from testbed.chaos.streams.audit import Records, StreamVerdict, joined, milliseconds, streams_of, verdict
from testbed.chaos.streams.messages import BODY_BYTES, numbers_of
from testbed.chaos.streams.parts import Producers
from testbed.ports import LOOPBACK
from testbed.power.disk import Disk
from testbed.process import NodeError
from testbed.publishers.streams import with_client

__all__ = ["StreamCuts", "run_stream_cuts"]

_STREAM = "power"
_RATE = 2_000
_LIFE_S = (1.0, 4.0)
_UNREAD_S = 0.5
_GOES_ON_S = 90.0


@dataclass(frozen=True, slots=True)
class StreamCuts:
    """What came of a run.

    Attributes:
        cuts: of the power.
        went_on: cuts behind which the query went on.
        said: cuts behind which it was an error that what it had read is not there.
        confirmed: messages.
        verdict: of the rows of the last query, against the stream; `missing` were confirmed and are gone.
    """

    cuts: int
    went_on: int
    said: int
    confirmed: int
    verdict: StreamVerdict


class _Query:
    """The source, and Spark's side of the protocol: an epoch is committed at once."""

    def __init__(self, url: str) -> None:
        options = {"broker": "rabbitmq", "url": url, "stream": _STREAM, "startingOffsets": "earliest"}
        source = MqDataSource({**options, "connectTimeout": "5s", "heartbeat": "2s"})
        self._reader = source.streamReader(source.schema())
        self._offset: dict[str, Any] | None = None
        self._parts: list[Records] = []

    def trigger(self) -> bool:
        """One trigger; whether it had rows."""
        start = self._reader.initialOffset() if self._offset is None else self._offset
        end = self._reader.latestOffset(start, None)
        found = []
        for partition in self._reader.partitions(start, end):
            for batch in self._reader.read(partition):
                numbers = numbers_of(b"".join(batch.column("body").to_pylist()), BODY_BYTES)
                times_ms = milliseconds(batch.column("chunkTimestamp"))
                found.append(Records(batch.column("streamOffset").to_numpy(), numbers, times_ms))
        self._parts += found
        self._offset = json.loads(json.dumps(end))
        return bool(found)

    def rows(self) -> Records:
        """All of them so far."""
        return joined(self._parts)


def run_stream_cuts(cuts: int, seed: int, say: Callable[[str], None]) -> StreamCuts:
    """Cut the power so many times.

    Args:
        seed: of the moments.
        say: is told what happens.

    Raises:
        NodeError: the disk or the broker cannot be had, or the query does neither.
    """
    chance = random.Random(seed)
    said = 0
    with _below() as (disk, node, folder):
        places = [(LOOPBACK, node.stream_port)]
        producers = Producers(places, [_STREAM], sys.maxsize, _RATE, folder)
        producers.start()
        query = _Query(node.stream_url())
        try:
            for number in range(1, cuts + 1):
                deadline = time.monotonic() + chance.uniform(*_LIFE_S)
                with disk.written_back(chance):
                    while time.monotonic() < deadline:
                        query.trigger()
                    if number % 2 == 0:
                        # What was read is on the disk, as the kernel does it in half a minute; what comes is not.
                        subprocess.run(["sync", "--file-system", str(disk.path)], check=True)
                        time.sleep(_UNREAD_S)
                    disk.cut()
                _off(node)
                disk.restore()
                node.start()
                try:
                    _goes_on(query)
                except DataLossError as lost:
                    said += 1
                    say(f"cut {number}: {lost}")
                    query = _Query(node.stream_url())
                    _goes_on(query)
                else:
                    say(f"cut {number}: it goes on")
        finally:
            producers.stop()
        while query.trigger():
            pass
        confirmed = producers.count
        streams = streams_of(places, [_STREAM], 0)
        found = verdict(confirmed, streams, {_STREAM: query.rows()})
    return StreamCuts(cuts, cuts - said, said, confirmed, found)


@contextlib.contextmanager
def _below() -> Iterator[tuple[Disk, RabbitNode, Path]]:
    """A disk, a node on it with the stream, and a folder beside it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-power-")))
        disk = Disk(folder)
        stack.callback(disk.close)
        node = RabbitNode(version="4.3", plugins=("rabbitmq_stream",), data=disk.path / "broker")
        stack.enter_context(node)
        stack.callback(_off, node)
        with_client(node.stream_port, lambda client: client.create_stream(_STREAM))
        node.eval(SYNC)
        os.sync()  # what is declared was so long ago
        yield disk, node, folder


def _goes_on(query: _Query) -> None:
    """Trigger until there are rows.

    Raises:
        DataLossError: what was read is not there.
        NodeError: there are none.
    """
    deadline = time.monotonic() + _GOES_ON_S
    while not query.trigger():
        if time.monotonic() > deadline:
            raise NodeError(f"the query of stream '{_STREAM}' reads nothing, and says nothing")


def _off(node: RabbitNode) -> None:
    """The machine of the broker is off: nothing of it lives, nor has a file open."""
    node.kill()
    node.end_helpers()
