"""Cuts of the power below a broker: what it had confirmed, and what it had taken an acknowledgement for.

The broker's data are on the disk. A producer sends with confirmations, the source reads without Spark, and the power
of the broker's machine is cut at a random moment. The source goes on, as on another machine; or it is started anew from
its last offset, as where one machine has both, and the checkpoint is synced.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_mq.spark_source.datasource import MqDataSource
from testbed.brokers.node import ProcessNode
from testbed.chaos.audit import MARK_CHARS, Verdict, verdict
from testbed.chaos.chaos import Publisher
from testbed.chaos.queues import PrivateBroker
from testbed.power.disk import Disk
from testbed.process import NodeError

__all__ = ["ENTRIES", "BrokerCuts", "MatrixEntry", "run_broker_cuts"]

_QUEUE = "power"
_RATE = 1_000
_LIFE_S = (1.0, 8.0)
_DRAIN_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class MatrixEntry:
    """A broker and a kind of queue."""

    name: str
    broker: str
    version: str = ""
    quorum: bool = False


ENTRIES: Mapping[str, MatrixEntry] = {
    entry.name: entry
    for entry in (
        MatrixEntry("rabbitmq-classic", "rabbitmq"),
        MatrixEntry("rabbitmq-quorum", "rabbitmq", quorum=True),
        MatrixEntry("rabbitmq-4.3-classic", "rabbitmq", "4.3"),
        MatrixEntry("rabbitmq-4.3-quorum", "rabbitmq", "4.3", quorum=True),
        MatrixEntry("artemis", "artemis"),
        MatrixEntry("activemq", "activemq"),
    )
}


@dataclass(frozen=True, slots=True)
class BrokerCuts:
    """What came of a run.

    Attributes:
        matrix entry: the broker.
        title: its name and version.
        restarted: was the source started anew after each cut?
        cuts: of the power.
        came_again: messages that the broker had taken an acknowledgement for and handed out again, and were dropped.
        verdict: of what was emitted, against what the broker had confirmed.
    """

    entry: MatrixEntry
    title: str
    restarted: bool
    cuts: int
    came_again: int
    verdict: Verdict


class _Reader:
    """The source, and Spark's side of the protocol: a batch is committed at once."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._offset: dict[str, Any] | None = None
        self.emitted: list[str] = []
        self.came_again = 0
        self._start()

    def _start(self) -> None:
        source = MqDataSource(dict(self._options))
        self._reader = source.streamReader(source.schema())
        self._offset = self._offset or self._reader.initialOffset()

    def trigger(self) -> None:
        """One trigger."""
        start = self._offset
        assert start is not None
        end = self._reader.latestOffset(start, None)
        if end == start:
            return
        self._reader.commit(start)
        for partition in self._reader.partitions(start, end):
            for batch in self._reader.read(partition):
                self.emitted += [body[:MARK_CHARS].decode() for body in batch.column("body").to_pylist()]
        self._offset = end

    @property
    def unacked(self) -> int:
        return int(self._told("unacked"))

    def _told(self, name: str) -> int:
        return int((self._reader.reportLatestOffset() or {}).get(name) or 0)

    def stop(self) -> None:
        """Its connections end; what it was told stays in its offset."""
        self.came_again += self._told("duplicatesDropped")
        self._reader.stop()

    def restart(self) -> None:
        """Another process goes on from the last offset."""
        self.stop()
        self._start()


def run_broker_cuts(
    entry: MatrixEntry, cuts: int, seed: int, say: Callable[[str], None], *, restarted: bool, options: Mapping[str, str]
) -> BrokerCuts:
    """Cut the power of the broker's machine so many times.

    Args:
        matrix entry: the broker.
        seed: of the moments.
        say: is told what happens.
        restarted: the source is started anew after each.
        options: of the source.

    Raises:
        NodeError: the disk or the broker cannot be had, or what it has is not read.
    """
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-power-")))
        disk = Disk(folder)
        stack.callback(disk.close)
        broker = PrivateBroker(
            entry.broker, _QUEUE, version=entry.version, quorum=entry.quorum, data=disk.path / "broker"
        )
        stack.enter_context(broker)
        stack.callback(lambda: _off(broker))
        os.sync()  # it was not installed a moment ago
        given = {"broker": broker.name, "url": broker.url, "queue": _QUEUE, "heartbeat": "2s", **broker.options}
        reader = _Reader({**given, "idLog": str(folder / "ids"), **options})
        stack.callback(reader.stop)
        publisher = Publisher(broker.send, sys.maxsize, _RATE)
        publisher.start()
        stack.callback(publisher.stop)
        for number in range(1, cuts + 1):
            deadline = time.monotonic() + chance.uniform(*_LIFE_S)
            with disk.written_back(chance):
                while time.monotonic() < deadline:
                    reader.trigger()
                disk.cut()
            _off(broker)
            disk.restore()
            broker.node.start()
            if restarted:
                reader.restart()
            say(f"{entry.name}: {number} of {cuts} cuts, {len(publisher.sent):,} messages")
        publisher.stop()
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        while broker.node.counts(_QUEUE).total or reader.unacked:
            if time.monotonic() > deadline:
                raise NodeError(f"{entry.name}: {broker.node.counts(_QUEUE)} are not read")
            reader.trigger()
        reader.stop()
        told = verdict(publisher.arrived(reader.emitted), reader.emitted, 0)
        return BrokerCuts(entry, f"{broker.node.title} {broker.node.version}", restarted, cuts, reader.came_again, told)


def _off(broker: PrivateBroker) -> None:
    """The machine of the broker is off: nothing of it lives, nor has a file open."""
    node = broker.node
    node.kill()
    if isinstance(node, ProcessNode):
        node.end_helpers()
