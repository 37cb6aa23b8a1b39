"""Questions to Artemis about a queue, over STOMP. Uses no socket and no clock.

A question is a message to the broker's management address. It names an operation in its properties, and has the
arguments in its body, as JSON. The answer goes to the reply address that the question names (Artemis' manual, "Using
Management Message API"). So the user must be allowed to `manage` the management address, and to create and consume an
address for answers. Other users get an ERROR, after which the broker closes the connection: "AMQ229032 User reader does
not have permission='CREATE_ADDRESS' on address …", or "AMQ339011 Error sending message CoreMessage[…]" (2.56).

The broker does not take all counts at the same moment: while messages flowed, the counts were up to some hundreds too
high or a few too low (measured on 2.40 and 2.56). Without traffic they are right. Messages of a dead connection count
as delivered until the broker notices the connection's end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark_mq.brokers.facts import artemis_answer
from pyspark_mq.decode.stomp_headers import value
from pyspark_mq.sources.connections.session import QueueDepth

__all__ = ["Questions", "QueueInfo"]

#: Address for answers. All sources use the same address, so that brokers that keep addresses keep only one.
_ANSWERS = "pyspark-mq.answers"


class QueueInfo:
    """Facts about a queue.

    Attributes:
        messages: number of all messages, delivered or not, without delayed ones.
        handed_out: number of these messages that consumers hold.
        consumers: number of all consumers.
        address: the queue's address.
        reported: the whole answer.
    """

    def __init__(self, reported: Mapping[str, Any]) -> None:
        self.messages = max(0, int(reported["messageCount"]) - int(reported["scheduledCount"]))
        self.handed_out = int(reported["deliveringCount"])
        self.consumers = int(reported["consumerCount"])
        self.address = str(reported.get("address", ""))
        self.reported = reported

    def at_first(self) -> QueueDepth:
        """Return the depth before a session takes anything. It includes messages that a former session will return."""
        return self._depth(self.messages, 0)

    def depth(self, own_consumers: int) -> QueueDepth:
        """Return the depth while a session has this many subscriptions."""
        return self._depth(max(0, self.messages - self.handed_out), own_consumers)

    def _depth(self, ready: int, own: int) -> QueueDepth:
        # Artemis 2.40 may keep counting messages of a consumer that is gone.
        return QueueDepth(ready, max(0, self.consumers - own), own)


class Questions:
    """Repeated questions about one queue; at most one is open.

    Args:
        address: the management address.
        queue: name of the queue, or its address and name joined by `::`.
        own: distinguishes our answers from those of others, and ends the name of the subscription for answers.

    Attributes:
        name: of the subscription for answers; names of other subscriptions begin with a number.
        asked: whether an answer is due.
        subscribed: whether there is a subscription for answers.
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
        """Return the destination and headers of the subscription for answers."""
        return _ANSWERS, {"subscription-type": "MULTICAST", "selector": f"JMSCorrelationID = '{self._asker}'"}

    def question(self) -> tuple[str, str, dict[str, str]]:
        """Return destination, body and headers of a question. The body is text, so the frame has no content-length."""
        which = json.dumps({"field": "name", "operation": "EQUALS", "value": self._queue})
        return self._call("listQueues", which, 1, 1)

    def question_of_settings(self, address: str) -> tuple[str, str, dict[str, str]]:
        """Return a question about an address's settings. The next answer is stored in `settings`."""
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
        """Whether a message with these headers is an answer and not a delivery from the queue.

        The broker sets the header `subscription`; if this header occurs several times, the first one counts.
        """
        return value(block, "subscription") == self.name.encode()

    def answer(self, body: bytes) -> QueueInfo | None:
        """Read an answer; return None if it has no facts about the queue."""
        self.asked = False
        if self._of_settings:
            settings = artemis_answer(body)
            self._of_settings, self.settings = False, settings if isinstance(settings, dict) else None
            return None
        try:
            (listed,) = json.loads(body)
            (reported,) = json.loads(listed)["data"]
            return QueueInfo(reported)
        # The answer is a refusal, or about no known queue, or has another format.
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
