"""Many lies of a broker together, by seeds: what a query has emitted is at any time what the stream truly had.

Not asked of a reader is what nobody can see: a chunk of one message that says it is the broker's own, and bytes that
were changed together with their CRC.
"""

from __future__ import annotations

import logging
import random
import struct
import time
from collections.abc import Callable

import pytest

from pyspark_mq.errors import BrokerUnavailableError, MqError
from tests.faults.test_stream_lies import log_of, quick  # noqa: F401 - a fixture
from tests.support.effort import part_of
from tests.support.stream_peer import Lies, Link, Log, StreamPeer, deliver_frame, frame, stream_peers, text
from tests.support.streams import StreamQuery

#: No plan and no read takes longer.
LIMIT_S = 12.0
EPOCHS = 14


class RandomLies(Lies):
    """Lies of all kinds, each with a probability, up to a number in all."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._rate = self._rng.choice((0.02, 0.1, 0.3))
        self._left = self._rng.choice((3, 10, 40))
        self.told: list[str] = []
        #: Where the stream begins is for the broker to say, and what a query is held to afterwards.
        self.begun = False

    def _lies(self, kinds: str) -> str:
        """The kind of the lie that is due, or nothing."""
        if not self._left or self._rng.random() > self._rate:
            return ""
        self._left -= 1
        self.told.append(self._rng.choice(kinds.split()))
        return self.told[-1]

    def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
        lie = self._lies("hangup garbage heartbeat unknown stray update close slow consumer") if command != 9 else ""
        if lie == "hangup":
            return None
        if lie == "slow":
            time.sleep(0.1)
        made: dict[str, Callable[[], bytes]] = {
            "garbage": lambda: self._rng.randbytes(30),
            "heartbeat": lambda: frame(23, b"") * 50,
            "unknown": lambda: frame(0x7777, b"what"),
            "stray": lambda: frame(command | 0x8000, struct.pack(">IH", 10**6, 1)),
            "update": lambda: frame(16, b"\0\6" + text("events")),
            "close": lambda: frame(22, struct.pack(">IH", 1, 10) + text("because")),
            "consumer": lambda: frame(0x1A, struct.pack(">IBB", 5, 0, 1)),
        }
        return made[lie]() if lie in made else b""

    def stats(self, log: Log, numbers: dict[str, int]) -> dict[str, int]:
        first, committed = numbers["first_chunk_id"], numbers["committed_chunk_id"]
        kinds = "nothing not-yet behind ahead lacking low" + " retained" * self.begun
        return {
            "": numbers,
            "nothing": dict.fromkeys(numbers, -1),
            "not-yet": {**numbers, "committed_chunk_id": -1},
            "behind": {**numbers, "committed_chunk_id": log.chunks[0].first if log.chunks else -1},
            "ahead": {
                **numbers,
                "committed_chunk_id": committed + self._rng.choice((1, 5, 2**40, 2**63 - 1 - committed)),
            },
            "retained": {**numbers, "first_chunk_id": first + self._rng.choice((1, 3, 2**40))},
            "lacking": {"first_chunk_id": first},
            "low": {**numbers, "first_chunk_id": -(2**63)},
        }[self._lies(kinds)]

    def begin(self, log: Log, index: int) -> int:
        lie = self._lies("before behind first end")
        where = {"before": max(log.trimmed, index - 2), "behind": index + 1, "first": log.trimmed, "end": log.committed}
        return where.get(lie, index)

    def members(self, members: list[tuple[str, int]]) -> list[tuple[str, int]]:
        hosts = {"nobody": [], "dead": [("127.0.0.1", 1)], "odd": [("a\0b", 70_000)], "hidden": [("no.invalid", 5552)]}
        lie = self._lies(" ".join(hosts))
        return hosts[lie] + members if lie and lie != "nobody" else members if not lie else []

    def answer(self, link: Link, command: int, answer: bytes) -> bytes:
        lie = self._lies("short twice other code none")
        if lie == "short":
            cut = answer[8 : self._rng.randrange(8, len(answer))]
            return frame(command | 0x8000, cut)
        if lie == "code":
            return frame(command | 0x8000, answer[8:12] + struct.pack(">H", self._rng.choice((2, 6, 15, 17, 999))))
        changed = {"twice": answer * 2, "other": answer[:8] + b"\x70" + answer[9:], "none": b""}
        return changed.get(lie, answer)

    def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
        chunk, whole = log.chunks[index], bytearray(log.chunks[index].data)
        true = deliver_frame(subscription, bytes(whole))
        lie = self._lies(
            "skip repeat back swap crc data first records entries size kind magic cut time epoch other nothing more "
            "bytes huge moved stop"
        )
        following = log.chunks[min(index + 1, log.committed - 1)].data
        if lie in {"crc", "data", "first", "records", "entries", "size", "kind", "magic", "time", "epoch"}:
            at = {"crc": 32, "data": 48 + self._rng.randrange(len(whole) - 48), "first": 31, "records": 7, "entries": 3,
                  "size": 39, "kind": 1, "magic": 0, "time": 15, "epoch": 23}[lie]  # fmt: skip
            if lie == "kind" and chunk.records == 1:
                return [true], index + 1
            whole[at] ^= self._rng.choice((1, 2, 3, 128))
            return [deliver_frame(subscription, bytes(whole))], index + 1
        sent = {
            "skip": [],
            "repeat": [true, true],
            "back": [deliver_frame(subscription, log.chunks[max(log.trimmed, index - 1)].data)],
            "swap": [deliver_frame(subscription, following), true],
            "cut": [deliver_frame(subscription, bytes(whole[: self._rng.randrange(len(whole))]))],
            "other": [deliver_frame(subscription ^ 1, bytes(whole)), true],
            "nothing": [],
            "more": [true] * 100,
            "bytes": [true[at : at + 1] for at in range(len(true))],
            "huge": [struct.pack(">IHHB", 1 << 30, 8, 1, subscription)],
            "moved": [frame(16, b"\0\6" + text("events"))],
            "stop": [true[: self._rng.randrange(len(true))]],
        }
        return sent.get(lie, [true]), index + 1


class ChaosTest:
    """A query of a stream that grows, whose broker lies."""

    def __init__(self, peer: StreamPeer, seed: int, *, fails: bool, lies: RandomLies | None = None) -> None:
        self._rng = random.Random(seed + 1)
        self._peer, self._fails = peer, fails
        self.log = peer.logs["events"] = log_of(self._rng.randrange(1, 12))
        self.lies = peer.lies = lies or RandomLies(seed)
        options = {"maxOffsetsPerTrigger": self._rng.choice((4, 11, 1_000)), "failOnDataLoss": str(fails).lower()}
        if self._rng.random() < 0.4:
            options["minPartitions"] = 3
        self._options = options
        self._query = self._new()
        self.rows: list[tuple[int, bytes]] = []
        self.errors: list[str] = []

    def _new(self) -> StreamQuery:
        return StreamQuery(self._peer.url, "events", connectTimeout="300ms", reconnectTimeout="700ms", **self._options)

    def epoch(self) -> None:
        """Plan and read; a query that has failed starts again at its checkpoint."""
        begun = time.monotonic()
        try:
            rows = [(row["streamOffset"], row["body"]) for row in self._query.epoch()]
        except MqError as failed:
            self.errors.append(str(failed))
            named = "events" in str(failed) or isinstance(failed, BrokerUnavailableError)
            offset, self._query = self._query.offset, self._new()
            self._query.offset = offset
        else:
            named = True
            self.rows += rows
            self.lies.begun = self._query.offset is not None
        assert named, self.errors[-1]
        assert time.monotonic() - begun < LIMIT_S, self.lies.told
        if self._rng.random() < 0.5:
            with self._peer.lock:
                count = self._rng.randrange(1, 5)
                self.log.append([b"1-%d-%d" % (len(self.log.chunks), at) for at in range(count)])


def run(seed: int, *, fails: bool, log: pytest.LogCaptureFixture | None = None) -> ChaosTest:
    """Run a chaos test, and hold what was emitted against what was true."""
    with StreamPeer() as peer:
        chaos = ChaosTest(peer, seed, fails=fails)
        for _ in range(EPOCHS):
            chaos.epoch()
        true, found = chaos.log.rows(), chaos.rows
    context = (seed, chaos.lies.told, chaos.errors)
    if fails:
        assert found == true[: len(found)], context
        if not chaos.errors:
            assert len(found) >= len(true) // 2 or len(chaos.lies.told) > 5, context
    elif log is not None and "recreated" not in log.text:
        assert set(found) <= set(true), context
        assert [offset for offset, _ in found] == sorted({offset for offset, _ in found}), context
        through = found[-1][0] if found else -1
        if len(found) < sum(offset <= through for offset, _ in true):
            assert "is false" in log.text, context
    return chaos


@pytest.mark.parametrize("seed", range(part_of(8)))
def test_what_is_emitted_is_what_the_stream_had(seed: int) -> None:
    run(seed, fails=True)


@pytest.mark.parametrize("seed", range(part_of(8)))
def test_what_is_not_emitted_is_in_the_log(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(seed, fails=False, log=caplog)


class NoticedLies(RandomLies):
    """Without what no reader can notice: the CRC covers neither the time nor the epoch of a chunk."""

    def _lies(self, kinds: str) -> str:
        return super()._lies(" ".join(kind for kind in kinds.split() if kind not in {"time", "epoch"}))


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("seed", range(part_of(24)))
def test_one_liar_of_two_members_costs_nothing(seed: int, fails: bool) -> None:
    with stream_peers(log_of(0), 2) as peers:
        chaos = ChaosTest(peers[0], seed, fails=fails, lies=NoticedLies(seed))
        peers[1].logs = peers[0].logs
        for _ in range(EPOCHS):
            chaos.epoch()
        chaos.lies._left = 0
        for _ in range(4):
            chaos.epoch()
        true, found, lies = chaos.log.rows(), chaos.rows, chaos.lies.told
    assert found == true[: len(found)], (lies, chaos.errors)
    assert not any("data-loss" in error for error in chaos.errors), (lies, chaos.errors)
