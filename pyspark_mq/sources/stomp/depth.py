"""Builds the messages with which a session queries Artemis about a queue over STOMP, and reads the answers.

A query is a message to the broker's management address. Its properties name an operation, and its body has the
arguments as JSON. The broker sends the answer to the reply address in the query (Artemis' manual, "Using Management
Message API"). So the user must have permission to `manage` the management address, and to create and consume an address
for answers. For other users the broker sends an ERROR and closes the connection: "AMQ229032 User reader does not have
permission='CREATE_ADDRESS' on address …", or "AMQ339011 Error sending message CoreMessage[…]" (2.56).

The counts in an answer are exact only if no messages are sent or received meanwhile, as the broker does not take all
counts at the same moment. With traffic, they were up to some hundreds too high or a few too low (measured on 2.40 and
2.56). The messages of a lost connection count as delivered until the broker notices the loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark_mq.brokers.facts import artemis_answer
from pyspark_mq.decode.stomp_headers import value
from pyspark_mq.sources.connections.session import QueueDepth

__all__ = ["Questions", "QueueInfo"]

#: Address for answers. All queries use the same address, so that a broker that never deletes addresses has only one.
_ANSWERS = "pyspark-mq.answers"


class QueueInfo:
    """A report of Artemis about a queue.

    Attributes:
        messages: number of messages in the queue, including delivered messages, but not scheduled (delayed) messages.
        handed_out: how many of the messages in `messages` are delivered to consumers but not settled.
        consumers: number of consumers of the queue.
        address: the queue's address.
        reported: everything that the broker reports, by name.
    """

    def __init__(self, reported: Mapping[str, Any]) -> None:
        self.messages = max(0, int(reported["messageCount"]) - int(reported["scheduledCount"]))
        self.handed_out = int(reported["deliveringCount"])
        self.consumers = int(reported["consumerCount"])
        self.address = str(reported.get("address", ""))
        self.reported = reported

    def at_first(self) -> QueueDepth:
        """Return the queue's depth for a session that has not subscribed yet.

        The depth includes delivered messages, because messages of a former session will return to the queue.
        """
        return self._depth(self.messages, 0)

    def depth(self, own_consumers: int) -> QueueDepth:
        """Return the queue's depth for a session with `own_consumers` subscriptions. It excludes delivered messages."""
        return self._depth(max(0, self.messages - self.handed_out), own_consumers)

    def _depth(self, ready: int, own: int) -> QueueDepth:
        # Subtract with a minimum of 0, because the numbers may not match: Artemis 2.40 may still count a consumer that
        # has ended.
        return QueueDepth(ready, max(0, self.consumers - own), own)


class Questions:
    """The queries of one session about one queue. At most one query is outstanding at a time.

    Args:
        address: the management address.
        queue: name of the queue, or its address and name joined by `::`.
        own: random text that distinguishes this session's answers from those of other sessions. The name of the
            subscription for answers ends with it.

    Attributes:
        name: name of the subscription for answers. The names of other subscriptions begin with a number.
        asked: whether an answer is outstanding.
        subscribed: whether the session has subscribed to answers.
        settings: settings of the queue's address, once reported.
        mark: bytes that occur in the headers of every answer, and rarely in the headers of a delivery.
    """

    def __init__(self, address: str, queue: str, own: str) -> None:
        self.address = address
        self.asked = self.subscribed = self._of_settings = False
        self.settings: dict[str, Any] | None = None
        self._queue = queue.rpartition("::")[2]
        self._asker = own
        self.name = f"answers{own}"
        self.mark = f"\nsubscription:{self.name}\n".encode()

    def subscription(self) -> tuple[str, dict[str, str]]:
        """Return the destination and the headers of the subscription for answers."""
        return _ANSWERS, {"subscription-type": "MULTICAST", "selector": f"JMSCorrelationID = '{self._asker}'"}

    def question(self) -> tuple[str, str, dict[str, str]]:
        """Return destination, body and headers of a query about the queue.

        The message must be sent without header content-length, so that the broker takes the body as text.
        """
        which = json.dumps({"field": "name", "operation": "EQUALS", "value": self._queue})
        return self._call("listQueues", which, 1, 1)

    def question_of_settings(self, address: str) -> tuple[str, str, dict[str, str]]:
        """Return destination, body and headers of a query for the settings of an address.

        :meth:`answer` then stores the settings in attribute `settings`.
        """
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
        """Return whether a message with these headers is an answer, and not a delivery from the queue.

        Header `subscription` decides. If this header is repeated, its first entry is the broker's.
        """
        return value(block, "subscription") == self.name.encode()

    def answer(self, body: bytes) -> QueueInfo | None:
        """Read an answer. Return what it reports about the queue, or None if it reports nothing about the queue."""
        self.asked = False
        if self._of_settings:
            settings = artemis_answer(body)
            self._of_settings, self.settings = False, settings if isinstance(settings, dict) else None
            return None
        try:
            (listed,) = json.loads(body)
            (reported,) = json.loads(listed)["data"]
            return QueueInfo(reported)
        # The broker has refused the query, does not know the queue, or uses another format.
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
