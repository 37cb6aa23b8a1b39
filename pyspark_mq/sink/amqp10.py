"""Publishes messages over AMQP 1.0.

A message counts as confirmed when the broker states the outcome `accepted` for it (AMQP 1.0, 3.4.2). RabbitMQ 4 states
`released` for a message that it cannot route to a queue, and `rejected` for a message that a full queue refuses. Both
ActiveMQ brokers state `rejected` for such messages, or end the link.

Each destination has a link of its own. On brokers that create missing destinations, the link states the kind of
destination (capability `queue` or `topic`). Without the capability Artemis would create a topic even for a queue, and a
topic keeps no messages.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from typing import Any, TypeAlias
from urllib.parse import quote

from proton import UNDESCRIBED, Array, Data, Delivery, Endpoint, Link, symbol
from proton import Message as ProtonMessage

from pyspark_mq.brokers.destinations import as_written
from pyspark_mq.errors import DestinationError, MqError, OptionError, RowError, WriteError
from pyspark_mq.sink.amqp10_message import encoded
from pyspark_mq.sink.publisher import Publisher, WriteInterruptedError
from pyspark_mq.sink.settings import NO_DESTINATION, Destination, Message
from pyspark_mq.wire.amqp10.connection import Amqp10Connection, condition_of
from pyspark_mq.wire.amqp10.engine import free_closed
from pyspark_mq.wire.amqp10.errors import is_stated
from pyspark_mq.wire.connection import ConnectionLostError

__all__ = ["Amqp10Publisher"]

_READ_BYTES = 256 << 10
#: Number of messages that are passed to proton before the socket is written and read again.
_TURN_MESSAGES = 200
_TURN_S = 1.0
#: Maximum number of open links. It is needed because rows may name any number of destinations.
_LINKS_MAX = 100
#: Longest name of a destination. Artemis ends the connection if a link's name does not fit into a frame.
_NAME_BYTES_MAX, _NAME_SHOWN = 8_192, 100
_PRIORITY_MAX = 9
_NO_CREDIT = "it gives no credit to send more"
_NO_WINDOW = "it has stopped reading"
_OLDEST_RABBITMQ = 4
#: In the description of `amqp:not-found`, with which RabbitMQ 4.0 ends the session.
_NO_QUEUE = re.compile(r"no queue '(.*)' in vhost", re.DOTALL)
#: Key and value in the condition of an outcome `rejected` if the queue's node is down: "queue 'x' is unavailable"
#: (RabbitMQ 4.3).
_REASON, _UNAVAILABLE = symbol("reason"), symbol("unavailable")
_Encoded: TypeAlias = "tuple[Destination, bytes, str]"


class Amqp10Publisher(Publisher):
    """A publisher over AMQP 1.0: one connection with one session, and a sending link for each destination."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connection = Amqp10Connection(self.endpoint, look=self._look)
        self._links: dict[Destination, Any] = {}
        self._closing: deque[Any] = deque()
        self._number = 0
        self._failed: MqError | None = None
        #: Delivery tag of an unconfirmed message -> its delivery, its destination and its ID.
        self._sent: dict[str, tuple[Delivery, Destination, str]] = {}

    # -- opening

    def open(self, deadline: float) -> None:
        connection = self._connection
        connection.open(self.url, deadline, f"pyspark-mq-{id(self):x}-{time.time_ns():x}", self.attempt)
        self._check_broker()
        connection.session = connection.proton.session()
        connection.session.open()
        if self.settings.destination is not None:
            self._link(self.settings.destination, deadline)

    def _check_broker(self) -> None:
        version = self._connection.server_property("version")
        self.endpoint.check_product(self.url, self._connection.server_property("product"))
        major = version.partition(".")[0]
        if self.endpoint.broker.name == "rabbitmq" and major.isdecimal() and int(major) < _OLDEST_RABBITMQ:
            raise OptionError(
                "protocol",
                f"'amqp-1.0' cannot write to RabbitMQ {version} at {self.url}: before version 4, RabbitMQ does not "
                "report unroutable messages. Use 'amqp-0-9-1', which is the default",
            )

    def probe(self, destination: Destination, deadline: float) -> None:
        self._link(destination, deadline)

    def _link(self, destination: Destination, deadline: float) -> Any:
        """Return the link to a destination; open it if necessary. Raise an error if the broker refuses the link."""
        link = self._links.get(destination)
        if link is not None:
            return link
        if len(destination.name.encode()) > _NAME_BYTES_MAX:
            raise DestinationError(
                f"{self.url}: the name of {destination.kind} '{destination.name[:_NAME_SHOWN]}...' is too long for a "
                f"frame of AMQP 1.0: shorten it, to at most {_NAME_BYTES_MAX} bytes"
            )
        if len(self._links) >= _LINKS_MAX:
            self._drain()
            for old in self._links.values():
                old.close()
            self._closing.extend(self._links.values())
            self._links.clear()
        self._number += 1
        link = self._connection.session.sender(f"pyspark-mq-writes-{self._number}")
        link.target.address = self._address(destination)
        dialect = self.endpoint.broker.amqp10
        if dialect is not None and dialect.capabilities:
            wanted = symbol(dialect.capabilities[destination.kind.endswith("topic")])
            link.target.capabilities.put_object(Array(UNDESCRIBED, Data.SYMBOL, wanted))  # type: ignore[arg-type]
        link.snd_settle_mode = Link.SND_UNSETTLED
        link.open()
        self._links[destination] = link

        # A broker that refuses a link first attaches it without a target and then detaches it (AMQP 1.0, 2.6.3). So
        # wait until the link has a target or is closed.
        def ready() -> bool:
            return self._refused(link) or bool(link.state & Endpoint.REMOTE_ACTIVE and link.remote_target.address)

        with contextlib.suppress(ConnectionLostError, TimeoutError):
            self._connection.until(ready, deadline)
        if self._refused(link):
            raise self._link_error(destination, link)
        if not ready():
            raise self._end_error() if self._connection.end else self.lost(f"no answer about {destination}")
        return link

    @staticmethod
    def _refused(link: Any) -> bool:
        return bool(link.state & Endpoint.REMOTE_CLOSED)

    def _address(self, destination: Destination) -> str:
        if destination.kind == "exchange":
            key = f"/{quote(destination.key, safe='')}" if destination.key else ""
            return f"/exchanges/{quote(destination.name, safe='')}{key}"
        dialect = self.endpoint.broker.amqp10
        assert dialect is not None
        if destination.kind == "topic":
            return dialect.topic_address(destination.name)
        if destination.kind != "queue":
            named = f"{destination.kind}://{destination.name}"
            return as_written(named, dialect.forms) if dialect.forms else destination.name
        return dialect.queue_address(destination.name, str(_OLDEST_RABBITMQ))

    def reading(self, deadline: float) -> str:
        """Find out whether readers that use other protocols can read what is written; see the base class.

        The publisher sends a message to a temporary queue of its own, and looks whether the broker has converted it.
        """
        dialect = self.endpoint.broker.amqp10
        if dialect is None or not dialect.converted_by:
            return ""
        connection, session = self._connection, self._connection.session
        receiver, links = session.receiver("pyspark-mq-own"), deque[Any]()
        receiver.source.dynamic = True
        receiver.open()
        receiver.flow(1)
        links.append(receiver)
        answer = b""
        # If the connection has ended, sending the messages will raise the error.
        with contextlib.suppress(MqError, ConnectionLostError, TimeoutError):
            connection.until(lambda: bool(receiver.remote_source.address) or self._refused(receiver), deadline)
            if receiver.remote_source.address:
                sender = session.sender("pyspark-mq-to-own")
                sender.target.address = receiver.remote_source.address
                sender.snd_settle_mode = Link.SND_SETTLED
                sender.open()
                links.append(sender)
                connection.until(lambda: sender.credit > 0, deadline)
                sender.send(ProtonMessage(body=""))
                connection.until(lambda: bool(receiver.current and not receiver.current.partial), deadline)
                answer = receiver.recv(_READ_BYTES) or b""
        for link in links:
            link.close()
        self._closing.extend(links)
        if not answer or dialect.converted_mark in answer:
            return ""
        return (
            f"{self.url}: only AMQP 1.0 clients can read what is written there. Clients of other protocols, such as "
            "OpenWire and STOMP, get each message's AMQP encoding as its body. For such readers, set "
            f"`{dialect.converted_by}` at the broker's AMQP connector"
        )

    # -- sending

    def encode(self, message: Message) -> _Encoded:
        broker = self.endpoint.broker
        if message.priority is not None and message.priority > _PRIORITY_MAX and broker.name != "rabbitmq":
            raise RowError(
                f"a row has {message.priority} in column 'priority', but '{broker.name}' allows 0 to {_PRIORITY_MAX}"
            )
        return message.destination, encoded(message, broker.name, broker.amqp10), message.id

    def send(self, encoded: list[_Encoded]) -> None:
        window = self.window
        for number, (destination, data, message_id) in enumerate(encoded):
            if number % _TURN_MESSAGES == 0:
                self._pass(0.0)
            try:
                link = self._links.get(destination) or self._link(
                    destination, time.monotonic() + self.endpoint.connect_timeout_s
                )
            except (DestinationError, WriteError) as refusal:
                if not self._drops(destination, refusal):
                    raise
                window.skip()
                self.remarks.drop(NO_DESTINATION, refusal.text)
                if self._connection.end:  # RabbitMQ 4.0 has ended the session
                    raise self.lost(self._connection.end) from refusal
                continue
            while window.full or link.credit <= 0:
                self._pass(_TURN_S, waits=not window.unconfirmed and link.credit <= 0)
            self._number += 1
            tag = str(self._number)
            self._sent[tag] = link.delivery(tag), destination, message_id
            link.stream(data)
            link.advance()
            window.sent(tag, len(data))
        self._drain()

    def _drops(self, destination: Destination, refusal: MqError) -> bool:
        """Whether to drop a row because its destination does not exist or is refused.

        If so, close the link to the destination.
        """
        if not (isinstance(refusal, DestinationError) and self.settings.drops_destinations):
            return False
        if self._failed is not None and self._failed.text == refusal.text:
            self._failed = None
        link = self._links.pop(destination, None)
        if link is not None:
            link.close()
            self._closing.append(link)
        return True

    def _drain(self) -> None:
        while self.window.unconfirmed:
            self._pass(_TURN_S)

    def _pass(self, timeout_s: float, *, waits: bool = False) -> None:
        """Write and read the socket once, process what has arrived, and raise an error if something has failed.

        Args:
            timeout_s: longest wait for bytes from the broker.
            waits: whether the publisher waits for credit while all sent messages are confirmed.
        """
        connection = self._connection
        connection.turn(timeout_s)
        if self._failed is not None:
            raise self._failed
        # While RabbitMQ has an alarm, it does not let the session send more transfers, so messages stay in the engine.
        stuck = not connection.socket.outgoing and connection.session.outgoing_bytes > 0
        self.window.block(_NO_WINDOW if stuck else _NO_CREDIT if waits else "")
        self.window.check(connection.socket.received_s)

    def _look(self) -> None:
        """Process outcomes that have arrived, and then note the end of a link or of the connection as an error.

        Raises:
            WriteError: the broker did not accept a message.
        """
        self._connection.note_close()
        if self._connection.session is None:
            return  # the login
        free_closed(self._closing)
        # Look at the oldest messages first, because outcomes nearly always arrive in order. Only if none of these has
        # an outcome, look at all messages.
        if not self._take_outcomes(first=True):
            self._take_outcomes(first=False)
        for destination, link in self._links.items():
            if self._refused(link):
                self._failed = self._failed or self._link_error(destination, link)
        if self._failed is None and self._connection.end:
            self._failed = self._end_error()
        if isinstance(self._failed, WriteError):
            raise self._failed

    def _take_outcomes(self, *, first: bool) -> int:
        """Process the outcomes of sent messages, and return how many of them were `accepted`.

        Args:
            first: whether to stop at the first message that has no outcome yet.
        """
        accepted, gone = [], []
        for tag, (delivery, _, _) in self._sent.items():
            state = delivery.remote_state
            if state == Delivery.ACCEPTED:
                accepted.append(tag)
            elif state or delivery.settled:
                failure = self._outcome_error(tag)
                if self._is_gone(tag) and self.settings.drops_destinations:
                    gone.append((tag, failure))
                else:
                    self._failed = self._failed or failure
            elif first:
                break
        for _, failure in gone:
            self.remarks.drop(NO_DESTINATION, failure.text)
        for tag in [*accepted, *(tag for tag, _ in gone)]:
            self._sent.pop(tag)[0].settle()
            self.window.confirmed(tag)
        return len(accepted)

    def _is_gone(self, tag: str) -> bool:
        """Whether the outcome of a message says that its destination does not exist.

        RabbitMQ states `released` for a message that it cannot route to a queue. ActiveMQ Classic states `rejected` if
        the connection that owned a temporary destination has ended: "Cannot publish to a deleted Destination" (6.3).
        """
        delivery, destination, _ = self._sent[tag]
        if delivery.remote_state in (Delivery.RELEASED, Delivery.MODIFIED):
            return self.endpoint.broker.name == "rabbitmq"
        condition = delivery.remote.condition
        text = str(condition.description or "") if condition is not None else ""
        return destination.kind.startswith("temp-") and "deleted Destination" in text

    def _outcome_error(self, tag: str) -> MqError:
        delivery, destination, message_id = self._sent[tag]
        state = delivery.remote_state
        condition = delivery.remote.condition
        reason = f"{condition.name}: {condition.description}" if condition is not None else f"{state or 'no outcome'}"
        details = condition.info if condition is not None else None
        if isinstance(details, dict) and details.get(_REASON) == _UNAVAILABLE:
            return self.unavailable(destination, reason)
        if state in (Delivery.RELEASED, Delivery.MODIFIED):
            return WriteError(
                f"{self.url}: no queue accepted the message with messageId '{message_id}' for {destination} "
                f"({reason}): declare or bind a queue, or correct option or column '{destination.kind}'"
            )
        return WriteError(
            f"{self.url}: {destination} rejected the message with messageId '{message_id}' ({reason}): the destination "
            "is full, or refuses such messages. Make room in it, or see the broker's log"
        )

    def _link_error(self, destination: Destination, link: Any) -> MqError:
        condition = link.remote_condition
        if condition is None:
            return WriteError(f"{self.url}: the broker closed the link to {destination} without a reason: see its log")
        refusal = self._refusal(
            str(destination), destination.kind, str(condition.name), str(condition.description or "")
        )
        # Only the link has ended, not the connection. So the broker refuses this destination, for example because of
        # characters in its name, and another connection would not help.
        return DestinationError(refusal.text) if isinstance(refusal, WriteInterruptedError) else refusal

    def _end_error(self) -> MqError:
        """Return the error for the end of the session or the connection."""
        connection = self._connection
        condition = condition_of(connection.session)
        if condition is None:
            reason = ": ".join(filter(None, connection.condition or (connection.end,)))
            # Without a condition of the connection, the error is proton's own, so the broker has not stated a reason.
            return self.lost(reason, stated=connection.stated and condition_of(connection.proton) is not None)
        # RabbitMQ 4.0 ends the session if it refuses a link, and only its words say which destination of the rows.
        destination = self.settings.destination
        if destination is None and (missing := _NO_QUEUE.search(condition[1])) is not None:
            destination = Destination("queue", missing[1])
        where, kind = (
            ("a destination of the rows", "queue") if destination is None else (str(destination), destination.kind)
        )
        return self._refusal(where, kind, *condition)

    def _refusal(self, where: str, kind: str, name: str, description: str) -> MqError:
        reason = f"{name}: {description}"
        if name == "amqp:link:message-size-exceeded":
            return WriteError(
                f"{self.url}: a message for {where} is larger than the broker accepts ({reason}): shorten column "
                "'body', or raise the broker's limit"
            )
        if name == "amqp:not-found":
            return DestinationError(
                f"{where} does not exist at {self.url}: declare it, or correct option or column '{kind}' ({reason})"
            )
        if name in {"amqp:unauthorized-access", "amqp:not-allowed"}:
            return DestinationError(
                f"{where} at {self.url} may not be written to by user '{self.endpoint.user(self.url)}' ({reason}): "
                "grant this user permission to write, or correct option 'username'"
            )
        if name == "amqp:resource-limit-exceeded":
            return WriteError(f"{self.url}: {where} is full ({reason}): make room in it, or raise its limit")
        return self.lost(reason, stated=is_stated(name, description))

    def close(self) -> None:
        self._connection.close(waits=self._failed is None)
