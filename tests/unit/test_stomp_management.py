"""Questions to Artemis, and what is made of its answers."""

from __future__ import annotations

import json
import math

import pytest

from pyspark_mq.brokers.facts import of_artemis, of_artemis_settings
from pyspark_mq.sources.connections.session import QueueDepth
from pyspark_mq.sources.stomp.depth import Questions
from tests.support.stomp import block


def answer(**counts: int) -> bytes:
    """As Artemis writes it: text in JSON in a list in JSON, with numbers as texts."""
    row = {name: str(value) for name, value in counts.items()}
    return json.dumps([json.dumps({"data": [row], "count": 1})]).encode()


def questions(queue: str = "orders") -> Questions:
    made = Questions("activemq.management", queue, "-me")
    made.subscribed = True
    return made


def test_an_answer_has_what_waits_and_who_consumes() -> None:
    told = questions().answer(answer(messageCount=10, deliveringCount=3, scheduledCount=2, consumerCount=5))
    assert told is not None
    assert told.at_first() == QueueDepth(8, 5, 0)
    assert told.depth(2) == QueueDepth(5, 3, 2)
    # The counts are not of one moment.
    assert told.depth(9).other_consumers == 0
    odd = questions().answer(answer(messageCount=1, deliveringCount=3, scheduledCount=2, consumerCount=0))
    assert odd is not None
    assert (odd.depth(0).ready, odd.at_first().ready) == (0, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"7",
        b'["AMQ229032: no permission"]',
        b'["{}"]',
        b"[" * 100_000,
        b'["{\\"data\\":[],\\"count\\":0}"]',
        b'["{\\"data\\":[{}]}"]',
        b'["{\\"data\\":[7]}"]',
        b'["{\\"data\\":{\\"a\\":1}}"]',
        answer(messageCount=1),
    ],
)
def test_what_says_nothing_of_the_queue_is_no_depth(body: bytes) -> None:
    asking = questions()
    asking.asked = True
    assert asking.answer(body) is None
    assert not asking.asked


def test_only_what_comes_for_the_subscription_is_an_answer() -> None:
    asking = questions()
    assert asking.is_answer(block({"subscription": "answers-me", "ack": "1"}))
    assert not asking.is_answer(block({"subscription": "0", "ack": "1"}))
    # A property of that name comes behind the broker's header.
    assert not asking.is_answer(b"\nsubscription:0\nsubscription:answers-me\n")
    assert asking.is_answer(b"\nsubscription-x:0\nsubscription:answers-me\nsubscription:0\n")


@pytest.mark.parametrize(("queue", "name"), [("orders", "orders"), ("shop::orders", "orders"), ('a"b/c', 'a"b/c')])
def test_a_question_names_the_queue(queue: str, name: str) -> None:
    destination, body, headers = questions(queue).question()
    assert destination == "activemq.management"
    assert json.loads(json.loads(body)[0])["value"] == name
    assert headers["correlation-id"] in questions(queue).subscription()[1]["selector"]


ODD = [None, True, 7, -1, 10**30, "x", "9" * 5_000, 1.5, math.inf, math.nan, [], [1], {}, {"a": 1}]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:12])
def test_an_answer_with_something_else_in_any_field_ends_nothing(odd: object) -> None:
    counts = dict.fromkeys(("messageCount", "scheduledCount", "deliveringCount", "consumerCount"), "5")
    settings = {"redeliveryDelay": 5, "redeliveryMultiplier": 2, "maxRedeliveryDelay": 9, "maxDeliveryAttempts": 3}
    others = ("address", "maxConsumers", "ringSize", "consumersBeforeDispatch", "durable", "deadLetterAddress",
              "slowConsumerPolicy", "slowConsumerThreshold", "slowConsumerThresholdMeasurementUnit")  # fmt: skip
    for name in (*counts, *settings, *others):
        body = json.dumps([json.dumps({"data": [{**counts, name: odd}]})]).encode()
        told = questions().answer(body)
        if told is not None:
            assert told.at_first().ready >= 0
            of_artemis(told.reported)
        asked = questions()
        asked.question_of_settings("orders")
        assert asked.answer(json.dumps([json.dumps({**settings, name: odd})]).encode()) is None
        assert asked.settings is not None
        assert (of_artemis_settings(asked.settings).redelivery_delay_s or 0) >= 0
