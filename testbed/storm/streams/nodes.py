"""The storm of nodes: ``python -m testbed.storm.streams.nodes``. The exit code says whether the judge is content.

Producers write numbered messages to a super stream on three nodes of RabbitMQ 4.3. One, two or all nodes are killed and
started again, by a seed. Two readers use the source as Spark does, one for each value of `failOnDataLoss`: they log an
epoch before they read it, commit it when they have, and die anywhere in between. At the end a judge that shares nothing
with the source reads the streams. A row that is not in them any more was lost by the broker; its producers say what was
confirmed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pyspark_mq.errors import MqError
from pyspark_mq.spark_source.datasource import MqDataSource
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError, poll
from testbed.publishers.streams import make_super_stream
from testbed.server import at_once
from testbed.storm.streams.audit import Records, StreamVerdict, streams_of, verdict
from testbed.storm.streams.messages import BODY_BYTES, numbers_of
from testbed.storm.streams.parts import Producers, StreamCluster

__all__ = ["is_content", "main"]

STREAM = "nodes"
_OPTIONS = {"broker": "rabbitmq", "stream": STREAM, "startingOffsets": "earliest", "connectTimeout": "5s",
     "reconnectTimeout": "120s", "heartbeat": "5s", "maxOffsetsPerTrigger": "20000"}  # fmt: skip
_TOGETHER_S, _DRAIN_S = 120.0, 240.0
#: How many nodes at once, and how often.
_KILLED = (1, 1, 1, 1, 1, 2, 2, 3)
_AWAY_S, _PAUSE_S = (0.5, 8.0), (2.0, 12.0)
#: How often a reader dies between its log and its rows, and between these and its commit.
_DIES = 0.03
_STARTS = 3


# -- a reader, in a process of its own


def _read(url: str, folder: Path, *, fails: bool) -> None:
    """Run epochs until somebody ends this process; what is known survives in a file."""
    source = MqDataSource({**_OPTIONS, "url": url, "failOnDataLoss": str(fails).lower()})
    reader, state = source.streamReader(source.schema()), folder / "state.json"
    chance = random.Random()

    def log(**known: Any) -> None:
        new = state.with_suffix(".new")
        new.write_text(json.dumps(known))
        new.replace(state)

    def may_die() -> None:
        if chance.random() < _DIES:
            os._exit(9)

    if not state.exists():
        log(epoch=0, start=reader.initialOffset(), end=None)
    while True:
        known = json.loads(state.read_text())
        epoch, start, end = known["epoch"], known["start"], known["end"]
        if end is None:
            end = reader.latestOffset(start, None)
            if end == start:
                time.sleep(0.02)
                continue
            log(epoch=epoch, start=start, end=end)
            may_die()
        streams: list[str] = []
        offsets, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                streams += batch.column("partition").to_pylist()
                offsets.append(batch.column("streamOffset").to_numpy())
                numbers.append(numbers_of(b"".join(batch.column("body").to_pylist()), BODY_BYTES))
        new = folder / "new.npz"
        np.savez(new, stream=np.array(streams, str), offset=np.concatenate(offsets), number=np.concatenate(numbers))
        new.replace(folder / f"{epoch}.npz")
        may_die()
        log(epoch=epoch + 1, start=end, end=None)


class _Reader:
    """A reader, started again whenever it has ended."""

    def __init__(self, url: str, folder: Path, *, fails: bool) -> None:
        folder.mkdir()
        self._url, self.folder, self.fails = url, folder, fails
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.lossy = False

    def keep_alive(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        # One that has failed for loss goes on as its error advises.
        self.lossy = self.lossy or bool(self.errors()["data-loss"])
        fails = self.fails and not self.lossy
        command = [
            sys.executable,
            "-m",
            "testbed.storm.streams.nodes",
            "--read",
            self._url,
            "--folder",
            str(self.folder),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, *(["--fails"] if fails else [])], stderr=log)
        self.starts += 1

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def errors(self) -> Counter[str]:
        text = (self.folder / "log").read_text("utf-8", "replace") if (self.folder / "log").exists() else ""
        return Counter(
            line.split("[mq:")[1].split("]")[0] for line in text.splitlines() if line.startswith("ended: [mq:")
        )

    def place(self) -> int:
        """The offsets that it has read up to, of all partitions."""
        with suppress(OSError, ValueError):
            known = json.loads((self.folder / "state.json").read_text())
            return sum(int(one["next"]) for one in known["start"]["at"].values())
        return 0

    def rows(self) -> dict[str, Records]:
        found: dict[str, list[Records]] = {}
        for file in self.folder.glob("*.npz"):
            with np.load(file) as held:
                for name in np.unique(held["stream"]):
                    mine = held["stream"] == name
                    found.setdefault(str(name), []).append(Records(held["offset"][mine], held["number"][mine]))
        return {
            name: Records(np.concatenate([one.offsets for one in some]), np.concatenate([one.numbers for one in some]))
            for name, some in found.items()
        }


# -- the storm


def _start(members: Sequence[RabbitNode]) -> None:
    """Start nodes; two that start at once may fail at each other (`rabbit_khepri:node_info`), and are started again."""
    for _ in range(_STARTS):
        try:
            at_once(*(member.start for member in members if not member.running))
        except NodeError as failed:
            print(f"started again: {str(failed).splitlines()[0]}", flush=True)
        else:
            return
    at_once(*(member.start for member in members if not member.running))


def _storm(nodes: StreamCluster, readers: list[_Reader], seconds: float, chance: random.Random) -> Counter[str]:
    done: Counter[str] = Counter()
    members, deadline = nodes.nodes.members, time.monotonic() + seconds
    while time.monotonic() < deadline:
        pause = time.monotonic() + chance.uniform(*_PAUSE_S)
        while time.monotonic() < pause:
            for reader in readers:
                reader.keep_alive()
            time.sleep(0.2)
        victims = chance.sample(members, chance.choice(_KILLED))
        for member in victims:
            member.kill()
        if chance.random() < 0.3:
            chance.choice(readers).kill()
            done["readers killed"] += 1
        time.sleep(chance.uniform(*_AWAY_S))
        _start(victims)
        nodes.nodes.wait_together()
        done[f"{len(victims)} of 3 nodes killed"] += 1
        print(f"{deadline - time.monotonic():7.0f} s left, {dict(done)}", flush=True)
    return done


def is_content(found: StreamVerdict, errors: Counter[str], *, broker_lost: bool) -> bool:
    """Whether nothing is lost or twice, and what is not there any more was lost by the broker.

    Args:
        errors: that ended the reader, by short names.
        broker_lost: are messages gone that the broker has confirmed?
    """
    untrue = (found.invented or errors["data-loss"]) and not broker_lost
    return not (found.lost or found.twice or untrue) and found.rows > 0


def main() -> int:
    """Run it; 0 if the judge is content."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--fails", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        try:
            _read(given.read, given.folder, fails=given.fails)
        except MqError as failed:
            print(f"ended: {failed}", file=sys.stderr, flush=True)
        return 1
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-nodes-")))
        folder.mkdir(parents=True, exist_ok=True)
        nodes = stack.enter_context(StreamCluster())
        partitions = make_super_stream(nodes.nodes.members[0].stream_port, STREAM, 2)
        nodes.sync()
        producers = Producers(nodes.places, partitions, 1 << 40, given.rate, folder)
        readers = [_Reader(nodes.url, folder / f"fails-{fails}", fails=fails) for fails in (True, False)]
        for reader in readers:
            stack.callback(reader.kill)
        producers.start()
        try:
            done = _storm(nodes, readers, given.minutes * 60, random.Random(given.seed))
            time.sleep(10)
        finally:
            producers.stop()
            producers.join(30)
        return _judge(nodes, partitions, folder, readers, done)


