"""Facts in, findings out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pyspark_mq.admin.checks import _CHECKS, Finding, Level, Sample, check_queue, check_sample, worth_a_line
from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.options import parse_options

URLS = {"rabbitmq": "amqp://host", "activemq": "stomp://host", "artemis": "stomp://host"}


def settings(broker: str = "rabbitmq", **options: str) -> Settings:
    return parse_options({"broker": broker, "url": URLS[broker], "queue": "orders", **options}).settings


def one(facts: QueueFacts, check: str, broker: str = "rabbitmq", **options: str) -> Finding:
    (found,) = [found for found in check_queue(facts, settings(broker, **options), "ask") if found.check == check]
    return found


@pytest.mark.parametrize("broker", BROKERS)
def test_a_remedy_is_of_a_check_there_is(broker: str) -> None:
    assert set(BROKERS[broker].remedies) <= set(_CHECKS)
    assert {"queue", "delivery-limit", "redelivery-delay", "other-consumers"} <= set(BROKERS[broker].remedies)


@pytest.mark.parametrize("broker", BROKERS)
def test_what_is_not_known_is_never_ok_and_worth_no_line_of_the_log(broker: str) -> None:
    found = check_queue(NOTHING_KNOWN, settings(broker), "give the option")
    known = {one.check for one in found if one.level is Level.OK}
    assert known == ({"prefetch"} if BROKERS[broker].counts_session_ends else {"prefetch", "delivery-limit"})
    assert all(one.remedy for one in found if one.level is Level.UNKNOWN)
    assert worth_a_line(NOTHING_KNOWN, settings(broker)) == []


CASES: list[tuple[str, dict[str, Any], dict[str, str], str, Level, str]] = [
    ("rabbitmq", {"delivery_limit": math.inf}, {}, "delivery-limit", Level.OK, "none"),
    ("rabbitmq", {"delivery_limit": 20}, {}, "delivery-limit", Level.OK, "20 deliveries"),
    ("artemis", {"delivery_limit": 10}, {}, "delivery-limit", Level.WARNING, "after 10 deliveries"),
    ("rabbitmq", {"delivery_limit": 20, "dead_letters_to": ""}, {}, "dead-letters", Level.PROBLEM, "lost"),
    ("rabbitmq", {"delivery_limit": math.inf, "dead_letters_to": ""}, {}, "dead-letters", Level.OK, "no message is"),
    (
        "rabbitmq", {"delivery_limit": math.inf, "dead_letters_to": ""}, {"onMissingMessageId": "reject"},
        "dead-letters", Level.WARNING, "that is refused is dropped",
    ),
    ("rabbitmq", {"dead_letters_to": ""}, {}, "dead-letters", Level.WARNING, "no dead-letter target"),
    (
        "rabbitmq", {"delivery_limit": 3, "dead_letters_to": "exchange 'x'", "dead_letters_arrive": False}, {},
        "dead-letters", Level.PROBLEM, "does not exist or has no queue",
    ),
    (
        "rabbitmq", {"delivery_limit": math.inf, "dead_letters_to": "exchange 'x'", "dead_letters_arrive": False}, {},
        "dead-letters", Level.WARNING, "does not exist or has no queue",
    ),
    ("artemis", {"dead_letters_to": "address 'DLQ'"}, {}, "dead-letters", Level.UNKNOWN, "address 'DLQ'"),
    ("rabbitmq", {"redelivery_delay_s": 0.0}, {}, "redelivery-delay", Level.OK, "none"),
    ("rabbitmq", {"redelivery_delay_s": 4.5}, {"replayTimeout": "5s"}, "redelivery-delay", Level.OK, "waits 5 s"),
    ("rabbitmq", {"redelivery_delay_s": 5.0}, {"replayTimeout": "5s"}, "redelivery-delay", Level.PROBLEM, "delayed"),
    ("artemis", {"redelivery_delay_s": 300.0}, {}, "redelivery-delay", Level.WARNING, "may be delayed"),
    ("activemq", {}, {}, "redelivery-delay", Level.UNKNOWN, "a replay waits 300 s"),
    ("rabbitmq", {"consumer_timeout_s": 1_800.0}, {}, "consumer-timeout", Level.OK, "shorter"),
    ("rabbitmq", {"consumer_timeout_s": 60.0}, {}, "consumer-timeout", Level.WARNING, "60 s"),
    (
        "rabbitmq", {"consumer_timeout_s": 3_600.0}, {"minMessagesPerTrigger": "2", "maxTriggerDelay": "1h"},
        "consumer-timeout", Level.PROBLEM, "again and again",
    ),
    ("rabbitmq", {"priorities": True}, {}, "priorities", Level.WARNING, "by priority"),
    (
        "rabbitmq", {"single_active": True}, {"consumers": "3"},
        "single-active-consumer", Level.WARNING, "2 of 3 'consumers' receive",
    ),
    (
        "rabbitmq", {"single_active": True, "other_consumers": 1, "consumer_names": ("joe",)}, {},
        "single-active-consumer", Level.PROBLEM, "another consumer (joe)",
    ),
    ("rabbitmq", {"other_consumers": 2, "consumer_names": ("a", "b")}, {}, "other-consumers", Level.WARNING, "(a, b)"),
    ("rabbitmq", {"other_consumers": 0}, {}, "other-consumers", Level.OK, "none"),
    ("artemis", {"consumers_max": 1}, {}, "prefetch", Level.PROBLEM, "and one more"),
    ("artemis", {"consumers_max": 2}, {}, "prefetch", Level.OK, "100,000"),
    ("artemis", {"consumers_max": 1}, {"url": "amqp://host"}, "prefetch", Level.WARNING, "is refused each time"),
    ("artemis", {"consumers_max": 2}, {"url": "amqp://host"}, "prefetch", Level.OK, "100,000"),
    (
        "artemis", {"consumers_max": 1}, {"url": "amqp://host", "consumers": "2"}, "prefetch", Level.PROBLEM,
        "this query needs 2",
    ),
    ("activemq", {}, {"prefetch": "1000"}, "prefetch", Level.WARNING, "queuePrefetch"),
    ("activemq", {}, {"prefetch": "1001"}, "prefetch", Level.OK, "1,001"),
    ("activemq", {"page_size": 200}, {}, "page-size", Level.WARNING, "200"),
    ("activemq", {"page_size": 200}, {"prefetch": "200"}, "page-size", Level.OK, "200"),
    ("activemq", {"write_timeout_s": math.inf}, {}, "write-timeout", Level.WARNING, "15 minutes"),
    ("activemq", {"write_timeout_s": 10.0}, {}, "write-timeout", Level.OK, "10 s"),
    ("artemis", {"slow_consumers": "who is slow is out"}, {}, "slow-consumers", Level.PROBLEM, "looks slow"),
    ("artemis", {"slow_consumers": ""}, {}, "slow-consumers", Level.OK, "does not evict"),
    ("artemis", {"hazards": ("odd",), "faults": ()}, {}, "queue", Level.WARNING, "odd"),
    ("artemis", {"hazards": (), "faults": ("bad",)}, {}, "queue", Level.PROBLEM, "bad"),
    ("artemis", {"hazards": (), "faults": ()}, {}, "queue", Level.OK, "keeps its messages"),
]  # fmt: skip


@pytest.mark.parametrize(("broker", "facts", "options", "check", "level", "words"), CASES)
def test_what_follows_from_a_fact(
    broker: str, facts: dict[str, Any], options: dict[str, str], check: str, level: Level, words: str
) -> None:
    found = one(QueueFacts(**facts), check, broker, **options)
    assert (found.level, words in found.what) == (level, True), found
    assert bool(found.remedy) is (level is not Level.OK)


def test_a_delay_that_no_replay_waits_for_names_the_option_and_what_else_would_do() -> None:
    remedy = one(QueueFacts(redelivery_delay_s=400.5), "redelivery-delay").remedy
    assert remedy.startswith("raise 'replayTimeout' above 401s, or remove")


def test_a_start_logs_what_is_wrong_and_leaves_other_consumers_to_their_own_warning() -> None:
    facts = QueueFacts(delivery_limit=3, dead_letters_to="", other_consumers=1, single_active=False)
    lines = worth_a_line(facts, settings())
    assert len(lines) == 2
    assert lines[0].startswith("a message is dropped or dead-lettered after 3 deliveries")
    assert "dead-letter-exchange" in lines[1]


def sample(*ids: str | None, sizes: tuple[int, ...] = (), cut_short: str = "") -> Sample:
    return Sample("returned", ids, sizes or (10,) * len(ids), (), cut_short)


SAMPLES: list[tuple[Sample, dict[str, str], str, Level, str]] = [
    (sample("a", "b"), {}, "message-ids", Level.OK, "no ID is repeated in 2 message(s) (returned)"),
    (
        sample("a", None),
        {"onMissingMessageId": "fail"},
        "message-ids",
        Level.PROBLEM,
        "1 of 2 message(s) (returned) have no ID under messageIdFrom='message-id'",
    ),
    (sample("a", None), {}, "message-ids", Level.OK, "identified by their contents"),
    (sample("a", None), {"onMissingMessageId": "reject"}, "message-ids", Level.WARNING, "refused for good"),
    (sample("a", "b", "a"), {}, "message-ids", Level.PROBLEM, "1 ID(s) belong to more than one message"),
    (sample(None, None), {"guarantee": "none"}, "message-ids", Level.OK, "not needed"),
    (sample(), {}, "message-ids", Level.UNKNOWN, "no message"),
    (sample("a", sizes=(2_000,)), {"maxBytesPerTrigger": "1k"}, "message-sizes", Level.WARNING, "1 message(s) above"),
    (sample("a", sizes=(200 << 20,)), {}, "message-sizes", Level.PROBLEM, "on a cluster the query fails"),
    (sample("a", "b", sizes=(100, 300)), {"maxBytesPerTrigger": "2000"}, "message-sizes", Level.OK, "about 10 by"),
    (sample("a", sizes=(100,)), {}, "message-sizes", Level.OK, "an epoch has up to 50,000"),
    (sample("a", cut_short="refused"), {}, "prefetch", Level.PROBLEM, "raised, as happens after a restart: refused"),
]


@pytest.mark.parametrize(("seen", "options", "check", "level", "words"), SAMPLES)
def test_what_follows_from_messages(
    seen: Sample, options: dict[str, str], check: str, level: Level, words: str
) -> None:
    found = [one for one in check_sample(seen, settings(**options)) if one.check == check]
    assert [(one.level, words in one.what) for one in found] == [(level, True)], found


def test_messages_may_lack_ids_and_repeat_them() -> None:
    found = check_sample(sample("a", None, "a"), settings(onMissingMessageId="fail"))
    assert [(one.check, one.level) for one in found] == [
        ("message-ids", Level.PROBLEM), ("message-ids", Level.PROBLEM), ("message-sizes", Level.OK),
    ]  # fmt: skip
    found = check_sample(sample("a", None), settings(onMissingMessageId="content"))
    assert found[0].level is Level.OK
    assert "identified by their contents" in found[0].what
