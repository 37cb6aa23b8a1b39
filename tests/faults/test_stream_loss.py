"""What is believed of brokers that err: loss only with proof, by all members; and never a row twice.

Each member of the peer has a log of its own, may lag, and lies for itself.
"""

from __future__ import annotations

import gzip
import json
import logging
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from pyspark_mq.errors import BrokerUnavailableError, DataLossError, MessageError, MqError, RefusedError
from pyspark_mq.streams import ranges
from pyspark_mq.streams.topology import forget_connections
from tests.faults.test_stream_lies import Changed, emitted, log_of, quick  # noqa: F401 - a fixture
from tests.support.certificates import Certificates
from tests.support.effort import each_of, with_all
from tests.support.stream_peer import (
    AUTHENTICATE,
    CLOSE,
    METADATA,
    OPEN,
    STATS,
    SUBSCRIBE,
    Lies,
    Link,
    Log,
    StreamPeer,
    frame,
    stream_peers,
    text,
)
from tests.support.streams import StreamQuery

BOTH = pytest.mark.parametrize("fails", [True, False])
LIMITS = {"connectTimeout": "500ms", "reconnectTimeout": "3s"}


@pytest.fixture
def peers() -> Iterator[list[StreamPeer]]:
    with stream_peers(log_of(8), 2) as peers:
        yield peers


@pytest.fixture
def peer() -> Iterator[StreamPeer]:
    with stream_peers(log_of(8), 1) as (peer,):
        yield peer


def query(peer: StreamPeer, *, fails: bool = True, **options: object) -> StreamQuery:
    return StreamQuery(peer.url, "events", failOnDataLoss=str(fails).lower(), **{**LIMITS, **options})


def again(before: StreamQuery, peer: StreamPeer, *, fails: bool = True, **options: object) -> StreamQuery:
    """The query after a restart, with its checkpoint."""
    found = query(peer, fails=fails, **options)
    found.offset = before.offset
    return found


def rows(asked: StreamQuery, tasks: list[ranges.Range]) -> list[tuple[int, bytes]]:
    return [(row["streamOffset"], row["body"]) for row in asked.read(tasks)]


def lost(asked: StreamQuery) -> int:
    return int(asked.planner.report()["lost"])


# -- chunks that are missing, or broken


def first_too_high(log: Log, index: int) -> list[bytes]:
    data = bytearray(log.chunks[index].data)
    struct.pack_into(">Q", data, 24, log.chunks[index].first + 1)
    return [bytes(data)]


def half_the_records(log: Log, index: int) -> list[bytes]:
    data = bytearray(log.chunks[index].data)
    struct.pack_into(">I", data, 4, 1)
    return [bytes(data)]


def left_out(log: Log, index: int) -> list[bytes]:
    return [log.chunks[index + 1].data]


def damaged(log: Log, index: int) -> list[bytes]:
    return [log.chunks[index].data[:-1] + b"!"]


@BOTH
@pytest.mark.parametrize("change", [first_too_high, half_the_records, left_out, damaged])
def test_what_is_wrong_once_is_asked_again(
    peer: StreamPeer, fails: bool, change: Callable[[Log, int], list[bytes]]
) -> None:
    peer.lies = Changed(4, change, 1)
    asked = query(peer, fails=fails)
    assert emitted(asked) == peer.logs["events"].rows()
    assert lost(asked) == 0


def other_crc(log: Log, index: int) -> list[bytes]:
    data = bytearray(log.chunks[index].data)
    data[32] ^= 1
    return [bytes(data)]


@BOTH
@pytest.mark.parametrize("change", [first_too_high, half_the_records, damaged, other_crc])
@pytest.mark.parametrize("index", [0, 3, -1])
@pytest.mark.parametrize("turn", each_of(range(4)))
def test_a_head_that_is_wrong_once_is_never_believed(
    peer: StreamPeer, fails: bool, change: Callable[[Log, int], list[bytes]], index: int, turn: int
) -> None:
    """Whoever asks: the plan, the comparison after a restart, or a task."""
    log, found = peer.logs["events"], []
    asked = query(peer, fails=fails, maxOffsetsPerTrigger=10)
    for epoch in range(4):
        if epoch == turn:
            peer.lies = Changed(index % len(log.chunks), change, 1)
        found += emitted(asked)
        asked = again(asked, peer, fails=fails, maxOffsetsPerTrigger=10)
    peer.lies = Lies()
    log.append([b"last"])
    while len(more := emitted(asked)) > 0:
        found += more
    assert found == log.rows()
    assert lost(asked) == 0


