"""Asks Artemis about a queue over STOMP, at its management address. Pure: no socket, no clock.

A question is a message that names an operation in its properties and has the arguments in its body, as JSON; the answer
goes to the address it names for that (Artemis' manual, "Using Management Message API"). So it takes a user who may
`manage` the management address, and create and consume an address for answers. Others get an ERROR, which ends the
connection.

The counts are not of one moment: while messages flow, they were up to some hundreds too high and a few too low (2.40,
2.56); without traffic they are right. Messages of a dead connection count as handed out until the broker notices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark_mq.brokers.facts import artemis_answer
from pyspark_mq.decode.stomp_headers import value
from pyspark_mq.sources.connections.session import QueueDepth

__all__ = ["Questions", "QueueInfo"]

#: Address for the answers: the same for all sources, so that brokers which keep addresses keep one.
_ANSWERS = "pyspark-mq.answers"


class QueueInfo:
    """Facts of a queue.

    Attributes:
        messages: all messages, handed out or not, without delayed ones.
        handed_out: how many of these are with consumers.
        consumers: all there are.
        address: its address.
        reported: the whole answer.
    """

    def __init__(self, reported: Mapping[str, Any]) -> None:
        self.messages = max(0, int(reported["messageCount"]) - int(reported["scheduledCount"]))
        self.handed_out = int(reported["deliveringCount"])
        self.consumers = int(reported["consumerCount"])
        self.address = str(reported.get("address", ""))
        self.reported = reported

    def at_first(self) -> QueueDepth:
        """Return the depth before a session takes anything: messages of our former session are still to come."""
        return self._depth(self.messages, 0)

    def depth(self, own_consumers: int) -> QueueDepth:
        """Return the depth while a session has this many subscriptions."""
        return self._depth(max(0, self.messages - self.handed_out), own_consumers)

    def _depth(self, ready: int, own: int) -> QueueDepth:
        # Artemis 2.40 may keep counting messages of a consumer that is gone.
        return QueueDepth(ready, max(0, self.consumers - own), own)


class Questions:
    """Asks for one queue, again and again; at most one question is open.

    Args:
        address: of management.
        queue: name of the queue, or its address and name with `::` between.
        asker: distinguishes the answers from those to others.

    Attributes:
        asked: whether an answer is due.
        subscribed: whether there is a subscription for answers.
        settings: settings of the queue's address, once reported.
        mark: text in the headers of each answer, and seldom of a delivery.
    """

    #: ID of the subscription for answers; those of deliveries are numbers.
    SUBSCRIPTION = "answers"

    def __init__(self, address: str, queue: str, asker: str) -> None:
        self.address = address
        self.asked = self.subscribed = self._of_settings = False
        self.settings: dict[str, Any] | None = None
        self._queue = queue.rpartition("::")[2]
        self._asker = asker
        self.mark = f"\nsubscription:{self.SUBSCRIPTION}\n".encode()

    def subscription(self) -> tuple[str, dict[str, str]]:
        """Destination and headers of the subscription for answers."""
        return _ANSWERS, {"subscription-type": "MULTICAST", "selector": f"JMSCorrelationID = '{self._asker}'"}

    def question(self) -> tuple[str, str, dict[str, str]]:
        """Destination, body and headers of a question. Its body is text: the frame has no content-length."""
        which = json.dumps({"field": "name", "operation": "EQUALS", "value": self._queue})
        return self._call("listQueues", which, 1, 1)

    def question_of_settings(self, address: str) -> tuple[str, str, dict[str, str]]:
        """Ask for an address's settings, once: the answer becomes `settings`."""
        self._of_settings = True
        return self._call("getAddressSettingsAsJSON", address)

    def _call(self, operation: str, *arguments: object) -> tuple[str, str, dict[str, str]]:
        headers = {
            "_AMQ_ResourceName": "broker",
            "_AMQ_OperationName": operation,
            "reply-to": _ANSWERS,
            "correlation-id": self._asker,
        }
        return self.address, json.dumps(arguments), headers

    def is_answer(self, block: bytes) -> bool:
        """Whether a message with these headers is an answer and not one of the queue.

        The broker sets the header `subscription`, and its first occurrence counts.
        """
        return value(block, "subscription") == self.SUBSCRIPTION.encode()

    def answer(self, body: bytes) -> QueueInfo | None:
        """Read an answer; None if it has nothing about the queue."""
        self.asked = False
        if self._of_settings:
            settings = artemis_answer(body)
            self._of_settings, self.settings = False, settings if isinstance(settings, dict) else None
            return None
        try:
            (listed,) = json.loads(body)
            (reported,) = json.loads(listed)["data"]
            return QueueInfo(reported)
        # A refusal, no such queue, or another format.
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
