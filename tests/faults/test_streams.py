"""Connections to streams that are cut or silent: each row comes once, whatever byte was the last."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from rstream import AMQPMessage, Producer

from pyspark_mq.decode.amqp10 import message_columns
from pyspark_mq.decode.amqp10_columns import PADDING, Messages
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.streams import ranges
from pyspark_mq.streams.connection import Member
from pyspark_mq.streams.ranges import Range
from pyspark_mq.streams.tail import Copy
from pyspark_mq.streams.topology import forget_connections, persistently
from pyspark_mq.wire.url import parse_urls
from testbed.brokers.rabbitmq import RabbitNode
from testbed.brokers.rabbitmq_erlang import SYNC
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.clusters.rabbitmq import RabbitCluster
from testbed.process import NodeError, poll
from testbed.server import at_once
from tests.plugin import missing
from tests.support import streams
from tests.support.effort import with_all
from tests.support.streams import StreamQuery, publish

node = streams.node
pytestmark = pytest.mark.shares("streams")

#: Of a stream on each of three nodes: some thousands of chunks, so that the middle of a read is one.
ROWS = 40_000
#: More than a session takes from its greeting to its last chunk here.
SESSION_BYTES = 2_000
LAGS_S = 2.0
#: What is called for the process of each replica on a node.
REPLICAS = "[{call}(Pid) || {{_, Pid, _, [osiris_replica]}} <- supervisor:which_children(osiris_server_sup)]"


@pytest.fixture
def proxy(node: RabbitNode) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", node.stream_port) as proxy:
        yield proxy
    forget_connections()


def through(proxy: FaultProxy, tasks: list[Range], reconnect_timeout_s: float = 60.0) -> list[Range]:
    """The same tasks, whose way to the broker is the proxy."""
    member = Member("127.0.0.1", proxy.port)
    urls = parse_urls(f"rabbitmq-stream://guest:guest@127.0.0.1:{proxy.port}/")
    return [
        replace(
            planned,
            members=(member,),
            access=replace(planned.access, urls=urls, reconnect_timeout_s=reconnect_timeout_s),
        )
        for planned in tasks
    ]


@pytest.mark.whole
def test_a_connection_that_is_cut_behind_any_byte_costs_no_row_and_doubles_none(
    node: RabbitNode, proxy: FaultProxy
) -> None:
    stream = f"test-{uuid.uuid4().hex[:12]}"
    bodies = [b"%04d" % number for number in range(20)]
    publish(node.stream_port, stream, bodies, batch=5)
    query = StreamQuery(node.stream_url(), stream)
    tasks = through(proxy, query.plan()[2])
    cuts = 0
    for count in range(1, SESSION_BYTES):
        forget_connections()
        cut = proxy.cut_after(count, Direction.TO_CLIENT)
        assert [row["body"] for row in query.read(tasks)] == bodies
        if not cut.is_set():
            break
        cuts += 1
    proxy.disarm()
    # All of a session was cut: its greeting, and twenty messages with the heads of their chunks.
    assert cuts > 20 * 15


def test_a_connection_that_falls_silent_is_left_for_another(
    node: RabbitNode, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_WAIT_S", 0.5)
    stream = f"test-{uuid.uuid4().hex[:12]}"
    publish(node.stream_port, stream, [b"x"] * 1_000)
    query = StreamQuery(node.stream_url(), stream, connectTimeout="1s")
    tasks = through(proxy, query.plan()[2])
    cut = proxy.cut_after(5_000, Direction.TO_CLIENT)
    assert len(query.read(tasks)) == 1_000
    assert cut.is_set()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitCluster]:
    try:
        cluster = RabbitCluster(version="4.3", plugins=("rabbitmq_stream",))
    except NodeError as absent:
        missing(str(absent))
    with cluster:
        yield cluster


@pytest.mark.parametrize("reads", ["the leader", with_all("a replica")])
def test_the_leader_is_killed_in_the_middle_of_a_read(
    cluster: RabbitCluster, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or all of it is on its way before the leader is killed.
    monkeypatch.setattr(ranges, "_CHUNKS_MAX", 2)
    start_all(cluster)
    stream = f"test-{uuid.uuid4().hex[:12]}"
    bodies = [b"%08d" % number for number in range(ROWS)]
    publish(cluster.members[0].stream_port, stream, bodies, batch=20)
    query = StreamQuery(",".join(member.stream_url() for member in cluster.members), stream)
    _, end, tasks = query.plan()
    (planned,) = tasks
    assert len(planned.members) == len(cluster.members)
    turn = 0 if reads == "the leader" else 1
    leader = next(one for one in cluster.members if one.stream_port == planned.members[0].port)
    rows: list[bytes] = []
    for part in ranges.read_range(replace(planned, turn=turn)):
        (entry,) = part.entries
        plain, begins = entry.unpacked()
        messages = Messages(
            plain + PADDING, np.array(begins[part.low : part.high]), np.array(begins[part.low + 1 : part.high + 1]) - 4
        )
        rows += message_columns(messages, ["body"], SectionReader(counts_acquirers=False))[0]["body"].to_pylist()
        if leader.running and len(rows) > ROWS // 4:
            leader.kill()
    assert not leader.running
    assert rows == bodies
    query.offset = end
    other = next(one for one in cluster.members if one.running)
    assert poll(lambda: published(other, stream), 60, interval_s=1.0)
    assert query.bodies() == [b"behind"]


@pytest.mark.whole
def test_what_is_not_committed_is_in_no_epoch_until_it_is(cluster: RabbitCluster) -> None:
    start_all(cluster)
    stream = f"test-{uuid.uuid4().hex[:12]}"
    publish(cluster.members[0].stream_port, stream, [b"before"])
    query = StreamQuery(",".join(member.stream_url() for member in cluster.members), stream)
    (planned,) = query.plan()[2]
    leader = next(one for one in cluster.members if one.stream_port == planned.members[0].port)
    others = [member for member in cluster.members if member is not leader]
    assert query.bodies() == [b"before"]

    async def publish_in_between(kill: Callable[[], object]) -> None:
        producer = Producer("127.0.0.1", leader.stream_port, username="guest", password="guest")
        await producer.start()
        await producer.send_wait(stream, AMQPMessage(body=b"confirmed"))
        kill()
        await producer.send_batch(stream, [AMQPMessage(body=b"later")] * 50)
        await asyncio.to_thread(check)
        with suppress(Exception):  # it has lost what it would say goodbye to
            await asyncio.wait_for(producer.close(), 5)

    def check() -> None:
        # Metadata wait for a majority of nodes on 4.3, and so does a plan; the leader itself tells where the end is.
        place, access = Member("127.0.0.1", leader.stream_port), planned.access
        assert poll(lambda: persistently(access, [place], lambda one: one.stats(stream)["last_chunk_id"]) > 1, 30)
        assert persistently(access, [place], lambda one: Copy(one, stream)).end.next == 2
        at_once(*(member.start for member in others))
        cluster.wait_together()
        assert poll(lambda: published(others[0], stream), 240, interval_s=1.0)

    asyncio.run(publish_in_between(lambda: [member.kill() for member in others]))
    found: list[bytes] = []

    def all_came() -> bool:
        found.extend(query.bodies())
        return b"behind" in found

    assert poll(all_came, 60, interval_s=0.5)
    # Nobody has confirmed the tail: the next leader has it, or it is gone.
    assert found in ([b"confirmed", *tail, b"behind"] for tail in ([b"later"] * 50, []))


@pytest.mark.whole
def test_a_tail_that_nobody_confirmed_is_gone_when_its_leader_comes_back_last(cluster: RabbitCluster) -> None:
    start_all(cluster)
    stream = f"test-{uuid.uuid4().hex[:12]}"
    publish(cluster.members[0].stream_port, stream, [b"confirmed"])
    for member in cluster.members:
        member.eval(SYNC)  # a node that forgets its part of what elects leaders has none elected
    query = StreamQuery(",".join(member.stream_url() for member in cluster.members), stream)
    (planned,) = query.plan()[2]
    leader = next(one for one in cluster.members if one.stream_port == planned.members[0].port)
    others = [member for member in cluster.members if member is not leader]

    async def publish_alone() -> None:
        async with Producer("127.0.0.1", leader.stream_port, username="guest", password="guest") as producer:
            await producer.send_wait(stream, AMQPMessage(body=b"before"))
            for member in others:
                member.kill()
            await producer.send_batch(stream, [AMQPMessage(body=b"never")] * 50)
            place, access = Member("127.0.0.1", leader.stream_port), planned.access
            stats = lambda: persistently(access, [place], lambda one: one.stats(stream))  # noqa: E731
            assert await asyncio.to_thread(poll, lambda: stats()["last_chunk_id"] >= 2, 30)
            leader.kill()

    with suppress(Exception):  # it has lost what it would say goodbye to
        asyncio.run(asyncio.wait_for(publish_alone(), 60))
    assert not leader.running
    at_once(*(member.start for member in others))
    assert poll(lambda: published(others[0], stream), 90, interval_s=1.0)
    rows = query.epoch()
    query.look_again()
    leader.start()
    cluster.wait_together()
    assert [row["body"] for row in rows] == [b"confirmed", b"before", *[b"behind"] * (len(rows) - 2)]
    assert len(rows) > 2
    (planned,) = StreamQuery(leader.stream_url(), stream).plan()[2]
    for turn in range(len(planned.members)):
        again = query.read([replace(planned, turn=turn)])
        assert again[: len(rows)] == rows
        assert {row["body"] for row in again[len(rows) :]} <= {b"behind"}


@pytest.mark.whole
def test_a_replica_that_lags_behind_the_plan_gives_all_of_the_epoch(cluster: RabbitCluster) -> None:
    start_all(cluster)
    stream = f"test-{uuid.uuid4().hex[:12]}"
    bodies = [b"%08d" % number for number in range(ROWS)]
    publish(cluster.members[0].stream_port, stream, bodies[:10])
    query = StreamQuery(",".join(member.stream_url() for member in cluster.members), stream)
    (planned,) = query.plan()[2]
    query.epoch()
    ports = [member.port for member in planned.members]
    replica = next(one for one in cluster.members if one.stream_port == ports[1])
    # All of the node but the process that writes its copy: it lets in readers, who find less than is committed.
    replica.eval(REPLICAS.format(call="sys:suspend"))
    publish(cluster.members[0].stream_port, stream, bodies[10:], batch=200)
    start, end, _ = query.plan()
    (planned,) = query.planner.ranges(start, end)
    place, rows = Member("127.0.0.1", replica.stream_port), []

    def read() -> None:
        rows.extend(query.read([replace(planned, members=(place,), turn=0)]))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert not poll(lambda: not reader.is_alive(), LAGS_S)
        found = persistently(planned.access, [place], lambda one: Copy(one, stream)).end.next
    finally:
        replica.eval(REPLICAS.format(call="sys:resume"))
        reader.join()
    assert found < planned.end
    assert [row["body"] for row in rows] == bodies[10:]
    assert query.read([planned]) == rows


def start_all(cluster: RabbitCluster) -> None:
    away = [member.start for member in cluster.members if not member.running]
    if away:
        at_once(*away)
    cluster.wait_together()


def published(member: RabbitNode, stream: str) -> bool:
    """Whether a message could be published; while there is no leader it cannot."""
    try:
        publish(member.stream_port, stream, [b"behind"], timeout_s=5.0)
    except Exception:  # noqa: BLE001 - of `rstream`, which has many
        return False
    return True


def test_a_broker_that_stays_away_is_an_error_with_the_offset(node: RabbitNode, proxy: FaultProxy) -> None:
    stream = f"test-{uuid.uuid4().hex[:12]}"
    publish(node.stream_port, stream, [b"x"] * 10)
    query = StreamQuery(node.stream_url(), stream)
    tasks = through(proxy, query.plan()[2], reconnect_timeout_s=1.0)
    proxy.refuse()
    forget_connections()
    with pytest.raises(BrokerUnavailableError, match=f"stream '{stream}', offsets 0 to 9: no progress at offset 0"):
        query.read(tasks)
