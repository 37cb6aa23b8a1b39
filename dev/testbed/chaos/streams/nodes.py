"""The chaos test of nodes: ``python -m testbed.chaos.streams.nodes``. The exit code says whether the checker is
content.

Producers write numbered messages to a super stream on three nodes of RabbitMQ 4.3. One, two or all nodes are killed and
started again, by a seed; the files of streams of some are put back meanwhile to what they were up to half a minute
earlier, as a loss of power does. Two readers use the source as Spark does, one for each value of `failOnDataLoss`: they
log an epoch before they read it, commit it when they have, and die anywhere in between. The one that fails for loss is
started once as its error advises, and then as before.

At the end a checker that shares nothing with the source reads the streams. A row that is not in them any more was lost
by the broker if a put-back took its chunk from a node; no other is accepted.
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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyspark_mq.errors import MqError
from pyspark_mq.spark_source.datasource import MqDataSource
from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.streams.audit import Records, joined, milliseconds, streams_of
from testbed.chaos.streams.files import StreamFiles
from testbed.chaos.streams.messages import BODY_BYTES, numbers_of
from testbed.chaos.streams.parts import Producers, StreamCluster
from testbed.process import NodeError, poll
from testbed.publishers.streams import make_super_stream
from testbed.server import at_once

__all__ = ["Judged", "judged", "main"]

STREAM = "nodes"
_OPTIONS = {"broker": "rabbitmq", "stream": STREAM, "startingOffsets": "earliest", "connectTimeout": "5s",
     "reconnectTimeout": "120s", "heartbeat": "5s", "maxOffsetsPerTrigger": "20000"}  # fmt: skip
_TOGETHER_S, _DRAIN_S = 120.0, 240.0
#: How many nodes at once, and how often.
_KILLED = (1, 1, 1, 1, 1, 2, 2, 3, 3)
#: How often files are copied, and put back if the copy is no older than what a kernel leaves off the disk.
_COPIED, _PUT_BACK, _UNWRITTEN_S = 0.6, 0.7, 30.0
#: How much later others start than those with files that were put back, which may elect one of them.
_LATER_S = (0.0, 10.0)
_AWAY_S, _PAUSE_S = (0.5, 8.0), (2.0, 12.0)
#: How often a reader dies between its log and its rows, and between these and its commit.
_DIES = 0.03
_STARTS = 3


# -- a reader, in a process of its own


def _read(url: str, folder: Path, *, fails: bool, once: bool) -> None:
    """Run epochs, or one, until somebody ends this process; what is known survives in a file."""
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
        found: list[Records] = []
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                streams += batch.column("partition").to_pylist()
                numbers = numbers_of(b"".join(batch.column("body").to_pylist()), BODY_BYTES)
                times_ms = milliseconds(batch.column("chunkTimestamp"))
                found.append(Records(batch.column("streamOffset").to_numpy(), numbers, times_ms))
        new = folder / "new.npz"
        np.savez(new, stream=np.array(streams, str), **asdict(joined(found)))
        new.replace(folder / f"{epoch}.npz")
        may_die()
        log(epoch=epoch + 1, start=end, end=None)
        if once:
            return


class _Reader:
    """A reader, started again whenever it has ended."""

    def __init__(self, url: str, folder: Path, *, fails: bool) -> None:
        folder.mkdir()
        self._url, self.folder, self.fails = url, folder, fails
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = self._failed = 0

    def keep_alive(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        words = ["--read", self._url, "--folder", str(self.folder)]
        before, self._failed = self._failed, self.errors()["data-loss"]
        if self._failed > before:
            words.append("--once")  # for one epoch as its error advises
        elif self.fails:
            words.append("--fails")
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "testbed.chaos.streams.nodes", *words]
            self._process = subprocess.Popen(command, stderr=log)
        self.starts += 1

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _said(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text("utf-8", "replace").splitlines() if log.exists() else []

    def errors(self) -> Counter[str]:
        """The errors that have ended it, by their short names; others are `crash`."""
        ended = (line for line in self._said() if line.startswith(("ended: [mq:", "Traceback")))
        return Counter(line.split("[mq:")[1].split("]")[0] if "[mq:" in line else "crash" for line in ended)

    def told(self) -> set[str]:
        """The streams of which it has said, in errors or in its log, that what it read is not there any more."""
        return {line.split("stream '")[1].split("'")[0] for line in self._said() if "it was read up to offset" in line}

    def is_at(self, ends: Mapping[str, Records]) -> bool:
        """Whether it has read all of these streams."""
        with suppress(OSError, ValueError, TypeError):
            known = json.loads((self.folder / "state.json").read_text())["start"]["at"]
            # A place in what is not there any more may be behind the end, and is older than that.
            return all(
                known[name]["next"] > one.offsets.max() and known[name]["last"][1] >= one.times_ms.max()
                for name, one in ends.items()
            )
        return False

    def rows(self) -> dict[str, Records]:
        found: dict[str, list[Records]] = {}
        for file in self.folder.glob("*.npz"):
            with np.load(file) as held:
                some = Records(held["offsets"], held["numbers"], held["times_ms"])
                for name in np.unique(held["stream"]):
                    found.setdefault(str(name), []).append(some.at(held["stream"] == name))
        return {name: joined(some) for name, some in found.items()}


# -- the chaos test


def _start(members: Mapping[RabbitNode, float]) -> None:
    """Start nodes, each after so many seconds.

    Two that start at once may fail at each other (`rabbit_khepri:node_info`), and are started again.
    """

    def start(member: RabbitNode, after_s: float) -> None:
        time.sleep(after_s)
        if not member.running:
            member.start()

    starts = [partial(start, member, after_s) for member, after_s in members.items()]
    for _ in range(_STARTS):
        try:
            at_once(*starts)
        except NodeError as failed:
            print(f"started again: {str(failed).splitlines()[0]}", flush=True)
        else:
            return
    at_once(*starts)


class _Disks:
    """What the nodes have on their disks.

    Attributes:
        taken: what put-backs took from a node, by stream; others may have it.
    """

    def __init__(self, members: Sequence[RabbitNode], folder: Path, chance: random.Random) -> None:
        self._files = [StreamFiles(member, folder / f"copy-{at}") for at, member in enumerate(members)]
        self._chance = chance
        self.taken: dict[str, list[Records]] = {}

    def save(self) -> None:
        """Copy the files of some nodes."""
        for files in self._files:
            if self._chance.random() < _COPIED:
                files.save()

    def put_back(self, victims: Sequence[int]) -> list[int]:
        """Put files of some victims back, of which there is a new copy; of which."""
        done = []
        for at in victims:
            if self._chance.random() < _PUT_BACK and self._files[at].age_s < _UNWRITTEN_S:
                for name, records in self._files[at].put_back().items():
                    self.taken.setdefault(name, []).append(records)
                done.append(at)
        return done


def _chaos(
    nodes: StreamCluster, disks: _Disks, readers: list[_Reader], seconds: float, chance: random.Random
) -> Counter[str]:
    done: Counter[str] = Counter()
    members, deadline = nodes.nodes.members, time.monotonic() + seconds
    while time.monotonic() < deadline:
        disks.save()
        pause = time.monotonic() + chance.uniform(*_PAUSE_S)
        while time.monotonic() < pause:
            for reader in readers:
                reader.keep_alive()
            time.sleep(0.2)
        victims = chance.sample(range(len(members)), chance.choice(_KILLED))
        for at in victims:
            members[at].kill()
        if chance.random() < 0.3:
            chance.choice(readers).kill()
            done["readers killed"] += 1
        put_back = disks.put_back(victims)
        time.sleep(chance.uniform(*_AWAY_S))
        _start({members[at]: 0.0 if at in put_back else chance.uniform(*_LATER_S) for at in victims})
        nodes.nodes.wait_together()
        done[f"{len(victims)} of 3 nodes killed, {len(put_back)} put back"] += 1
        print(f"{deadline - time.monotonic():7.0f} s left, {dict(done)}", flush=True)
    return done


# -- the checker


@dataclass(frozen=True)
class Judged:
    """What a reader gave, beside the streams and what was taken from nodes.

    Attributes:
        lost: records of the streams without a row.
        twice: rows beyond the first of their record, whether the streams have it still or not.
        replaced: rows that the streams do not have any more, and a put-back took from a node: lost by the broker.
        invented: rows that nobody had.
        untold: streams with rows that are replaced, of which the reader has said nothing.
        errors: that ended it, by short names.
    """

    rows: int
    lost: int
    twice: int
    replaced: int
    invented: int
    untold: list[str]
    errors: Mapping[str, int]

    def is_content(self, *, broker_lost: bool) -> bool:
        """Whether nothing is lost but what the broker lost, nothing is twice, and no loss is told but that.

        Args:
            broker_lost: is there anything that a put-back took and the streams do not have?
        """
        wrong = self.lost or self.twice or self.invented or self.untold or self.errors.get("crash")
        return not wrong and self.rows > 0 and (broker_lost or not self.errors.get("data-loss"))


def judged(
    streams: Mapping[str, Records],
    taken: Mapping[str, Records],
    rows: Mapping[str, Records],
    told: set[str],
    errors: Mapping[str, int],
) -> Judged:
    """Compare the rows of a reader."""
    count = lost = twice = replaced = invented = 0
    untold = []
    for name in {*streams, *rows}:
        there, found = streams.get(name, joined([])), rows.get(name, joined([]))
        gone = found.at(~found.within(there))
        named = int(gone.within(taken.get(name, joined([]))).sum())
        count += len(found)
        lost += int((~there.within(found)).sum())
        twice += found.repeated()
        replaced += named
        invented += len(gone) - named
        if named and name not in told:
            untold.append(name)
    return Judged(count, lost, twice, replaced, invented, untold, dict(errors))


def main() -> int:
    """Run it; 0 if the checker is content."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--fails", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        try:
            _read(given.read, given.folder, fails=given.fails, once=given.once)
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
        chance = random.Random(given.seed)
        disks = _Disks(nodes.nodes.members, folder, chance)
        producers.start()
        try:
            done = _chaos(nodes, disks, readers, given.minutes * 60, chance)
            time.sleep(10)
        finally:
            producers.stop()
            producers.join(30)
        taken = {name: joined(some) for name, some in disks.taken.items()}
        return _checker(nodes, partitions, folder, readers, taken, done)