def _judge(
    nodes: StreamCluster, partitions: list[str], folder: Path, readers: list[_Reader], done: Counter[str]
) -> int:
    confirmed: dict[str, int] = json.loads((folder / "confirmed.json").read_text("utf-8"))
    streams = streams_of(nodes.places, partitions, min(confirmed.values()))
    end = sum(int(one.offsets.max()) + 1 for one in streams.values())

    def is_read() -> bool:
        for reader in readers:
            reader.keep_alive()
        return all(reader.place() >= end for reader in readers)

    drained = poll(is_read, _DRAIN_S, interval_s=0.5)
    missing = 0
    for name, count in confirmed.items():
        numbers = streams[name].numbers
        missing += count - len(np.unique(numbers[numbers < count]))
    good = drained
    print(json.dumps({"confirmed": confirmed, "confirmed and in no stream": missing, "drained": drained, **done}))
    for reader in readers:
        reader.kill()
        found = verdict(0, streams, reader.rows())
        good = good and is_content(found, reader.errors(), broker_lost=missing > 0)
        told = {
            name: value
            for name, value in asdict(found).items()
            if name in {"records", "rows", "lost", "twice", "invented"}
        }
        print(json.dumps({"failOnDataLoss": reader.fails, **told, "starts": reader.starts, "errors": reader.errors()}))
    print("the judge is content" if good else "THE JUDGE IS NOT CONTENT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
