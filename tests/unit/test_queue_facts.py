"""What is made of the answers of brokers. What these are is tested on real ones, in integration/test_doctor.py."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pyspark_mq.brokers.facts import (
    NOTHING_KNOWN,
    QueueFacts,
    merged_policy,
    of_activemq,
    of_artemis,
    of_artemis_settings,
    of_rabbitmq,
    policy_of,
    version_of,
)

V3, V40, V43 = (3, 10), (4, 0), (4, 3)


def rabbit(
    kind: str = "quorum",
    version: tuple[int, int] = V43,
    policy: dict[str, Any] | None = None,
    told: dict[str, Any] | None = None,
    **arguments: Any,
) -> QueueFacts:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return of_rabbitmq({"type": kind, "arguments": named, **(told or {})}, version, policy)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (rabbit(policy={}), 20),
        (rabbit(policy={}, version=V3), math.inf),
        (rabbit(policy={}, version=(0, 0)), None),
        (rabbit(), None),
        (rabbit(delivery_limit=3), 3),
        (rabbit(delivery_limit=3, policy={"delivery-limit": 7}), 3),
        (rabbit(delivery_limit=9, policy={"delivery-limit": 7}), 7),
        (rabbit(policy={"delivery-limit": -1}), math.inf),
        (rabbit("classic", policy={}), math.inf),
    ],
)
def test_the_delivery_limit_of_rabbitmq(given: QueueFacts, limit: float | None) -> None:
    assert given.delivery_limit == limit


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (rabbit(), None),
        (rabbit(policy={}), ""),
        (rabbit(dead_letter_exchange="dlx"), "exchange 'dlx'"),
        (rabbit(dead_letter_exchange="dlx", policy={"dead-letter-exchange": "other"}), "exchange 'dlx'"),
        (rabbit(policy={"dead-letter-exchange": "other"}), "exchange 'other'"),
        (rabbit(dead_letter_exchange="", dead_letter_routing_key="dead"), "queue 'dead'"),
        (rabbit(dead_letter_exchange=""), "the queue that its routing key names"),
    ],
)
def test_the_dead_letter_target_of_rabbitmq(given: QueueFacts, target: str | None) -> None:
    assert given.dead_letters_to == target


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (rabbit(), None),
        (rabbit(policy={}), 0),
        (rabbit("classic", policy={}), 0),
        (rabbit(delayed_retry_type="returned", delayed_retry_max=9_000), 0),
        (rabbit(delayed_retry_type="all", delayed_retry_max=9_000), 9),
        (rabbit(delayed_retry_type="failed", delayed_retry_min=1_000), 20),
        (rabbit(delayed_retry_type="failed", delayed_retry_min=1_000, delivery_limit=5), 5),
        (rabbit(policy={"delayed-retry-type": "all", "delayed-retry-min": 1_000, "delayed-retry-max": 4_000}), 4),
    ],
)
def test_the_delayed_retry_of_rabbitmq(given: QueueFacts, seconds: float | None) -> None:
    assert given.redelivery_delay_s == seconds


def test_arguments_alone_say_how_long_a_query_waits() -> None:
    arguments = {"x-delayed-retry-type": "all", "x-delayed-retry-max": 5_000}
    assert of_rabbitmq({"type": "quorum", "arguments": arguments}, (4, 3)).redelivery_delay_s == 5
    assert of_rabbitmq({"type": "quorum", "arguments": {}}, (4, 3)).redelivery_delay_s is None


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (rabbit(policy={}), None),
        (rabbit("classic", policy={}), math.inf),
        (rabbit("classic", V40, policy={}), None),
        (rabbit(consumer_timeout=60_000), 60),
        (rabbit(consumer_timeout=60_000, policy={"consumer-timeout": 50_000}), 50),
        (rabbit("classic", V40, policy={"consumer-timeout": 70_000}), 70),
    ],
)
def test_the_consumer_timeout_of_rabbitmq(given: QueueFacts, seconds: float | None) -> None:
    assert given.consumer_timeout_s == seconds


POLICIES = [
    {"pattern": "^or", "apply-to": "all", "priority": 0, "definition": {"a": 1}},
    {"pattern": "ders$", "apply-to": "quorum_queues", "priority": 5, "definition": {"a": 2}},
    {"pattern": "", "apply-to": "exchanges", "priority": 9, "definition": {"a": 3}},
    {"pattern": "(?|orders)", "apply-to": "all", "priority": 9, "definition": {"a": 4}},
    {"pattern": "log", "apply-to": "streams", "priority": 0, "definition": {"a": 5}},
]


@pytest.mark.parametrize(
    ("queue", "kind", "definition"),
    [
        ("orders", "quorum", {"a": 2}),
        ("orders", "classic", {"a": 1}),
        ("other", "quorum", {}),
        ("log", "stream", {"a": 5}),
        ("log", "classic", {}),
    ],
)
def test_the_policy_that_applies_is_the_one_of_the_highest_priority(
    queue: str, kind: str, definition: dict[str, int]
) -> None:
    assert policy_of(POLICIES, queue, kind) == definition


def test_of_a_policy_and_the_operators_the_lower_number_holds() -> None:
    assert merged_policy({"a": 3, "b": 1, "c": "x"}, {"a": 2, "b": 5, "d": 7}) == {"a": 2, "b": 1, "c": "x", "d": 7}
    assert merged_policy({"delivery-limit": -1}, {"delivery-limit": 9}) == {"delivery-limit": 9}
    assert merged_policy({}, {}) == {}


def test_priorities_and_a_single_consumer_are_arguments_only() -> None:
    assert rabbit("classic", max_priority=5).priorities
    assert not rabbit("classic").priorities
    assert not rabbit().priorities
    assert rabbit(single_active_consumer=True).single_active
    assert rabbit().single_active is False
    assert of_rabbitmq({}, V43).priorities is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (rabbit(policy={"message-ttl": 5_000}), "expire after 5 s"),
        (rabbit(policy={}, max_length=10), "beyond 10 messages the oldest"),
        (rabbit(policy={"max-length-bytes": 99}), "beyond 99 bytes the oldest"),
        (rabbit(policy={"expires": 1_000}), "unused for 1 s"),
        (rabbit(policy={}, told={"auto_delete": True}), "auto-delete"),
        (rabbit(policy={}, told={"durable": False}), "not durable"),
    ],
)
def test_what_loses_messages_on_rabbitmq_by_itself(given: QueueFacts, words: str) -> None:
    assert given.hazards is not None
    assert len(given.hazards) == 1
    assert words in given.hazards[0]


def test_a_queue_that_refuses_what_is_too_much_loses_nothing() -> None:
    assert rabbit(policy={"max-length": 10, "overflow": "reject-publish"}).hazards == ()
    assert rabbit().hazards is None
    assert rabbit("stream", policy={}).faults
    assert rabbit(policy={}, told={"exclusive": True}).faults


@pytest.mark.parametrize(
    ("connectors", "seconds"),
    [
        ([], None),
        (["amqp://host:5672"], None),
        (["stomp://host:61613"], math.inf),
        (["stomp://host:61613?transport.soWriteTimeout=10000"], 10),
        (["stomp://host:61613?transport.soWriteTimeout=0"], math.inf),
        (["stomp+nio://host:61613?soWriteTimeout=5000&x=1"], 5),
        # The one that the query connects to counts; where none has its port, the worst.
        (["stomp://host:1?transport.soWriteTimeout=9", "stomp+ssl://host:61613"], math.inf),
        (["stomp://host:1?transport.soWriteTimeout=9000", "stomp://host:2?transport.soWriteTimeout=8000"], 9),
        (["auto+nio://host:61613?transport.soWriteTimeout=7000"], 7),
    ],
)
def test_the_write_timeout_is_that_of_the_connector(connectors: list[str], seconds: float | None) -> None:
    assert of_activemq({}, connectors, "stomp", 61613).write_timeout_s == seconds


def test_a_queue_of_activemq() -> None:
    told = {"QueueSize": 7, "ConsumerCount": 2, "PrioritizedMessages": False, "MaxPageSize": 200, "Paused": False}
    facts = of_activemq({**told, "SlowConsumerStrategy": None}, [], "amqp", 5672)
    assert (facts.ready, facts.other_consumers, facts.page_size, facts.priorities) == (7, 2, 200, False)
    assert (facts.slow_consumers, facts.faults, facts.hazards) == ("", (), ())
    assert of_activemq(told, [], "amqp", 5672).slow_consumers is None
    assert of_activemq({"SlowConsumerStrategy": {"objectName": "x"}}, [], "amqp", 5672).slow_consumers
    assert of_activemq({"Paused": True}, [], "amqp", 5672).faults
    assert of_activemq({}, [], "amqp", 5672) == NOTHING_KNOWN


def test_a_queue_of_artemis_in_both_forms_of_its_answer() -> None:
    mbean = {"MaxConsumers": -1, "Exclusive": True, "RingSize": -1, "PurgeOnNoConsumers": True, "ConsumerCount": 1}
    listed = {name[0].lower() + name[1:]: str(value).lower() for name, value in mbean.items()}
    for told in (mbean, listed):
        facts = of_artemis(told)
        assert (facts.consumers_max, facts.single_active, facts.other_consumers) == (math.inf, True, 1)
        assert facts.hazards is not None
        assert len(facts.hazards) == 1
    assert of_artemis({"DeadLetterAddress": "DLQ"}).dead_letters_to == "address 'DLQ'"
    assert of_artemis({"DeadLetterAddress": None}).dead_letters_to == ""
    assert of_artemis({"maxConsumers": "3"}).consumers_max == 3
    assert of_artemis({}) == NOTHING_KNOWN


@pytest.mark.parametrize(
    ("settings", "limit", "delay_s", "kills"),
    [
        ({}, 10, 0, False),
        ({"maxDeliveryAttempts": -1}, math.inf, 0, False),
        ({"maxDeliveryAttempts": 3, "redeliveryDelay": 2_000}, 3, 2, False),
        ({"redeliveryDelay": 2_000, "redeliveryMultiplier": 2.0}, 10, 20, False),
        ({"redeliveryDelay": 2_000, "redeliveryMultiplier": 2.0, "maxRedeliveryDelay": 5_000}, 10, 5, False),
        ({"slowConsumerPolicy": "KILL", "slowConsumerThreshold": 5}, 10, 0, True),
        ({"slowConsumerPolicy": "KILL"}, 10, 0, False),
        ({"slowConsumerPolicy": "NOTIFY", "slowConsumerThreshold": 5}, 10, 0, False),
    ],
)
def test_settings_of_an_address(settings: dict[str, Any], limit: float, delay_s: float, *, kills: bool) -> None:
    facts = of_artemis_settings(settings)
    assert (facts.delivery_limit, facts.redelivery_delay_s, bool(facts.slow_consumers)) == (limit, delay_s, kills)


def test_what_one_does_not_know_the_other_may() -> None:
    first = QueueFacts(priorities=False, delivery_limit=3)
    second = QueueFacts(priorities=True, delivery_limit=9, single_active=True)
    assert first.or_else(second) == QueueFacts(priorities=False, delivery_limit=3, single_active=True)


@pytest.mark.parametrize(
    ("server", "version"),
    [("RabbitMQ/4.3.6", (4, 3)), ("RabbitMQ/3.10", (3, 10)), ("ActiveMQ/${project.version}", (0, 0)), ("", (0, 0))],
)
def test_versions(server: str, version: tuple[int, int]) -> None:
    assert version_of(server) == version


@pytest.mark.parametrize("odd", [None, 7, [], {}, "(", "a{99999999999}", "(" * 5_000 + ")" * 5_000])
@pytest.mark.parametrize("field", ["apply-to", "pattern", "priority", "definition"])
def test_a_policy_of_another_form_is_none(field: str, odd: object) -> None:
    policy = {"apply-to": "all", "pattern": "q", "priority": 1, "definition": {"max-length": 1}}
    other = {**policy, "priority": 0, "definition": {"max-length": 2}}
    assert policy_of([{**policy, field: odd}, other], "q", "classic") in ({"max-length": 1}, {"max-length": 2}, {})
