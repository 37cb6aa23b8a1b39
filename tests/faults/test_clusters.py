"""Failure matrix, clusters: a leader, a primary, a master goes away, and the next candidate of `url` is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pyspark_mq.brokers import BROKERS
from pyspark_mq.sink.columns import ColumnPlan
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.publisher import write_rows
from pyspark_mq.sink.settings import SinkSettings
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.url import parse_urls
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.node import unique_ids
from testbed.chaos.audit import verdict
from testbed.clusters.cluster import Cluster
from testbed.clusters.factory import make_cluster
from testbed.clusters.rabbitmq import DISCONNECTED_MS
from testbed.process import NodeError, poll
from tests.plugin import missing
from tests.support.engine import Engine, full_epochs
from tests.support.sink import batch_of, fields_of

if TYPE_CHECKING:
    from testbed.clusters.activemq import ActiveMqPair
    from testbed.clusters.artemis import ArtemisPair
    from testbed.clusters.rabbitmq import RabbitCluster

pytestmark = pytest.mark.whole

MESSAGES = 120
EPOCH = 40
DRAIN_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 60.0
STRANDED_AFTER_S = 30.0


def started(broker: str, version: str = "") -> Iterator[Cluster]:
    try:
        cluster = make_cluster(broker, version)
    except NodeError as absent:
        missing(str(absent))
        raise
    with cluster:
        yield cluster


class Live:
    """A queue of its own in a cluster, with messages in it: each with an ID, or with a content of its own."""

    def __init__(
        self, cluster: Cluster, protocol: str, declare: Callable[[str], None] | None = None, *, with_ids: bool = True
    ) -> None:
        self.cluster = cluster
        self.protocol = protocol
        names = unique_ids()
        self.queue = f"test-{next(names)}"
        (declare or cluster.declare)(self.queue)
        self.sent = [f"message {number}" for number in range(MESSAGES)]
        ids = [next(names) for _ in self.sent] if with_ids else None
        cluster.publish(self.queue, [text.encode() for text in self.sent], ids, protocol, timeout_s=30.0)

    def engine(self, first: int = 0) -> Engine:
        """A reader; its first candidate is the broker of that number."""
        urls = self.cluster.url(self.protocol).split(",")
        names = {"broker": self.cluster.broker, "protocol": self.protocol, "queue": self.queue}
        times = {"heartbeat": "2s", "connectTimeout": "20s", "reconnectTimeout": "90s", "settleGrace": "1s"}
        return Engine(**names, **times, **full_epochs(EPOCH), url=",".join(urls[first:] + urls[:first]), prefetch=100)

    def drain(self, run: Engine) -> None:
        """As :meth:`Engine.drain`, with the help that the broker may need."""

        def drained() -> bool:
            with suppress(TimeoutError):
                run.drain(MESSAGES, STRANDED_AFTER_S)
                return True
            return False

        assert self._comes(drained, DRAIN_TIMEOUT_S), f"{len(run.output)} of {MESSAGES} rows"

    def assert_exactly_once(self, run: Engine) -> None:
        self.drain(run)
        self._comes(lambda: run.trigger() == 0 and self.cluster.counts(self.queue).total == 0, SETTLE_TIMEOUT_S)
        result = verdict(self.sent, run.output, self.cluster.counts(self.queue).total)
        assert result.holds, result

    def _comes(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Is it reached, with the help that the broker may need?"""
        deadline = time.monotonic() + timeout_s
        while not poll(reached, STRANDED_AFTER_S):
            if not self.cluster.unstrand(self.queue) and time.monotonic() > deadline:
                return False
        return True


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Something goes on beside; it has ended, and well, at the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as failed:  # noqa: BLE001 - handed to the test
            failures.append(failed)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failures, failures[0]


# -- RabbitMQ, quorum queue -------------------------------------------------------------------


