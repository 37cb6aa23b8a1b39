"""How many messages wait, where a broker tells it over STOMP; and that nothing depends on being told."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from pyspark_mq.brokers.base import AMQP_1_0, STOMP
from pyspark_mq.sources.connections.session import QueueDepth
from testbed.chaos.proxy import Direction
from testbed.process import poll
from tests.support.engine import At, Crashed
from tests.support.entries import LiveEntry, SessionRun

pytestmark = [pytest.mark.protocols(STOMP), pytest.mark.network]

EPOCH = 1_000


def tells(entry: LiveEntry) -> bool:
    dialect = entry.broker.stomp
    return dialect is not None and dialect.management != ""


def asked(session: SessionRun, seconds: float = 10.0) -> list[QueueDepth]:
    """What is told when the depth is asked for once."""
    told: list[QueueDepth] = []
    session.consumer.buffer.reported = told.append
    session.consumer.ask_depth()
    session.turn(lambda: bool(told), seconds)
    return told


@pytest.mark.contract("depth")
def test_the_depth_is_told_at_opening_and_when_it_is_asked_for(entry: LiveEntry) -> None:
    if not tells(entry):
        pytest.skip("the broker does not report it over STOMP")
    sent = entry.publish(20)
    with entry.session() as session:
        assert session.open().depth == QueueDepth(20, 0, 0)
        assert asked(session) == [QueueDepth(20, 0, 0)]
        assert session.take(20, window=1_000) == sent
        assert asked(session) == [QueueDepth(0, 0, 1)]
        with entry.session() as other:
            assert other.open().depth == QueueDepth(20, 1, 0)
            other.consume(10)
            other.idle(0.2)
            assert asked(session) == [QueueDepth(0, 1, 1)]
        session.acknowledge(upto=session.tags()[9])
    assert poll(lambda: entry.counts().ready == 10, 30)


@pytest.mark.contract("depth")
def test_a_broker_that_does_not_tell_it_goes_on(entry: LiveEntry) -> None:
    if tells(entry):
        pytest.skip("the broker tells it")
    sent = entry.publish(5)
    with entry.session() as session:
        assert session.open().depth is None
        assert asked(session, 0.3) == []
        assert session.take(5) == sent


@pytest.mark.contract("depth")
def test_a_selector_has_no_depth(entry: LiveEntry) -> None:
    if not entry.broker.selectors:
        pytest.skip("the broker has no selectors")
    entry.publish(5, headers={"colour": "red"})
    with entry.session(selector="colour = 'blue'") as session:
        assert session.open().depth is None
        session.consume(10)
        assert asked(session, 0.3) == []
        assert session.raws == []


@pytest.mark.contract("depth")
def test_who_may_not_ask_is_refused_once_and_loses_nothing(entry: LiveEntry, caplog: pytest.LogCaptureFixture) -> None:
    sent = entry.publish(5)
    with entry.reader() as user, entry.proxy() as proxy:
        asked_for: list[int] = []
        endpoint = entry.endpoint(**entry.through(proxy), **user)  # which a query has for all its sessions
        for _ in range(3):
            before, began = proxy.bytes_seen(Direction.TO_BROKER), time.monotonic()
            with closing(SessionRun(endpoint, entry.make_session())) as session:
                assert session.open().depth is None
                assert time.monotonic() - began < 3
                asked_for.append(proxy.bytes_seen(Direction.TO_BROKER) - before)
                assert asked(session, 0.2) == []
                session.take(5, window=10)
                assert sorted(session.bodies()) == sorted(sent)
            assert poll(lambda: entry.counts().ready == 5, 30)
    # Two logins and a question, and then one login each time.
    assert asked_for[1] == asked_for[2]
    assert (asked_for[0] > 2 * asked_for[1]) == tells(entry)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.contract("depth")
@pytest.mark.parametrize("over", [None, AMQP_1_0])
def test_answers_are_no_deliveries_and_deliveries_no_answers(entry: LiveEntry, over: str | None) -> None:
    if entry.broker.name != "artemis" and over is not None:
        pytest.skip("one test with a publisher of another protocol is enough")
    body = b'["{\\"data\\":[{\\"messageCount\\":\\"7\\",\\"deliveringCount\\":\\"0\\"}]}"]'
    headers = {"subscription": "answers", "_AMQ_OperationSucceeded": "true"} if tells(entry) else {}
    entry.publish(2_000)
    with entry.session() as session:
        session.open()
        session.consume(5_000)
        told: list[QueueDepth] = []
        session.consumer.buffer.reported = told.append
        while len(session.raws) < 2_000:
            session.consumer.ask_depth()
            session.idle(0.01)
        entry.node.publish(entry.queue, [body] * 3, headers=headers, protocol=over)
        assert session.turn(lambda: len(session.raws) == 2_003)
        asked(session, 5.0 if tells(entry) else 0.2)
        assert session.decoder.bodies(session.raws)[2_000:] == [body] * 3
        assert len(session.raws) == 2_003
        assert all(depth.ready <= 2_003 for depth in told)
        session.acknowledge(upto=session.tags()[-1])
    assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.contract("depth")
@pytest.mark.parametrize("who", ["manager", "reader"])
def test_a_bounded_run_takes_all_there_is(entry: LiveEntry, who: str) -> None:
    if not tells(entry):
        pytest.skip("the broker does not report it over STOMP")
    with entry.reader() as user:
        more: dict[str, Any] = user if who == "reader" else {}
        sent: list[str] = []
        with entry.engine(maxMessagesPerTrigger=EPOCH, maxTriggerDelay="0s", **more) as engine:
            for messages in (3_500, 1, 0, 2_000):
                sent += entry.publish(messages)
                # A new process each time, as jobs that are started on a schedule; the former one is killed.
                engine.crash()
                engine.run_available()
                # Who is not told ends after three seconds of silence, which a busy machine may take for other things.
                for _ in range(3):
                    if who == "reader" and len(engine.rows) < len(sent):
                        engine.run_available()
                assert len(engine.rows) == len(sent)
            assert sorted(engine.output) == sorted(sent)


@pytest.mark.contract("depth")
def test_a_bounded_run_after_a_crash_takes_what_the_dead_one_held(entry: LiveEntry) -> None:
    if not tells(entry):
        pytest.skip("the broker does not report it over STOMP")
    sent = entry.publish(2_500)
    with entry.engine(maxMessagesPerTrigger=EPOCH, maxTriggerDelay="0s") as engine:
        engine.reader.call("prepareForTriggerAvailableNow")
        with pytest.raises(Crashed):
            engine.trigger(At.AFTER_SINK)
        engine.run_available()
        assert sorted(engine.output) == sorted(sent)
