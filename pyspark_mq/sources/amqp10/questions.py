"""Queries about a queue to Artemis over AMQP 1.0, sent to its management address over a separate connection.

As over STOMP (:mod:`pyspark_mq.sources.stomp.depth`), a query is a message that names an operation in its properties,
and has the arguments in its body, as JSON (Artemis' manual, "Using Management Message API"). Answers go to a temporary
address, which the broker creates for a link that requests one (AMQP 1.0, 3.5.3). The user needs the permissions
`manage` and `send` for the management address, and the permissions to create and consume a temporary queue. If they are
missing, the broker ends only this separate connection.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from proton import Endpoint as State
from proton import Message, Sender

from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts, artemis_answer, of_artemis, of_artemis_settings
from pyspark_mq.errors import MqError
from pyspark_mq.sources.amqp10.incoming import Incoming
from pyspark_mq.sources.amqp10.session import Amqp10Session
from pyspark_mq.sources.connections.session import ReceiveBuffer
from pyspark_mq.wire.connection import ConnectionLostError
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["ask_queue"]

_ANSWER_TIMEOUT_S = 5.0
_CREDIT = 10


def ask_queue(endpoint: Endpoint, url: BrokerUrl) -> QueueFacts:
    """Return facts about the queue and its address. A fact is unknown if the user lacks permissions to ask for it."""
    asker = _Asker(replace(endpoint, selector=None, subscription=None), 1, ReceiveBuffer())
    facts = NOTHING_KNOWN
    try:
        asker.open(url, endpoint.connect_timeout_s)
        asker.consume(_CREDIT)
        queue = endpoint.name.rpartition("::")[2]
        found = asker.queues("name", queue)
        address = str((found[0] if found else {}).get("address") or endpoint.name.partition("::")[0])
        facts = of_artemis(found[0] if found else {})
        settings = artemis_answer(asker.ask("getAddressSettingsAsJSON", address))
        if isinstance(settings, dict):
            facts = facts.or_else(of_artemis_settings(settings))
            target = settings.get("deadLetterAddress")
            if target:
                facts = replace(facts, dead_letters_arrive=bool(asker.queues("address", str(target))))
    except (MqError, ConnectionLostError, TimeoutError):
        pass
    finally:
        asker.close()
    return facts


class _Asker(Amqp10Session):
    """A connection with a link for queries and a link for answers, instead of a link to the queue."""

    _to: Sender

    def _attach(self) -> None:
        connection = self._connection
        session = connection.proton.session()
        session.open()
        link = session.receiver("pyspark-mq-answers")
        link.source.dynamic = True
        self._to = session.sender("pyspark-mq-questions")
        self._to.target.address = self._dialect.management
        link.open()
        self._to.open()
        connection.session, connection.link, self._incoming = session, link, Incoming(link)

    def _attached(self) -> bool:
        return super()._attached() and bool(self._to.state & State.REMOTE_ACTIVE)

    def queues(self, field: str, value: str) -> list[dict[str, Any]]:
        """Return the broker's entries for the queues in which a field has this value.

        Raises:
            ConnectionLostError: the user lacks a permission.
            TimeoutError: the broker does not answer.
        """
        which = json.dumps({"field": field, "operation": "EQUALS", "value": value})
        answer = artemis_answer(self.ask("listQueues", which, 1, 1))
        rows = answer.get("data") if isinstance(answer, dict) else None
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def ask(self, operation: str, *arguments: object) -> bytes:
        """Call a management operation, and return the body of the broker's answer.

        Raises:
            ConnectionLostError: the user lacks a permission.
            TimeoutError: the broker does not answer.
        """
        deadline = self.now_s() + _ANSWER_TIMEOUT_S
        connection = self._connection
        connection.until(lambda: self._to.credit > 0, deadline)
        assert connection.link is not None
        question = Message(
            body=json.dumps(arguments),
            address=self._dialect.management,
            reply_to=connection.link.remote_source.address,
            properties={"_AMQ_ResourceName": "broker", "_AMQ_OperationName": operation},
        )
        delivery = self._to.delivery(operation)
        self._to.send(question.encode())
        delivery.settle()
        self._to.advance()
        connection.until(lambda: bool(self.buffer.inbox), deadline)
        return bytes(self.batches.of(self.buffer.take()).body()[-1].as_py())
