"""Messages without IDs on a broker: what of them stays the same, and that equal ones are counted."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pyspark_mq.brokers.base import AMQP_1_0
from testbed.brokers.rabbitmq import RabbitQueues
from testbed.process import poll
from tests.support.amqp10_messages import Message, V
from tests.support.amqp10_send import send
from tests.support.effort import with_all
from tests.support.engine import At, Crashed, Engine, ReaderError
from tests.support.entries import LiveEntry, SessionRun

pytestmark = [pytest.mark.contract("contents"), pytest.mark.network]

#: What RabbitMQ is told beside a body, each time something else.
PROPERTIES: Sequence[dict[str, Any]] = [
    {},
    {"headers": {}},
    {"headers": {"b": "1", "a": "2", "list": [1, 2]}},
    {"headers": {"b": "1", "a": "3", "list": [1, 2]}},
    {"type": "t", "correlation_id": "c", "expires_ms": 3_600_000},
    {"type": "u", "correlation_id": "c", "priority": 3, "timestamp": 1_700_000_000},
]


ONE_BY_ONE = {"maxMessagesPerTrigger": 100, "prefetch": 300, "onMissingMessageId": "content"}


def without_ids(entry: LiveEntry, bodies: Sequence[bytes], queue: str = "", **properties: Any) -> None:
    """Publish as most producers do. The brokers that give each message an ID over STOMP have no such messages."""
    queue = queue or entry.queue
    if isinstance(entry.node, RabbitQueues):
        entry.node.publish(queue, bodies, ids=[None] * len(bodies), **properties)
    elif entry.entry.broker == "artemis" and entry.entry.protocol == AMQP_1_0:
        send(
            entry,
            *(Message([V("boolean", True)], body="data", contents=[V("binary", body)]).encode() for body in bodies),
        )
    else:
        pytest.skip("the broker gives each message an ID")


def digests(session: SessionRun, messages: int) -> list[tuple[bytes, bytes]]:
    """Body and digest of each of the next messages."""
    session.take_any(messages, messages)
    return list(zip(session.decoder.bodies(session.raws), session.decoder.digests(session.raws), strict=True))


def test_a_digest_is_the_same_at_each_delivery_and_no_other_message_has_it(entry: LiveEntry) -> None:
    if not isinstance(entry.node, RabbitQueues):
        pytest.skip("no flag proves anything there")
    sent = 2 * len(PROPERTIES)
    for number, properties in enumerate(PROPERTIES):
        without_ids(entry, [b"same", b"%d" % number], **properties)
    seen = []
    for turn in range(3):
        assert poll(lambda: entry.counts().ready == sent, 30)
        with entry.session() as session:
            seen.append(digests(session, sent))
            assert session.decoder.not_redelivered(session.raws) == [turn == 0] * sent
    assert Counter(seen[0]) == Counter(seen[1]) == Counter(seen[2])
    # Headers that say nothing are none; over STOMP and AMQP 1.0 not all of what is said arrives.
    assert len({digest for body, digest in seen[0] if body == b"same"}) >= 3
    assert len({digest for _, digest in seen[0]}) >= len(PROPERTIES) + 3


def test_what_was_dead_lettered_and_returned_is_the_same_and_has_no_proof(entry: LiveEntry) -> None:
    if not isinstance(entry.node, RabbitQueues):
        pytest.skip("an exchange for dead letters is RabbitMQ's")
    away, back = f"away-{uuid.uuid4().hex[:8]}", f"back-{uuid.uuid4().hex[:8]}"
    to = {"x-dead-letter-exchange": ""}
    entry.node.declare(back, arguments={**to, "x-dead-letter-routing-key": away})
    entry.node.declare(away, arguments={**to, "x-dead-letter-routing-key": back, "x-message-ttl": 3_000})
    without_ids(entry, [b"one", b"two"], back, headers={"a": "b"})
    with entry.session(queue=back) as session:
        first = digests(session, 2)
        session.consumer.reject(session.tags())
        # Into this session they would come for the first time, and flagged into the next.
        assert session.turn(lambda: entry.node.counts(away).total == 2)
    assert poll(lambda: entry.node.counts(back).ready == 2, 30)
    with entry.session(queue=back) as session:
        again = digests(session, 2)
        # The plugin for AMQP 1.0 of version 3 says nothing of dead letters (docs/message-ids.md).
        hidden = entry.is_plugin and entry.entry.protocol == AMQP_1_0
        assert session.decoder.not_redelivered(session.raws) == [hidden, hidden]
    assert sorted(first) == sorted(again)
    for name in (away, back):
        entry.node.delete(name)


@contextlib.contextmanager
def reading(entry: LiveEntry, **options: object) -> Iterator[Engine]:
    with entry.engine(maxMessagesPerTrigger=100, prefetch=500, onMissingMessageId="content", **options) as engine:
        yield engine


@pytest.mark.parametrize(
    ("at", "contents"),
    [
        (at, contents) if (at is At.AFTER_SINK) is (contents == 1) else with_all(at, contents)
        for at in At
        for contents in (1, 2_000)
    ],
)
def test_a_client_killed_behind_an_acknowledgement_with_a_backlog_that_nobody_has_read(
    entry: LiveEntry, at: At, contents: int
) -> None:
    sent = [b"content %d" % (number % contents) for number in range(2_000)]
    without_ids(entry, sent)
    with reading(entry) as engine:
        for _ in range(3):
            assert engine.batch() == 100
        with pytest.raises(Crashed):
            engine.batch(at)
        with contextlib.suppress(TimeoutError):
            engine.drain(2_000)
        assert poll(lambda: not engine.trigger() and entry.total() == 0, 60)
        emitted, published = Counter(engine.output), Counter(body.decode() for body in sent)
        assert not published - emitted
        if contents == len(sent):
            assert emitted == published
        else:
            # What was under acknowledgement when it was killed, at most: the epochs before it are settled after grace.
            assert (emitted - published).total() <= 500


def test_equal_messages_of_a_session_that_ends_are_all_emitted(entry: LiveEntry) -> None:
    without_ids(entry, [b"same"] * 500 + [b"own %d" % number for number in range(500)])
    with entry.proxy() as proxy, entry.engine(proxy, **ONE_BY_ONE) as engine:
        for _ in range(5):
            assert engine.batch() == 100
            proxy.cut()
        assert poll(lambda: not engine.trigger() and entry.total() == 0, 60)
        emitted = Counter(engine.output)
        assert emitted["same"] >= 500
        assert {body: times for body, times in emitted.items() if body != "same" and times != 1} == {}
        assert len(emitted) == 501
        # At each cut two epochs are being acknowledged at most.
        assert emitted["same"] <= 500 + 5 * 200


def test_a_job_on_a_schedule_loses_no_equal_message_that_comes_while_it_runs(entry: LiveEntry) -> None:
    with entry.engine(**ONE_BY_ONE) as engine:

        def tick() -> None:
            without_ids(entry, [b"tick"])
            time.sleep(0.3)
            engine.between = lambda: None

        for number in range(5):
            without_ids(entry, [b"run %d" % number])
            engine.between = tick
            engine.run_available()
            engine.crash()
            assert poll(lambda: entry.counts().unacked == 0, 30)
        engine.run_available()
        engine.run_available()
        assert Counter(engine.output) == {"tick": 5, **{f"run {number}": 1 for number in range(5)}}
        assert entry.total() == 0


def test_a_start_that_fails_acknowledges_no_equal_message(entry: LiveEntry) -> None:
    if not isinstance(entry.node, RabbitQueues):
        pytest.skip("a single message is taken out of the middle of a queue over AMQP 0-9-1")
    without_ids(entry, [b"equal"])
    with entry.engine(**ONE_BY_ONE, replayTimeout="1s") as engine:
        assert engine.batch() == 1
        without_ids(entry, [b"gone"])
        engine.between = lambda: without_ids(entry, [b"equal"] * 3)
        with pytest.raises(Crashed):
            engine.batch(At.AFTER_SINK)
        engine.between = lambda: None
        assert poll(lambda: entry.counts().unacked == 0, 30)
        _take_out(entry, b"gone")
        there = entry.total()
        for _ in range(3):
            with pytest.raises(ReaderError, match="were not redelivered"):
                engine.trigger()
            engine.crash()
            assert poll(lambda: entry.counts().ready == there, 30)


def _take_out(entry: LiveEntry, body: bytes) -> None:
    def take(channel: Any) -> None:
        while True:
            method, _, found = channel.basic_get(entry.queue)
            if found == body:
                channel.basic_ack(method.delivery_tag)
                return

    entry.on_channel(take)
