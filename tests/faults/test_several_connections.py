"""Failure matrix with several consumers of a queue: whatever order they are handed messages in, each comes once."""

from __future__ import annotations

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1
from testbed.process import poll
from tests.contract.test_unreadable import publish_odd
from tests.support.checks import assert_exactly_once
from tests.support.engine import At, Crashed, Engine
from tests.support.entries import LiveEntry

MESSAGES = 120
EPOCH = 40

pytestmark = [pytest.mark.contract("several consumers"), pytest.mark.network, pytest.mark.sampled]


def engine(entry: LiveEntry, **options: object) -> Engine:
    return entry.engine(**{"maxMessagesPerTrigger": EPOCH, "prefetch": 100, "consumers": 2, **options})


def test_everything_comes_once_through_three_connections(entry: LiveEntry) -> None:
    sent = entry.publish(20 * MESSAGES)
    with engine(entry, consumers=3, maxMessagesPerTrigger=10 * EPOCH, prefetch=1_000) as run:
        run.drain(len(sent))
        assert run.counters()["reconnects"] == 0
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.parametrize("crash", At)
def test_a_crash_of_the_source_anywhere_is_replayed(entry: LiveEntry, crash: At) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(crash)
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.parametrize("guarantee", ["at-least-once", "none"])
def test_the_lower_guarantees_need_no_ids(entry: LiveEntry, guarantee: str) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, guarantee=guarantee) as run:
        run.drain(MESSAGES)
        assert sorted(run.output) == sorted(sent)
        assert poll(lambda: not run.trigger() and entry.total() == 0, 30)


@pytest.mark.untraced
@pytest.mark.parametrize(
    "options", [{"messageIdFrom": "content"}, {"messageIdFrom": "property:none", "onMissingMessageId": "content"}]
)
def test_contents_identify_messages_too(entry: LiveEntry, options: dict[str, str]) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, **options) as run:
        assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(At.AFTER_SINK)
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.protocols(AMQP_0_9_1)
@pytest.mark.parametrize("decision", ["reject", "row"])
def test_a_message_that_cannot_be_decoded_is_what_the_user_decided(entry: LiveEntry, decision: str) -> None:
    sent = entry.publish(20)
    publish_odd(entry)
    sent += entry.publish(20)
    with engine(entry, onUnreadableMessage=decision, maxMessagesPerTrigger=100) as run:
        run.drain(40 + (decision == "row"))
        assert sorted(run.output) == sorted([*sent, *(["odd body"] if decision == "row" else [])])
        assert run.counters()["rejected"] == (decision == "reject")
        assert poll(lambda: not run.trigger() and entry.total() == 0, 30)


def test_a_bounded_run_takes_what_is_there_and_ends(entry: LiveEntry) -> None:
    sent = entry.publish(3 * MESSAGES)
    with engine(entry) as run:
        run.reader.call("initialOffset")
        run.reader.call("prepareForTriggerAvailableNow")
        while run.trigger():
            pass
        assert sorted(run.output) == sorted(sent)