@pytest.fixture(scope="module", params=["", "4.3"])
def rabbits(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from started("rabbitmq", request.param)


@pytest.fixture(params=["amqp-0-9-1", "stomp", "amqp-1.0"])
def quorum(rabbits: RabbitCluster, request: pytest.FixtureRequest) -> Live:
    protocol, _, without = request.param.partition(" without ")
    return Live(rabbits, protocol, with_ids=not without)


#: Known by their IDs, and by their contents: a node that is cut off hands out again in one session what it had before.
BOTH = pytest.mark.parametrize("quorum", ["amqp-0-9-1", "stomp", "amqp-1.0", "amqp-0-9-1 without IDs"], indirect=True)


def test_the_leader_is_killed_between_plan_and_commit(rabbits: RabbitCluster, quorum: Live) -> None:
    leader = rabbits.leader(quorum.queue)
    with quorum.engine(first=leader) as run:
        assert run.batch() == EPOCH
        run.between = lambda: rabbits.kill(leader)
        assert run.batch() == EPOCH
        run.between = lambda: None
        quorum.drain(run)  # by the two others
        rabbits.bring_back(leader)
        quorum.assert_exactly_once(run)
        assert run.counters()["reconnects"] >= 1


@pytest.mark.parametrize("rabbits", ["4.3"], indirect=True)
def test_what_a_queue_strands_is_known_again_half_an_hour_later(rabbits: RabbitCluster, quorum: Live) -> None:
    leader = rabbits.leader(quorum.queue)
    with quorum.engine(first=leader) as run:
        assert run.batch() == EPOCH
        rabbits.kill(leader)
        rabbits.strand(quorum.queue, leader)
        run.trigger()
        rabbits.bring_back(leader)  # which is what helps elsewhere
        began = time.monotonic()
        while time.monotonic() < began + 2 * DISCONNECTED_MS / 1_000:
            run.trigger()
        assert rabbits.stranded(quorum.queue)
        run.crash()
        rabbits.members[rabbits.leader(quorum.queue)].restart()
        rabbits.wait_together()
        quorum.assert_exactly_once(run)


@pytest.mark.parametrize("quorum", ["amqp-0-9-1"], indirect=True)
def test_the_leader_is_frozen_for_longer_than_heartbeats(rabbits: RabbitCluster, quorum: Live) -> None:
    leader = rabbits.leader(quorum.queue)
    with quorum.engine(first=leader) as run:
        assert run.batch() == EPOCH
        with meanwhile(lambda: rabbits.members[leader].freeze(8.0)):
            quorum.drain(run)
        quorum.assert_exactly_once(run)


@pytest.mark.parametrize("quorum", ["amqp-0-9-1"], indirect=True)
def test_two_of_three_are_killed_and_come_back(rabbits: RabbitCluster, quorum: Live) -> None:
    leader = rabbits.leader(quorum.queue)
    gone = leader, (leader + 1) % 3
    with quorum.engine(first=leader) as run:
        assert run.batch() == EPOCH
        rabbits.kill(*gone)
        with meanwhile(lambda: rabbits.bring_back(*gone)):
            quorum.drain(run)
        quorum.assert_exactly_once(run)


@BOTH
def test_a_partition_with_the_reader_in_the_minority(rabbits: RabbitCluster, quorum: Live) -> None:
    leader = rabbits.leader(quorum.queue)
    others = [number for number in range(3) if number != leader]
    with quorum.engine(first=leader) as run:
        assert run.batch() == EPOCH
        # Over STOMP nothing tells that a node which does not pause is cut off: that goes on when it is not any more.
        leaves = rabbits.pauses_minority or quorum.protocol != "stomp"
        rabbits.partition([leader], others)
        try:
            if leaves:
                quorum.drain(run)  # by the majority
        finally:
            rabbits.heal()
        quorum.assert_exactly_once(run)
        assert run.counters()["reconnects"] >= leaves


@pytest.mark.parametrize("quorum", ["amqp-0-9-1"], indirect=True)
def test_a_rolling_restart(rabbits: RabbitCluster, quorum: Live) -> None:
    with quorum.engine() as run:
        assert run.batch() == EPOCH
        with meanwhile(lambda: rabbits.restart_in_turn(quorum.queue)):
            quorum.drain(run)
        quorum.assert_exactly_once(run)


@pytest.mark.parametrize("protocol", ["amqp-0-9-1", "stomp", "amqp-1.0"])
def test_a_classic_queue_whose_node_is_away_is_waited_for(rabbits: RabbitCluster, protocol: str) -> None:
    live = Live(rabbits, protocol, rabbits.members[0].declare)
    with live.engine() as run:
        assert run.batch() == EPOCH
        rabbits.kill(0)

        def come_back() -> None:
            time.sleep(2.0)  # for the two others to be asked
            rabbits.bring_back(0)

        with meanwhile(come_back):
            live.drain(run)
        live.assert_exactly_once(run)


@pytest.mark.parametrize("named_by", ["option", "rows"])
@pytest.mark.parametrize("protocol", ["amqp-0-9-1", "amqp-1.0"])
def test_a_write_waits_for_a_classic_queue_whose_node_is_away(
    rabbits: RabbitCluster, protocol: str, named_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    if protocol == "amqp-1.0" and rabbits.version.startswith("3."):
        pytest.skip("before version 4 nothing is written over AMQP 1.0")
    home, other, _ = rabbits.members
    queue = f"test-{next(unique_ids())}"
    home.declare(queue)
    endpoint = Endpoint(
        broker=BROKERS["rabbitmq"], protocol=protocol, urls=parse_urls(other.url(protocol)), reconnect_timeout_s=120.0
    )
    settings = SinkSettings(endpoint, queue=queue if named_by == "option" else None)
    rows = [{"body": b"%d" % number, **({} if settings.queue else {"queue": queue})} for number in range(400)]
    fields = fields_of(rows[0])

    def come_back() -> None:
        assert poll(lambda: "is unavailable" in caplog.text, 90), caplog.text
        rabbits.bring_back(0)

    with ThreadPoolExecutor(1) as pool:

        def batches() -> Iterator[pa.RecordBatch]:
            yield batch_of(rows[:200], fields)
            rabbits.kill(0)
            returned.append(pool.submit(come_back))
            yield batch_of(rows[200:], fields)

        returned: list[Future[None]] = []
        assert write_rows(batches(), settings, ColumnPlan(fields, settings), Identity(("w",), 0)) == 400
        returned[0].result(120)
    with other._channel() as channel:
        found = [(properties.message_id, body) for _, properties, body in drained(channel, queue)]
    assert {body for _, body in found} == {row["body"] for row in rows}
    assert len(set(found)) == 400
    rabbits.members[0].delete(queue)


def drained(channel: Any, queue: str) -> Iterator[Any]:
    """What is in a queue, until nothing comes."""
    for delivery in channel.consume(queue, auto_ack=True, inactivity_timeout=2.0):
        if delivery[0] is None:
            return
        yield delivery


# -- Artemis, primary and backup --------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    yield from started("artemis")


@pytest.mark.parametrize("protocol", ["stomp", "amqp-1.0"])
def test_the_backup_takes_over_in_phase_two_and_gives_back(pair: ArtemisPair, protocol: str) -> None:
    live = Live(pair, protocol)
    with live.engine() as run:
        assert run.batch() == EPOCH
        run.reader.begin("latestOffset", run._offsets[0], None)  # acknowledges
        pair.fail_over()
        run.reader.answer()
        run.crash()  # what this call planned is in no log
        assert run.batch() > 0  # by the backup
        pair.fail_back()
        live.assert_exactly_once(run)
        assert not pair.backup.active


# -- ActiveMQ Classic, two on one store -------------------------------------------------------


@pytest.fixture(scope="module")
def masters() -> Iterator[Cluster]:
    yield from started("activemq")


@pytest.mark.parametrize("protocol", ["stomp", "amqp-1.0"])
def test_the_slave_takes_over_between_plan_and_commit(masters: ActiveMqPair, protocol: str) -> None:
    live = Live(masters, protocol)
    with live.engine() as run:
        assert run.batch() == EPOCH
        run.between = lambda: masters.fail_over(ActiveMqNode.kill)
        assert run.batch() == EPOCH
        run.between = lambda: None
        live.assert_exactly_once(run)
        assert run.counters()["reconnects"] >= 1
