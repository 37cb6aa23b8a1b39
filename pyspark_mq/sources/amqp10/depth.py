"""Queries about a queue to RabbitMQ 4.0 or later over AMQP 1.0, through a pair of links to its management address.

A request is like one of HTTP: the message's subject is the method, and its address is the path. The answer has the
status as its subject (RabbitMQ's documentation, "AMQP 1.0", "Management"). Each user who may read the queue may send
such requests.
"""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import quote

from proton import Delivery, Endpoint, Link, Message, Receiver, Sender, symbol
from proton import Session as ProtonSession

from pyspark_mq.decode.amqp10_encoding import Pairs
from pyspark_mq.decode.amqp10_sections import read_sections

__all__ = ["ManagementLinks"]

_ADDRESS = "/management"
_NAME = "pyspark-mq-management"
_CREDIT = 10
_OK = "200"
#: An encoded section `amqp-value` with null (AMQP 1.0, 3.2.8 and 1.6.1). The broker requires it in a request, but
#: proton does not write a section for null.
_NULL_VALUE = b"\x00\x53\x77\x40"


class ManagementLinks:
    """The links for queries about one queue, to RabbitMQ's management address.

    There is one link for requests, and one for answers. If the broker refuses a query, the session continues.

    Args:
        session: an open session.
        queue: name of the queue.
    """

    def __init__(self, session: ProtonSession, queue: str) -> None:
        self._path = f"/queues/{quote(queue, safe='')}"
        self._number = 0
        #: Whether a request was sent that is not answered yet.
        self.asked = False
        self._to: Sender = session.sender(_NAME)
        self._from: Receiver = session.receiver(_NAME)
        self._to.target.address = self._from.source.address = _ADDRESS
        for link in (self._to, self._from):
            link.properties = {symbol("paired"): True}
            link.snd_settle_mode = Link.SND_SETTLED
            link.rcv_settle_mode = Link.RCV_FIRST
            link.open()
        self._from.flow(_CREDIT)

    @property
    def refused(self) -> bool:
        """Whether the broker has closed one of the links."""
        return bool((self._to.state | self._from.state) & Endpoint.REMOTE_CLOSED)

    def ask(self) -> None:
        """Send a request about the queue, unless the answer to the last request is still to come."""
        if self.asked or self.refused:
            return
        self._number += 1
        self.asked = True
        request = Message(id=self._number, address=self._path, subject="GET", reply_to="$me")
        delivery = self._to.delivery(str(self._number))
        self._to.send(request.encode() + _NULL_VALUE)
        delivery.settle()
        self._to.advance()

    def answer(self) -> dict[str, Any] | None:
        """Return the newest answer that has arrived since the last call; None if there is no usable answer."""
        found = None
        while (delivery := self._from.current) is not None and delivery.readable and not delivery.partial:
            found = self._read(delivery) or found
            self._from.advance()
            delivery.settle()
            self._from.flow(1)
            self.asked = False
        return found

    def _read(self, delivery: Delivery) -> dict[str, Any] | None:
        data = bytes(self._from.recv(delivery.pending) or b"")
        with contextlib.suppress(ValueError, IndexError):  # an unreadable answer counts as no answer
            answer = read_sections(data)
            if answer.subject == _OK and isinstance(answer.value, Pairs):
                return _dictionary(answer.value)
        return None


def _dictionary(pairs: Pairs) -> dict[str, Any]:
    """Convert a decoded map, and maps within it, to dictionaries. Entries whose keys are not text are left out."""
    return {
        key: _dictionary(value) if isinstance(value, Pairs) else value for key, value in pairs if isinstance(key, str)
    }
