"""Brokers that lie: each row of a range once and in order, or an error that says what is wrong; and an end in time.

The peer knows what its streams truly hold. What no reader can see is not asked of it: bytes within a range that were
changed together with their CRC.
"""

from __future__ import annotations

import logging
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from pyspark_mq.errors import BrokerUnavailableError, DataLossError, MqError
from pyspark_mq.streams import planner, ranges, tail, topology
from pyspark_mq.streams.topology import forget_connections
from tests.support.stream_peer import (
    CREDIT,
    METADATA,
    OPEN,
    PEER,
    STATS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UPDATE,
    Lies,
    Link,
    Log,
    StreamPeer,
    chunk_bytes,
    deliver_frame,
    frame,
    text,
)  # fmt: skip
from tests.support.streams import StreamQuery

#: Nothing here takes longer, whatever the broker says.
LIMIT_S = 8.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same waits, a twentieth as long."""
    monkeypatch.setattr(ranges, "_WAIT_S", 0.25)
    monkeypatch.setattr(topology, "_PAUSE_S", 0.01)
    monkeypatch.setattr(topology, "_PAUSE_MAX_S", 0.1)
    monkeypatch.setattr(tail, "_EMPTY_S", 0.1)
    monkeypatch.setattr(tail, "_ELECTED_S", 0.5)
    monkeypatch.setattr(planner, "_TOPOLOGY_S", 0.05)
    yield
    forget_connections()


@pytest.fixture
def peer() -> Iterator[StreamPeer]:
    with StreamPeer() as peer:
        peer.logs["events"] = log_of(8)
        yield peer


def log_of(chunks: int, *, generation: int = 1) -> Log:
    log = Log(generation)
    for number in range(chunks):
        log.append([b"%d-%d-%d" % (generation, number, at) for at in range(3)])
        if number % 3 == 2:
            log.note()
    return log


def query(peer: StreamPeer, **options: object) -> StreamQuery:
    return StreamQuery(peer.url, "events", connectTimeout="500ms", reconnectTimeout="1s", **options)


def emitted(query: StreamQuery) -> list[tuple[int, bytes]]:
    """The rows of an epoch, in the order in which they came; it comes in time."""
    begun = time.monotonic()
    try:
        return [(row["streamOffset"], row["body"]) for row in query.epoch()]
    finally:
        assert time.monotonic() - begun < LIMIT_S


def refused(query: StreamQuery) -> str:
    """The error of an epoch."""
    with pytest.raises(MqError) as raised:
        emitted(query)
    return str(raised.value)


# -- answers


@pytest.mark.parametrize("command", [PEER, OPEN, METADATA, STATS, SUBSCRIBE])
@pytest.mark.parametrize("left", [4, 5, 7])
def test_an_answer_that_is_cut_off_ends_its_connection_and_nothing_else(
    peer: StreamPeer, command: int, left: int
) -> None:
    class Short(Lies):
        lied = 0

        def answer(self, link: Link, answered: int, answer: bytes) -> bytes:
            if answered != command or self.lied == 1:
                return answer
            self.lied += 1
            return frame(command | 0x8000, answer[8 : 8 + left])

    peer.lies = lies = Short()
    assert emitted(query(peer)) == peer.logs["events"].rows()
    assert lies.lied == 1


def test_a_code_that_nobody_knows_is_asked_again(peer: StreamPeer) -> None:
    class Odd(Lies):
        left = 2

        def answer(self, link: Link, answered: int, answer: bytes) -> bytes:
            if answered not in {STATS, SUBSCRIBE} or not self.left:
                return answer
            self.left -= 1
            return frame(answered | 0x8000, answer[8:12] + struct.pack(">H", 15))

    peer.lies = Odd()
    assert emitted(query(peer)) == peer.logs["events"].rows()


def test_statistics_without_the_end_are_none(peer: StreamPeer) -> None:
    class Nothing(Lies):
        def stats(self, log: Log, numbers: dict[str, int]) -> dict[str, int]:
            return {"first_chunk_id": 0}

    peer.lies = Nothing()
    with pytest.raises(BrokerUnavailableError, match="committed_chunk_id"):
        emitted(query(peer))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70 + ".b", "a\0b", "\ud7ff", "127.0.0.1"])
def test_a_member_that_cannot_be_is_passed_over_for_the_url(peer: StreamPeer, host: str) -> None:
    class Elsewhere(Lies):
        def members(self, members: list[tuple[str, int]]) -> list[tuple[str, int]]:
            return [(host, 70_000)]

    peer.lies = Elsewhere()
    assert emitted(query(peer)) == peer.logs["events"].rows()


def test_members_without_end_do_not_make_a_query_wait_without_end(peer: StreamPeer) -> None:
    class Many(Lies):
        def members(self, members: list[tuple[str, int]]) -> list[tuple[str, int]]:
            return [(f"127.0.0.{'0' * zeros}1", peer.port) for zeros in range(1, 200)]

        def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
            time.sleep(0.1 if command == STATS else 0)
            return None if command == STATS else b""

    peer.lies = Many()
    with pytest.raises(BrokerUnavailableError, match="no useful answer in"):
        emitted(query(peer))


# -- floods


def flood_of(link: Link, one: bytes, *, seconds: float = 20.0) -> None:
    many, end = one * max(1, 60_000 // len(one)), time.monotonic() + seconds
    while time.monotonic() < end:
        link.send(many)


@pytest.mark.parametrize("what", ["heartbeats", "updates", "chunks of no one", "chunks"])
@pytest.mark.parametrize("at", [STATS, SUBSCRIBE, UNSUBSCRIBE])
def test_frames_without_end_are_neither_kept_nor_waited_for(peer: StreamPeer, at: int, what: str) -> None:
    """Instead of the answer, for longer than anybody waits."""
    stored = chunk_bytes(3, bytes(200_000), 1, 1)
    one = {
        "heartbeats": frame(23, bytes(100_000)),
        "updates": b"",
        "chunks of no one": deliver_frame(250, stored),
        "chunks": deliver_frame(0, stored) + deliver_frame(1, stored) + deliver_frame(2, stored),
    }[what]

    class Flood(Lies):
        left = 1

        def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
            if command != at or not self.left:
                return b""
            self.left -= 1
            updates = b"".join(frame(UPDATE, b"\0\6" + text(f"no-{number}" * 10)) for number in range(2_000))
            flood_of(link, one or updates)
            return None

    peer.lies = Flood()
    tracemalloc.start()
    try:
        assert emitted(query(peer)) == peer.logs["events"].rows()
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_updates_of_new_names_are_not_kept(peer: StreamPeer) -> None:
    class Updates(Lies):
        sent = 0

        def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
            if command != CREDIT:
                return b""
            for _ in range(20):
                self.sent += 100
                names = (f"{self.sent}-{number}-" + "x" * 5_000 for number in range(100))
                link.send(b"".join(frame(UPDATE, b"\0\6" + text(name)) for name in names))
            return b""

    peer.lies = lies = Updates()
    tracemalloc.start()
    try:
        assert emitted(query(peer)) == peer.logs["events"].rows()
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
        assert lies.sent >= 2_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 3, 1 << 21, 1 << 30, (1 << 32) - 1])
def test_a_frame_that_is_announced_and_never_comes_holds_neither_time_nor_memory(peer: StreamPeer, size: int) -> None:
    class Announced(Lies):
        left = 1

        def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
            if command != CREDIT or not self.left:
                return b""
            self.left -= 1
            return struct.pack(">IHHB", size, 8, 1, 0)

    peer.lies = Announced()
    assert emitted(query(peer)) == peer.logs["events"].rows()


def test_bytes_that_come_one_by_one_are_a_frame(peer: StreamPeer) -> None:
    class Slow(Lies):
        def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
            whole = deliver_frame(subscription, log.chunks[index].data)
            return [whole[at : at + 1] for at in range(len(whole))], index + 1

    peer.lies = Slow()
    assert emitted(query(peer)) == peer.logs["events"].rows()


# -- chunks


class Changed(Lies):
    """Lies about the chunk at one index, a number of times."""

    def __init__(self, index: int, change: Callable[[Log, int], list[bytes]], times: int = 1 << 30) -> None:
        self.index, self.change, self.left = index, change, times

    def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
        if index != self.index or not self.left:
            return super().deliver(link, subscription, log, index)
        self.left -= 1
        return [deliver_frame(subscription, data) for data in self.change(log, index)], index + 1


def test_a_chunk_that_is_left_out_is_loss(peer: StreamPeer) -> None:
    peer.lies = Changed(4, lambda log, index: [log.chunks[index + 1].data])
    assert "stream 'events': offsets 10 to 12 are gone" in refused(query(peer))


@pytest.mark.parametrize("kind", [1, 2, 3, 200])
def test_messages_are_not_taken_for_notes_of_the_broker(peer: StreamPeer, kind: int) -> None:
    def noted(log: Log, index: int) -> list[bytes]:
        return [log.chunks[index].data[:1] + bytes((kind,)) + log.chunks[index].data[2:]]

    peer.lies = Changed(4, noted)
    assert "stream 'events'" in refused(query(peer))
    peer.lies = Changed(4, noted, 2)
    assert emitted(query(peer)) == peer.logs["events"].rows()


@pytest.mark.parametrize("where", [(8, ">q", -1), (8, ">q", 1 << 62), (16, ">Q", 1 << 63), (24, ">Q", 1 << 63)])
def test_numbers_that_no_checkpoint_can_hold_are_no_chunk(peer: StreamPeer, where: tuple[int, str, int]) -> None:
    at, form, value = where

    def odd(log: Log, index: int) -> list[bytes]:
        data = bytearray(log.chunks[index].data)
        struct.pack_into(form, data, at, value)
        return [bytes(data)]

    for index in (4, len(peer.logs["events"].chunks) - 1):
        peer.lies = Changed(index, odd)
        with pytest.raises((DataLossError, BrokerUnavailableError), match="events"):
            emitted(query(peer))
        peer.lies = Changed(index, odd, 1)
        assert emitted(query(peer)) == peer.logs["events"].rows()


@pytest.mark.parametrize("records", [0, 3])
def test_a_chunk_that_repeats_without_end_is_not_read_without_end(peer: StreamPeer, records: int) -> None:
    class Repeated(Lies):
        def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
            last = index == len(log.chunks) - 1
            if not last and index < 5:
                return super().deliver(link, subscription, log, index)
            first = log.chunks[5].first if records == 0 else 0
            return [deliver_frame(subscription, chunk_bytes(first, b"", records, records))], index

    peer.lies = Repeated()
    with pytest.raises(BrokerUnavailableError):
        emitted(query(peer))
    peer.lies = Lies()
    asked = query(peer)
    tasks = asked.plan()[2]
    peer.lies = Repeated()
    begun = time.monotonic()
    with pytest.raises(MqError, match="stream 'events'"):
        asked.read(tasks)
    assert time.monotonic() - begun < LIMIT_S


def test_more_chunks_than_were_asked_for_end_the_connection(peer: StreamPeer) -> None:
    class More(Lies):
        left = 1

        def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
            if index < 3 or not self.left:
                return super().deliver(link, subscription, log, index)
            self.left -= 1
            return [deliver_frame(subscription, log.chunks[index].data)] * 1_000, index + 1

    peer.lies = More()
    assert emitted(query(peer)) == peer.logs["events"].rows()


@pytest.mark.parametrize("times", [1, 1 << 30])
def test_a_broken_chunk_is_asked_for_again_and_an_error_if_nobody_has_a_good_one(peer: StreamPeer, times: int) -> None:
    peer.lies = Changed(4, lambda log, index: [log.chunks[index].data[:-1] + b"!"], times)
    if times == 1:
        assert emitted(query(peer)) == peer.logs["events"].rows()
    else:
        assert "no member has an intact chunk with offset 10" in refused(query(peer))


# -- what comes and goes


def test_a_time_is_not_taken_for_the_end_because_a_broker_is_slow(peer: StreamPeer) -> None:
    class Slow(Lies):
        since_ms = 1_700_000_000_000 + 10**9 + 20

        def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
            if command == SUBSCRIBE and struct.pack(">Hq", 5, self.since_ms) in content:
                link.send(frame(command | 0x8000, content[:4] + b"\0\1"))
                time.sleep(1.5)
            return b""

    peer.lies = Slow()
    asked = StreamQuery(peer.url, "events", connectTimeout="3s", startingTimestamp=Slow.since_ms)
    assert emitted(asked) == [row for row in peer.logs["events"].rows() if row[0] >= 6]
    assert emitted(query(peer, startingTimestamp=Slow.since_ms + 10**9)) == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_that_is_deleted_while_it_is_planned_is_lost(
    peer: StreamPeer, fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(planner, "_TOPOLOGY_S", 60.0)
    asked = query(peer, failOnDataLoss=str(fails).lower())
    assert emitted(asked) == peer.logs["events"].rows()
    del peer.logs["events"]
    if fails:
        assert "stream 'events': it was deleted after it had been read up to offset 26" in refused(asked)
    else:
        with caplog.at_level(logging.WARNING):
            assert emitted(asked) == []
        assert "it was deleted" in caplog.text


def test_a_partition_that_goes_and_comes_again_is_not_read_again(peer: StreamPeer) -> None:
    class Fewer(Lies):
        shown = ("one", "two")

        def partitions(self, names: list[str]) -> list[str]:
            return [*self.shown]

    peer.lies = lies = Fewer()
    peer.logs["one"], peer.logs["two"] = log_of(2), log_of(2, generation=2)
    peer.supers["events"] = ["one", "two"]
    asked = query(peer, failOnDataLoss="false")
    assert len(emitted(asked)) == 12
    lies.shown = ("two",)
    peer.logs["two"].append([b"new"])
    time.sleep(0.1)
    assert emitted(asked) == [(6, b"new")]
    lies.shown = ("two", "one")
    peer.logs["one"].append([b"newer"])
    time.sleep(0.1)
    assert emitted(asked) == [(6, b"newer")]


def test_a_stream_that_is_replaced_while_it_is_read_is_an_error(peer: StreamPeer) -> None:
    class Replaced(Lies):
        at = 4

        def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
            if index == self.at:
                peer.logs["events"] = log_of(12, generation=2)
            return super().deliver(link, subscription, log, index)

    asked = query(peer)
    tasks = asked.plan()[2]
    for at in range(len(peer.logs["events"].chunks)):
        peer.logs["events"], peer.lies = log_of(8), Replaced()
        peer.lies.at = at
        begun = time.monotonic()
        try:
            rows = [(row["streamOffset"], row["body"]) for row in asked.read(tasks)]
        except DataLossError as failed:
            rows, lost = [], str(failed)
        else:
            lost = ""
        assert "is not the planned chunk" in lost or rows == log_of(8).rows()
        assert time.monotonic() - begun < LIMIT_S