def _checker(
    nodes: StreamCluster,
    partitions: list[str],
    folder: Path,
    readers: list[_Reader],
    taken: Mapping[str, Records],
    done: Mapping[str, int],
) -> int:
    confirmed: dict[str, int] = json.loads((folder / "confirmed.json").read_text("utf-8"))
    streams = streams_of(nodes.places, partitions, min(confirmed.values()))

    def is_read() -> bool:
        for reader in readers:
            reader.keep_alive()
        return all(reader.is_at(streams) for reader in readers)

    good = poll(is_read, _DRAIN_S, interval_s=0.5)
    lost = {name: some.at(~some.within(streams[name])) for name, some in taken.items()}
    missing = {name: np.setdiff1d(np.arange(count), streams[name].numbers) for name, count in confirmed.items()}
    report = {
        **done,
        "records": sum(map(len, streams.values())),
        "read to the end": good,
        "confirmed": sum(confirmed.values()),
        "records that put-backs took from a node": sum(map(len, taken.values())),
        "of these, in no stream": {name: len(some) - some.repeated() for name, some in lost.items()},
        "confirmed, in no stream": {name: len(some) for name, some in missing.items()},
        "of these, taken by no put-back": sum(
            len(np.setdiff1d(some, taken[name].numbers if name in taken else [])) for name, some in missing.items()
        ),
    }
    print(json.dumps(report))
    for reader in readers:
        reader.kill()
        found = judged(streams, taken, reader.rows(), reader.told(), reader.errors())
        good = found.is_content(broker_lost=any(map(len, lost.values()))) and good
        print(json.dumps({"failOnDataLoss": reader.fails, **asdict(found), "starts": reader.starts}))
    print("the checker is content" if good else "the checker is NOT content")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