@BOTH
@pytest.mark.parametrize("change", [left_out, damaged, half_the_records])
@pytest.mark.parametrize("lacking", [0, 1])
def test_what_one_member_lacks_another_gives(
    peers: list[StreamPeer], fails: bool, change: Callable[[Log, int], list[bytes]], lacking: int
) -> None:
    peers[lacking].lies = Changed(4, change)
    assert emitted(query(peers[0], fails=fails)) == peers[0].logs["events"].rows()


@pytest.mark.parametrize("change", [left_out, damaged, half_the_records])
def test_what_no_member_has_is_an_error_or_skipped(
    peers: list[StreamPeer], change: Callable[[Log, int], list[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    for one in peers:
        one.lies = Changed(4, change)
    with pytest.raises(DataLossError, match="offsets 10 to 12 are gone: no member has"):
        emitted(query(peers[0]))
    with caplog.at_level(logging.WARNING):
        found = emitted(query(peers[0], fails=False))
    assert found == [row for row in peers[0].logs["events"].rows() if row[0] not in range(10, 13)]
    assert "offsets 10 to 12 are gone" in caplog.text


def test_a_last_chunk_that_is_damaged_is_read_around(peer: StreamPeer) -> None:
    log = peer.logs["events"]
    peer.lies = Changed(len(log.chunks) - 1, damaged)
    asked = query(peer, fails=False)
    true = log.rows()
    assert emitted(asked) == true[:-3]
    log.append([b"behind"])
    assert emitted(asked) == [(log.end - 1, b"behind")]


@BOTH
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_batch_leaves_out_no_damaged_chunk_at_its_end_without_saying_so(
    peers: list[StreamPeer], fails: bool, everywhere: bool, caplog: pytest.LogCaptureFixture
) -> None:
    true = [body for _, body in peers[0].logs["events"].rows()]
    for one in peers[: 2 if everywhere else 1]:
        one.lies = Changed(len(one.logs["events"].chunks) - 1, damaged)
    asked = query(peers[0], fails=fails)
    if everywhere and fails:
        with pytest.raises(DataLossError, match="the last chunk is damaged"):
            asked.batch()
        return
    assert asked.batch() == (true[:-3] if everywhere else true)
    assert ("the last chunk is damaged" in caplog.text) == everywhere


@BOTH
def test_a_stream_of_one_chunk_that_is_damaged_waits_for_more(peers: list[StreamPeer], fails: bool) -> None:
    for one in peers:
        one.logs["events"], one.lies = log_of(1), Changed(0, damaged)
    asked = query(peers[0], fails=fails)
    assert emitted(asked) == []
    for one in peers:
        one.logs["events"].append([b"more"])
    asked.look_again()
    if fails:
        with pytest.raises(DataLossError, match="offsets 0 to 2 are gone: no member has an intact chunk"):
            emitted(asked)
    else:
        assert emitted(asked) == [(3, b"more")]


@BOTH
def test_an_offset_to_begin_at_may_be_at_any_member(peers: list[StreamPeer], fails: bool) -> None:
    peers[0].logs["events"].trimmed = 5
    asked = query(peers[0], fails=fails, startingOffsets='{"events": 3}')
    assert emitted(asked) == [row for row in peers[1].logs["events"].rows() if row[0] >= 3]
    assert lost(asked) == 0


@BOTH
def test_retention_of_one_member_takes_nothing_that_another_has(peers: list[StreamPeer], fails: bool) -> None:
    asked = query(peers[0], fails=fails)
    (planned,) = asked.plan()[2]
    peers[0].logs["events"].trimmed = 5
    assert rows(asked, [planned]) == peers[1].logs["events"].rows()
    peers[1].logs["events"].trimmed = 6
    if fails:
        with pytest.raises(DataLossError, match="offsets 0 to 12 are gone: retention removed them"):
            rows(asked, [planned])
    else:
        left = [row for row in peers[0].logs["events"].rows() if row[0] > 12]
        assert rows(asked, [planned]) == left


# -- packed entries that cannot be read


def packed(bodies: list[bytes], *, spoilt: bool = False) -> bytes:
    records = [b"\0\x53\x75\xb0" + struct.pack(">I", len(body)) + body for body in bodies]
    plain = b"".join(struct.pack(">I", len(record)) + record for record in records)
    content = gzip.compress(plain, mtime=0)[: 20 if spoilt else None]
    return struct.pack(">BHII", 0x90, len(bodies), len(plain), len(content)) + content


@pytest.mark.parametrize("tasks", [with_all(1), 4, with_all(11)])
@pytest.mark.parametrize("unreadable", ["fail", "row", "reject"])
def test_an_entry_that_cannot_be_unpacked_costs_no_other_message(
    peer: StreamPeer, unreadable: str, tasks: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = peer.logs["events"] = Log()
    good, bad = [[b"%d-%d" % (entry, at) for at in range(5)] for entry in range(3)], [b"lost"] * 7
    spoilt = packed(bad, spoilt=True)
    log.append([b"before"])
    log.append_packed([(packed(good[0]), good[0]), (spoilt, bad), (packed(good[1]), good[1])])
    log.append(good[2])
    asked = query(peer, onUnreadableMessage=unreadable, minPartitions=tasks)
    if unreadable == "fail":
        with pytest.raises(MessageError, match=r"offsets 6 to 12.*'row'.*'reject'"):
            emitted(asked)
        return
    with caplog.at_level(logging.ERROR):
        found = asked.epoch()
    expected = [row for row in log.rows() if row[1] != b"lost"]
    if unreadable == "row":
        expected.insert(6, (6, spoilt))
        assert "offsets 6 to 12: its header states 7 records" in dict(found[6]["properties"])["unreadable"]
    assert [(row["streamOffset"], row["body"]) for row in found] == expected
    assert ("offsets 6 to 12" in caplog.text) == (unreadable == "reject")


def test_messages_that_are_none_are_left_out_where_that_is_asked_for(peer: StreamPeer) -> None:
    log = peer.logs["events"] = Log()
    log.append([b"one"])
    log._append(b"".join(struct.pack(">I", 3) + b"abc" for _ in range(2)), 2, [b"abc"] * 2, kind=0, commit=True)
    log.append([b"two"])
    assert [body for _, body in emitted(query(peer, onUnreadableMessage="reject"))] == [b"one", b"two"]


# -- ends that are lower


@BOTH
def test_a_first_offset_that_is_told_wrong_is_no_loss(peer: StreamPeer, fails: bool) -> None:
    class High(Lies):
        def stats(self, log: Log, numbers: dict[str, int]) -> dict[str, int]:
            return {**numbers, "first_chunk_id": numbers["committed_chunk_id"] + 5}

    asked = query(peer, fails=fails)
    found = emitted(asked)
    peer.lies = High()
    peer.logs["events"].append([b"new"])
    asked.look_again()
    assert found + emitted(asked) == peer.logs["events"].rows()


@BOTH
def test_a_lower_end_is_waited_for_by_tasks_and_is_never_loss(peers: list[StreamPeer], fails: bool) -> None:
    asked = query(peers[0], fails=fails)
    tasks = asked.plan()[2]
    committed = len(peers[0].logs["events"].chunks)
    for one in peers:
        one.logs["events"].committed = 4

    def commit() -> None:
        for one in peers:
            one.logs["events"].committed = committed

    timer = threading.Timer(1.0, commit)
    timer.start()
    try:
        assert rows(asked, tasks) == peers[0].logs["events"].rows()
    finally:
        timer.join()
    for one in peers:
        one.logs["events"].committed = 4
    with pytest.raises(BrokerUnavailableError, match="the query can notice this only when the next message"):
        rows(asked, tasks)


@BOTH
def test_an_end_that_went_back_doubles_nothing_and_is_no_loss(peers: list[StreamPeer], fails: bool) -> None:
    asked = query(peers[0], fails=fails)
    assert emitted(asked) == peers[0].logs["events"].rows()
    for restarted in (False, True):
        committed = len(peers[0].logs["events"].chunks)
        for one in peers:
            one.logs["events"].committed = 3
        asked = again(asked, peers[0], fails=fails) if restarted else asked
        asked.look_again()
        before = time.monotonic()
        assert emitted(asked) == []
        assert time.monotonic() - before < 3.0
        for one in peers:
            one.logs["events"].committed = committed
            one.logs["events"].append([b"new"])
        asked.look_again()
        assert [body for _, body in emitted(asked)] == [b"new"]
    assert lost(asked) == 0


def test_no_partition_waits_for_another(peer: StreamPeer) -> None:
    peer.logs["other"] = log_of(2, generation=3)
    asked = StreamQuery(peer.url, "events,other", **LIMITS)
    assert len(emitted(asked)) == 30
    peer.logs["events"].committed = 3
    peer.logs["other"].append([b"new"])
    asked.look_again()
    before = time.monotonic()
    assert [body for _, body in emitted(asked)] == [b"new"]
    assert time.monotonic() - before < 2.0


# -- what was replaced


@BOTH
@pytest.mark.parametrize("published", [1, 9])
def test_an_end_that_was_rewritten_is_read_from_where_it_was(
    peers: list[StreamPeer], fails: bool, published: int
) -> None:
    asked = query(peers[0], fails=fails)
    assert emitted(asked) == peers[0].logs["events"].rows()
    for one in peers:
        one.logs["events"].replace_end(3, [[b"new-%d" % number] for number in range(published)])
    begin = peers[0].logs["events"].chunks[-published].first
    asked.look_again()
    if fails:
        with pytest.raises(DataLossError, match=f"chunks from offset {begin} on differ now: its end was rewritten"):
            emitted(asked)
    else:
        assert emitted(asked) == [(begin + number, b"new-%d" % number) for number in range(published)]
        assert emitted(asked) == []
        assert lost(asked) == 0


@BOTH
@pytest.mark.parametrize("count", [with_all(3), 8, with_all(20)])
def test_a_stream_made_again_while_an_epoch_is_open_gives_no_row_twice(
    peers: list[StreamPeer], fails: bool, count: int
) -> None:
    asked = query(peers[0], fails=fails)
    assert len(emitted(asked)) == 24
    for one in peers:
        one.logs["events"].append([b"planned"])
    asked.look_again()
    start, end, tasks = asked.plan()
    for one in peers:
        one.logs["events"] = log_of(count, generation=2)
    # A shorter one says nothing to a task: it waits for its end.
    told = "is not the planned chunk" if count == 20 else "can notice this only when the next message"
    with pytest.raises((DataLossError, BrokerUnavailableError), match=told):
        rows(asked, tasks)
    restarted = again(asked, peers[0], fails=fails)
    if fails:
        with pytest.raises(DataLossError, match="deleted and recreated"):
            restarted.planner.ranges(start, end)
        return
    assert rows(restarted, restarted.planner.ranges(start, end)) == []
    restarted.offset = json.loads(json.dumps(end))
    assert emitted(restarted) == peers[0].logs["events"].rows()
    assert lost(restarted) == 1


@BOTH
def test_of_a_stream_made_again_a_rewritten_end_alone_is_read_again(peers: list[StreamPeer], fails: bool) -> None:
    """The first chunk of the old stream says nothing of the new one."""
    asked = query(peers[0], fails=False)
    emitted(asked)
    for one in peers:
        one.logs["events"] = log_of(12, generation=2)
    asked.look_again()
    assert emitted(asked) == peers[0].logs["events"].rows()
    asked = again(asked, peers[0], fails=fails)
    for one in peers:
        one.logs["events"].replace_end(2, [[b"new"]])
    if fails:
        with pytest.raises(DataLossError, match="chunks from offset 36 on differ now"):
            emitted(asked)
    else:
        assert emitted(asked) == [(36, b"new")]


def test_an_open_epoch_whose_end_was_rewritten_is_read_up_to_there_and_the_rest_with_the_next(
    peers: list[StreamPeer],
) -> None:
    asked = query(peers[0], fails=False)
    start, end, tasks = asked.plan()
    for one in peers:
        one.logs["events"].replace_end(3, [[b"a"], [b"b"]])
    with pytest.raises(DataLossError, match="Restart the query"):
        rows(asked, tasks)
    restarted = again(asked, peers[0], fails=False)
    first = rows(restarted, restarted.planner.ranges(start, end))
    restarted.offset = json.loads(json.dumps(end))
    assert first + emitted(restarted) == peers[0].logs["events"].rows()


def test_a_bound_that_the_stream_does_not_have_any_more_is_fixed_anew(peer: StreamPeer) -> None:
    asked = query(peer, fails=False)
    assert len(emitted(asked)) == 24
    peer.logs["events"].append([b"x"])
    asked.planner.bound()
    peer.logs["events"] = log_of(12, generation=2)
    asked.look_again()
    assert emitted(asked) == peer.logs["events"].rows()
    peer.logs["events"].append([b"later"])
    asked.look_again()
    assert emitted(asked) == []


# -- counting


def test_lost_is_what_is_missing_however_often_it_is_looked_at(peer: StreamPeer) -> None:
    log = peer.logs["events"] = Log()
    for number in range(40):
        log.append([b"%d" % number])
    asked = query(peer, fails=False, minOffsetsPerTrigger=30, maxTriggerDelay="1h")
    asked.offset = None
    assert len(emitted(asked)) == 40
    for number in range(40, 80):
        log.append([b"%d" % number])
        log.trimmed = number - 10
        asked.look_again()
        assert emitted(asked) == []
    for number in range(80, 100):
        log.append([b"%d" % number])
    asked.look_again()
    found = emitted(asked)
    assert found == [row for row in log.rows() if row[0] >= 69]
    assert lost(asked) == 69 - 40


# -- refusals


class Refusing(Lies):
    """Refuses a command for a while."""

    def __init__(self, command: int, code: int, seconds: float) -> None:
        self.command, self.code, self.until_s = command, code, time.monotonic() + seconds

    def answer(self, link: Link, answered: int, answer: bytes) -> bytes:
        if answered != self.command or time.monotonic() > self.until_s:
            return answer
        if answered == METADATA:
            # The code stands behind the nodes and the name.
            return answer.replace(text("events") + struct.pack(">H", 1), text("events") + struct.pack(">H", self.code))
        return frame(answered | 0x8000, answer[8:12] + struct.pack(">H", self.code))


REFUSALS = [(AUTHENTICATE, 8), (OPEN, 12), (SUBSCRIBE, 16), (STATS, 16), (STATS, 2), (SUBSCRIBE, 2), (METADATA, 2)]


@BOTH
@pytest.mark.parametrize(("command", "code"), each_of(REFUSALS, 3))
@pytest.mark.parametrize("begins", [True, False])
def test_a_refusal_that_passes_is_not_final(
    peer: StreamPeer, fails: bool, command: int, code: int, begins: bool
) -> None:
    asked = query(peer, fails=fails, connectTimeout="3s", reconnectTimeout="6s")
    true = peer.logs["events"].rows()
    if begins:
        peer.lies = Refusing(command, code, 1.0)
        assert emitted(asked) == true
        return
    tasks = asked.plan()[2]
    forget_connections()
    peer.lies = Refusing(command, code, 1.0)
    assert rows(asked, tasks) == true
    assert lost(asked) == 0


class Away(Refusing):
    """Hangs up for a while before it refuses for a while: a node that starts."""

    def __init__(self, command: int, code: int, away_s: float, seconds: float) -> None:
        super().__init__(command, code, away_s + seconds)
        self.back_s = time.monotonic() + away_s

    def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
        return b"" if time.monotonic() > self.back_s else None


@pytest.mark.parametrize(("command", "code"), [(OPEN, 12), (STATS, 2), (SUBSCRIBE, 2)])
@pytest.mark.parametrize("planned", [True, False])
def test_a_node_that_refuses_after_it_was_away_is_waited_for(
    peer: StreamPeer, command: int, code: int, planned: bool
) -> None:
    asked = query(peer, connectTimeout="1s", reconnectTimeout="9s")
    tasks = asked.plan()[2]
    forget_connections()
    peer.lies = Away(command, code, 1.5, 0.6)
    if planned:
        peer.logs["events"].append([b"new"])
        asked.look_again()
        tasks = asked.plan()[2]
    assert rows(asked, tasks) == peer.logs["events"].rows()


class HangingUp(Lies):
    """Hangs up on whoever asks."""

    def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
        return None


@BOTH
@pytest.mark.parametrize("planned", [True, False])
def test_a_stream_is_deleted_when_all_its_members_say_so(peers: list[StreamPeer], fails: bool, planned: bool) -> None:
    asked = query(peers[0], fails=fails)
    _, end, tasks = asked.plan()
    peers[1].lies = HangingUp()
    log = peers[0].logs.pop("events")
    asked.look_again()
    forget_connections()
    with pytest.raises(BrokerUnavailableError, match="does not exist"):
        asked.planner.latest(end) if planned else rows(asked, tasks)
    peers[0].logs["events"], peers[1].lies = log, Lies()
    assert rows(asked, tasks) == log.rows()
    for one in peers:
        del one.logs["events"]
    if fails:
        with pytest.raises(DataLossError, match="deleted"):
            asked.planner.latest(end) if planned else rows(asked, tasks)


def test_what_an_epoch_lacks_is_counted_once_though_it_is_planned_again(peer: StreamPeer) -> None:
    class Missing(Lies):
        until_s = time.monotonic() + 0.8

        def frames(self, link: Link, command: int, content: bytes) -> bytes:
            is_lied_about = command == STATS and text("other") in content and time.monotonic() < self.until_s
            return frame(STATS | 0x8000, content[:4] + struct.pack(">H", 2)) if is_lied_about else b""

    peer.logs["other"] = log_of(2, generation=3)
    asked = StreamQuery(peer.url, "events,other", failOnDataLoss="false", **LIMITS)
    start, end, _ = asked.plan()
    peer.logs["events"].replace_end(2, [[b"new"]])
    restarted = StreamQuery(peer.url, "events,other", failOnDataLoss="false", **LIMITS)
    peer.lies = Missing()
    assert len(restarted.read(restarted.planner.ranges(start, end))) == 24
    assert lost(restarted) == 6


def test_a_refusal_that_stays_is_an_error_of_its_own_kind(peer: StreamPeer) -> None:
    asked = query(peer, reconnectTimeout="1s")
    tasks = asked.plan()[2]
    forget_connections()
    peer.lies = Refusing(AUTHENTICATE, 8, 60)
    with pytest.raises(RefusedError, match="user or password is wrong"):
        rows(asked, tasks)
    with pytest.raises(RefusedError, match="user or password is wrong"):
        query(peer).plan()


# -- slow networks, bad addresses


def test_a_first_chunk_that_takes_longer_than_anybody_waits_at_first_is_read(peer: StreamPeer) -> None:
    class Slow(Lies):
        def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
            time.sleep(0.7 if index == 0 else 0)  # the fixture waits 0.25 s
            return super().deliver(link, subscription, log, index)

    asked = query(peer, connectTimeout="2s")
    tasks = asked.plan()[2]
    peer.lies = Slow()
    assert rows(asked, tasks) == peer.logs["events"].rows()


def test_a_chunk_may_take_as_long_as_it_does_not_stop(peer: StreamPeer) -> None:
    class Trickling(Lies):
        def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
            whole = super().deliver(link, subscription, log, index)[0][0]
            if index == 2:
                for at in range(0, len(whole), 8):
                    link.send(whole[at : at + 8])
                    time.sleep(0.1)
                return [], index + 1
            return [whole], index + 1

    peer.lies = Trickling()
    assert emitted(query(peer)) == peer.logs["events"].rows()


def test_an_address_that_swallows_packets_is_tried_once(peer: StreamPeer) -> None:
    with socket.socket() as swallowing, socket.socket() as filling:
        swallowing.bind(("127.0.0.1", 0))
        swallowing.listen(0)
        filling.setblocking(False)
        with suppress(BlockingIOError):
            filling.connect(swallowing.getsockname())

        class Elsewhere(Lies):
            def members(self, members: list[tuple[str, int]]) -> list[tuple[str, int]]:
                return [swallowing.getsockname()]

        peer.lies = Elsewhere()
        asked = query(peer, connectTimeout="1s", minPartitions=3)
        begun = time.monotonic()
        found = emitted(asked)
        for _ in range(5):
            peer.logs["events"].append([b"more"])
            found += emitted(asked)
        assert found == peer.logs["events"].rows()
        assert time.monotonic() - begun < 2.0


def test_a_host_outside_the_certificate_is_passed_over_for_the_url(certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.cert_file, certificates.server.key_file)
    with StreamPeer(host="127.0.0.2", tls=context) as outside, StreamPeer(tls=context) as peer:
        outside.logs = peer.logs
        peer.logs["events"] = log_of(3)
        peer.members = outside.members
        asked = StreamQuery(peer.url, "events", **LIMITS, **{"tls.caFile": certificates.ca.cert_file})
        assert emitted(asked) == peer.logs["events"].rows()
        assert outside.links > 0


class Balancer(Lies):
    """Nodes behind one address, whose own names do not resolve here; some of them lack a chunk."""

    def __init__(self, nodes: int, lacking: set[int], *, reached: int | None = None) -> None:
        self._nodes, self._lacking, self._reached = nodes, lacking, reached or nodes
        self._turn, self._of = 0, dict[Link, int]()

    def members(self, members: list[tuple[str, int]]) -> list[tuple[str, int]]:
        return [(f"node-{number}.invalid", 5552) for number in range(self._nodes)]

    def answer(self, link: Link, command: int, answer: bytes) -> bytes:
        if command != OPEN:
            return answer
        self._turn, self._of[link] = self._turn + 1, self._turn % self._reached
        shown = ("advertised_host", f"node-{self._of[link]}.invalid", "advertised_port", "5552")
        return frame(OPEN | 0x8000, answer[8:14] + struct.pack(">I", 2) + b"".join(map(text, shown)))

    def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
        lacks = index == 4 and self._of[link] in self._lacking
        return super().deliver(link, subscription, log, index + lacks)


@BOTH
def test_members_behind_a_balancer_are_told_apart_by_what_they_advertise(peer: StreamPeer, fails: bool) -> None:
    true = peer.logs["events"].rows()
    peer.lies = Balancer(3, {0, 1})
    assert emitted(query(peer, fails=fails, reconnectTimeout="9s")) == true
    forget_connections()
    peer.lies = Balancer(3, {0, 1, 2})
    if fails:
        with pytest.raises(DataLossError, match="offsets 10 to 12 are gone"):
            query(peer, reconnectTimeout="9s").epoch()
    else:
        found = query(peer, fails=False, reconnectTimeout="9s").bodies()
        assert found == [body for offset, body in true if offset not in range(10, 13)]


@BOTH
def test_one_node_that_answers_for_all_is_no_proof(peer: StreamPeer, fails: bool) -> None:
    peer.lies = Balancer(3, {0}, reached=1)
    with pytest.raises(BrokerUnavailableError, match="offset 10"):
        query(peer, fails=fails).epoch()


@BOTH
def test_a_rewritten_end_is_found_behind_a_balancer(peer: StreamPeer, fails: bool) -> None:
    peer.lies = Balancer(3, set())
    asked = query(peer, fails=fails, reconnectTimeout="9s")
    asked.epoch()
    peer.logs["events"].replace_end(2, [[b"new"]])
    asked.look_again()
    if fails:
        with pytest.raises(DataLossError, match="rewritten"):
            asked.epoch()
    else:
        assert asked.bodies() == [b"new"]


# -- words


def test_a_port_without_tls_is_told(peer: StreamPeer) -> None:
    url = peer.url.replace("rabbitmq-stream:", "rabbitmq-stream+tls:")
    with pytest.raises(MqError, match=r"(?i)tls.*rabbitmq-stream://"):
        StreamQuery(url, "events", **LIMITS).plan()


def test_a_reason_without_end_is_cut(peer: StreamPeer) -> None:
    class Closing(Lies):
        def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
            if command == STATS:
                link.send(frame(CLOSE, struct.pack(">IH", 1, 5) + text("why " * 8_000)))
                return None
            return b""

    peer.lies = Closing()
    with pytest.raises(BrokerUnavailableError) as closed:
        query(peer, reconnectTimeout="1s").plan()
    assert "why why" in str(closed.value)
    assert len(str(closed.value)) < 2_000


def test_an_error_advises_what_is_not_set_already(peer: StreamPeer) -> None:
    errors = []
    for fails in (True, False):
        asked = query(peer, fails=fails)
        tasks = asked.plan()[2]
        peer.logs["events"] = log_of(12, generation=2)
        with pytest.raises(DataLossError) as failed:
            rows(asked, tasks)
        errors.append("failOnDataLoss" in str(failed.value))
        peer.logs["events"] = log_of(8)
    assert errors == [True, False]


# -- ends that shrink: a replica that has just become the leader knows of fewer chunks


def test_an_end_is_never_below_one_that_this_process_has_seen(peer: StreamPeer) -> None:
    asked = query(peer)
    first = asked.planner.latest(asked.planner.initial())
    committed = len(peer.logs["events"].chunks)
    peer.logs["events"].committed = 3
    asked.look_again()
    assert asked.planner.latest(first) == first
    peer.logs["events"].committed = committed
    peer.logs["events"].append([b"new"])
    asked.look_again()
    second = asked.planner.latest(first)
    assert rows(asked, asked.planner.ranges(first, second)) == [(26, b"new")]


def test_an_end_is_never_below_the_one_of_an_epoch_that_is_run_again(peer: StreamPeer) -> None:
    log = peer.logs["events"]
    start = query(peer).planner.initial()
    end = query(peer).planner.latest(start)
    asked = query(peer)
    tasks = asked.planner.ranges(start, end)
    assert rows(asked, tasks) == log.rows()
    log.committed = 3
    asked.look_again()
    assert asked.planner.latest(end) == end


# -- what it costs


class Counting(Lies):
    """Counts requests, without the ends of subscriptions and credit."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
        if command in {STATS, SUBSCRIBE, METADATA}:
            self.seen[command] += 1
        return b""

    def taken(self) -> Counter[int]:
        taken, self.seen = self.seen, Counter()
        return taken


@pytest.mark.parametrize("limit", [None, 4])
def test_a_plan_asks_for_no_more_than_the_end_and_the_chunk_before_it(
    peer: StreamPeer, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr("pyspark_mq.streams.planner._TOPOLOGY_S", 60.0)
    log = peer.logs["events"]
    asked = query(peer, **({} if limit is None else {"maxOffsetsPerTrigger": limit}))
    while emitted(asked):
        pass
    start = asked.offset
    peer.lies = counting = Counting()
    assert asked.planner.latest(start) == start
    assert counting.taken() == {STATS: 1}
    for _ in range(3):
        log.append([b"new"] * 3)
    end = asked.planner.latest(start)
    tasks = asked.planner.ranges(start, end)
    # An epoch with a limit ends at a third chunk, which is read twice: nothing else vouches for its head.
    assert counting.taken() == {STATS: 1, SUBSCRIBE: 2 if limit is None else 4}
    asked.read(tasks)
    assert counting.taken() == {SUBSCRIBE: 1}
    log.append([b"new"])
    log.trimmed = 3
    assert asked.planner.latest(end) != end
    assert counting.taken()[SUBSCRIBE] <= (3 if limit is None else 5)
