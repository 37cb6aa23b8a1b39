"""AMQP 1.0 by python-qpid-proton.

Proton's engine does no I/O: bytes of a socket go into its transport, bytes for the socket come
out of it, and in between connection, session and link report their states. So the socket is ours,
TLS is Python's, as for the other protocols, and nothing is paid for events that nobody
looks at. What the reactor of the same library would add is a fifth of the time of a message.

Flow control is by link credit (AMQP 1.0, 2.6.7): each session has at most `window` unsettled
deliveries, and its credit is topped up as they are settled. When too many bytes wait in the inbox
deliveries are left in the transport, whose incoming window closes (2.5.6).

An acceptance is confirmed when the broker settles the delivery (2.6.12). A broker that does not
gets the acceptances settled, and the answer to a new link behind them is the confirmation: it
says that they were processed, not that they are on disk.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, takewhile
from typing import Any, ClassVar

from proton import (
    SASL,
    UNDESCRIBED,
    Array,
    Data,
    Delivery,
    Described,
    Endpoint,
    Link,
    ProtonException,
    Receiver,
    Session,
    Terminus,
    Transport,
    symbol,
)
from proton import (
    Connection as ProtonConnection,
)

from pyspark_mq.brokers.base import Amqp10Dialect
from pyspark_mq.errors import BrokerUnavailableError, MqError
from pyspark_mq.sources.amqp10.decoder import Amqp10Decoder, UnreadableRaw
from pyspark_mq.sources.amqp10.errors import SPEAKS, open_error
from pyspark_mq.sources.amqp10.management import Management, QueueInfo
from pyspark_mq.sources.amqp10.sections import SectionReader
from pyspark_mq.sources.base import Consumer, Decoder, Greeting, QueueDepth, SessionLostError
from pyspark_mq.sources.socket_loop import SocketLoop, dial_error, hint
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["Amqp10Consumer"]

#: Small frames make the incoming window, which counts frames, a fine measure of bytes.
_FRAME_BYTES = 16 << 10
_INCOMING_BYTES = 16 << 20
_READ_BYTES = 256 << 10
_CLOSE_TIMEOUT_S = 1.0
#: What is told of a queue beside its messages is waited for this long at most.
_ASK_TIMEOUT_S = 5.0
#: Barriers whose end the broker has not answered yet.
_CLOSING_LINKS_MAX = 100
#: Credit is topped up when a tenth of the window is free: each top-up is a frame.
_TOP_UP_PARTS = 10
#: Outcomes that a sender may set by itself (AMQP 1.0, 3.4.4 and 3.4.5).
_TAKEN_BACK = frozenset({Delivery.RELEASED, Delivery.MODIFIED})
_SELECTOR = "apache.org:selector-filter:string"


class Amqp10Consumer(Consumer):
    """One connection with one session and one receiving link."""

    decoder: ClassVar[Decoder] = Amqp10Decoder()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dialect = self.endpoint.broker.amqp10
        assert dialect is not None, "an option of the source names this protocol for a broker without it"
        self._dialect: Amqp10Dialect = dialect
        self._socket = SocketLoop()
        self._transport = Transport(Transport.CLIENT)
        self._proton = ProtonConnection()
        self._session: Session | None = None
        self._link: Receiver | None = None
        self._management: Management | None = None
        self._sections = SectionReader(counts_acquirers=dialect.counts_acquirers)
        self._tags = count(1)
        self._open: dict[int, Delivery] = {}
        self._partial = bytearray()
        self._window = 0
        self._requests: deque[tuple[int, deque[Delivery]]] = deque()
        self._closing: deque[Link] = deque()
        self._barriers: deque[tuple[int, Link]] = deque()
        self._end: str | None = None
        self._told = False
        self._refused: ssl.SSLError | None = None

    # -- opening

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        deadline = time.monotonic() + timeout_s
        self._socket.dial(url, self.endpoint, deadline, SPEAKS)
        self._begin(url)
        try:
            self._until(lambda: bool(self._proton.state & Endpoint.REMOTE_ACTIVE), deadline)
            self.endpoint.check_product(url, self._property("product"))
            self._attach()
            self._until(self._attached, deadline)
            info = self._ask_queue(deadline)
        except SessionLostError:
            raise self._open_error(url) from None
        except TimeoutError:
            known = self._proton.state & Endpoint.REMOTE_ACTIVE
            what = f"{self.endpoint.destination} did not answer" if known else "no answer"
            doubt = "" if known else hint(url, SPEAKS)
            raise BrokerUnavailableError(f"{url}: {what} within {timeout_s:.0f} s{doubt}") from None
        broker_id = self._proton.remote_container if self._dialect.names_itself else None
        if info is None:
            return Greeting(url, broker_id or "", None)
        return Greeting(url, broker_id or "", self._depth(info), info.redelivery_delay_s)

    def _ask_queue(self, deadline: float) -> QueueInfo | None:
        """What the broker tells of the queue, if it does."""
        if self.endpoint.queue is None or not self._dialect.answers(self._version()):
            return None
        assert self._session is not None
        self._management = management = Management(self._session, self.endpoint.queue)
        management.ask()
        answers: list[QueueInfo] = []

        def answered() -> bool:
            info = management.answer()
            answers.extend([info] if info is not None else [])
            return not management.asked or management.refused

        with contextlib.suppress(TimeoutError):
            self._until(answered, min(deadline, time.monotonic() + _ASK_TIMEOUT_S))
        return answers[-1] if answers else None

    def _depth(self, info: QueueInfo) -> QueueDepth:
        # A link is a consumer, also without credit; and a barrier for a moment.
        own = (self._link is not None) + len(self._barriers)
        counts_lost = not self.endpoint.broker.hides_lost_consumers(self._version())
        return QueueDepth(info.ready, max(0, info.consumers - own), own, counts_lost)

    def _version(self) -> str:
        return self._property("version")

    def _property(self, name: str) -> str:
        """A property of the connection that the broker gave; empty if there is none."""
        return str((self._proton.remote_properties or {}).get(name, ""))

    def _begin(self, url: BrokerUrl) -> None:
        """Say who we are; nothing is sent before the first turn."""
        endpoint, proton = self.endpoint, self._proton
        proton.container = self._container_id()
        if url.virtual_host != "/" and self._dialect.virtual_host:
            proton.hostname = self._dialect.virtual_host.format(name=url.virtual_host)
        else:
            proton.hostname = url.host
        proton.properties = {symbol("product"): "pyspark-mq"}
        username, password = endpoint.credentials(url)
        sasl = SASL(self._transport)
        sasl.allow_insecure_mechs = True  # PLAIN without TLS is the user's choice of URL
        if username is not None:
            proton.user, proton.password = username, password or ""
            sasl.allowed_mechs("PLAIN")
        elif url.tls and endpoint.tls.cert_file is not None:
            sasl.allowed_mechs("EXTERNAL")
        else:
            sasl.allowed_mechs("ANONYMOUS")
        self._transport.max_frame_size = _FRAME_BYTES
        # The peer is asked for half of what we wait (proton advertises that half).
        self._transport.idle_timeout = 2 * endpoint.heartbeat_s
        self._transport.bind(proton)
        proton.open()

    def _container_id(self) -> str:
        # The client identifier of JMS: a durable subscription belongs to it and its name.
        subscription = self.endpoint.subscription
        if subscription is None or self.endpoint.shared:
            return f"pyspark-mq-{id(self):x}-{time.time_ns():x}"
        return f"pyspark-mq.{subscription}"

    def _attach(self) -> None:
        session = self._proton.session()
        session.incoming_capacity = _INCOMING_BYTES
        session.open()
        endpoint, dialect = self.endpoint, self._dialect
        link = session.receiver(endpoint.subscription or f"pyspark-mq-{self.session}")
        source = link.source
        source.address = self._address()
        capabilities = [dialect.capabilities[endpoint.topic is not None]] if dialect.capabilities else []
        if endpoint.subscription is not None:
            source.durability = Terminus.DELIVERIES
            source.expiry_policy = Terminus.EXPIRE_NEVER
            if endpoint.shared:
                capabilities += ["shared", "global"]
        if capabilities:
            source.capabilities.put_object(Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, capabilities)))  # type: ignore[arg-type]
        if endpoint.selector is not None:
            selector = Described(symbol(_SELECTOR), endpoint.selector)
            source.filter.put_dict({symbol("selector"): selector})
        link.snd_settle_mode = Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_FIRST
        link.open()
        self._session, self._link = session, link

    def _address(self) -> str:
        if self.endpoint.topic is not None:
            return self._dialect.topic_address(self.endpoint.topic)
        return self._dialect.queue_address(self.endpoint.name, self._version())

    def _attached(self) -> bool:
        # A refused link is attached without a source and then detached (AMQP 1.0, 2.6.3).
        link = self._link
        assert link is not None
        if not link.state & Endpoint.REMOTE_ACTIVE or not link.remote_source.address:
            return False
        if self.endpoint.selector is not None and not _has_filter(link.remote_source):
            self._end = "the broker does not know selectors"
            raise SessionLostError(self._end)
        return True

    def _until(self, done: Callable[[], bool], deadline: float) -> None:
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._turn(left)

    # -- errors

    def _condition(self) -> tuple[str, str] | None:
        """What ended the session, by the nearest to the queue that says something."""
        for place in (self._link, self._session, self._proton):
            condition = place.remote_condition if place is not None else None
            if condition is not None:
                return str(condition.name), str(condition.description or "")
        condition = self._transport.condition
        return None if condition is None else (str(condition.name), str(condition.description or ""))

    def _open_error(self, url: BrokerUrl) -> MqError:
        if self._refused is not None:
            return dial_error(self._refused, url, SPEAKS)
        return open_error(
            self._condition() or ("", self._end or "the connection was closed"),
            url,
            self.endpoint,
            opened=bool(self._proton.state & Endpoint.REMOTE_ACTIVE),
            login=self._transport.sasl().outcome in {SASL.AUTH, SASL.PERM},
        )

    # -- one turn of the loop

    def run(self, timeout_s: float) -> None:
        self._turn(timeout_s)

    def wake(self) -> None:
        self._socket.wake()

    def _turn(self, timeout_s: float) -> None:
        """Send, wait, receive; raises when there is nobody to do that with."""
        if self._end is not None or not self._socket.connected:
            raise SessionLostError(self._end or "not connected", told=self._told)
        self._top_up()
        try:
            next_s = self._transport.tick(time.monotonic())
            self._send()
            if next_s:
                timeout_s = min(timeout_s, next_s - time.monotonic())
            self._socket.wait(timeout_s)
            self._receive()
            self._send()
        except ssl.SSLError as error:
            # TLS 1.3 reports what it refuses with the first bytes after the handshake.
            self._refused = self._refused or error
            self._ended(f"{type(error).__name__}: {error}")
        except (OSError, ProtonException) as error:
            self._ended(f"{type(error).__name__}: {error}")
        self._look()

    def _send(self) -> None:
        """Write what the transport has, as far as the socket takes it."""
        transport, outgoing = self._transport, self._socket.outgoing
        self._socket.write()
        while not outgoing and (pending := transport.pending()) > 0:
            outgoing += transport.peek(pending) or b""
            transport.pop(pending)
            self._socket.write()

    def _receive(self) -> None:
        """Read what there is, up to a bound so that requests are not kept waiting."""
        transport, taken = self._transport, 0
        while taken < _READ_BYTES:
            capacity = transport.capacity()
            if capacity < 0:
                self._ended("the broker closed the connection")
                return
            if capacity > 0:
                data = self._socket.read(min(capacity, _READ_BYTES))
                if data is None:
                    break
                if not data:
                    transport.close_tail()
                    self._ended("the broker closed the connection")
                    return
                transport.push(data)
                taken += len(data)
            self._take_deliveries()
            if capacity == 0 and not transport.capacity():
                break
        self._take_deliveries()

    def _look(self) -> None:
        """Confirm what the broker has settled, and raise if something has been closed or taken back."""
        self._confirm()
        if self._management is not None and self._management.asked and self._window:
            info = self._management.answer()
            if info is not None:
                self.on_depth(self._depth(info))
        # RabbitMQ 4.3 takes messages back from a consumer that is too slow for it (its consumer timeout) by a
        # disposition on the link, which stays open and gets them no more. The oldest is the first.
        oldest = next(iter(self._open.values()), None)
        if oldest is not None and oldest.remote_state in _TAKEN_BACK:
            self._ended("the broker took messages back that were not acknowledged in time")
            self._told = True
        link, session = self._link, self._session
        for place in (link, session, self._proton):
            if place is not None and place.state & Endpoint.REMOTE_CLOSED:
                self._ended("closed by the broker")
        if self._transport.condition is not None:
            self._ended("the connection failed")
        if self._end is not None:
            raise SessionLostError(self._end, told=self._told)

    def _ended(self, words: str) -> None:
        if self._end is None:
            condition = self._condition()
            self._told = condition is not None and condition[0] != "amqp:connection:forced"
            self._end = f"{words} ({condition[0]}: {condition[1]})" if condition is not None else words

    # -- receiving

    def consume(self, window: int) -> None:
        """The window counts all that is held."""
        self._window = window
        self._top_up()

    def _top_up(self) -> None:
        link = self._link
        if link is None or self._window == 0 or self.paused:
            return
        free = self._window - len(self._open) - link.credit
        most = self._dialect.credit_max or self._window
        free = min(free, most - link.credit)
        if free > 0 and (free * _TOP_UP_PARTS >= most or not link.credit):
            link.flow(free)

    def _take_deliveries(self) -> None:
        link, inbox, held = self._link, self.inbox, self._open
        if link is None:
            return
        arrived_before = self.bytes_arrived
        while not self.paused and (delivery := link.current) is not None:
            if delivery.aborted:
                self._partial.clear()
                link.advance()
                delivery.settle()
                continue
            if not delivery.readable:
                break
            data = link.recv(delivery.pending) or b""
            if delivery.partial or self._partial:
                self._partial += data
                if delivery.partial:
                    break
                data = bytes(self._partial)
                self._partial.clear()
            link.advance()
            tag = next(self._tags)
            raw = self._sections.read(tag, data)
            if type(raw) is UnreadableRaw and not self.keeps_unreadable:
                raise self._refuse(self.decoder.unreadable([raw])[0])
            held[tag] = delivery
            inbox.append(raw)
            self.bytes_arrived += len(raw.body) or 1
            if self.bytes_arrived - self.bytes_taken > self.bytes_allowed:
                self.paused = True
        if self.bytes_arrived != arrived_before and not self.arrived.is_set():
            self.arrived.set()

    def resume(self) -> None:
        self.paused = False
        self._take_deliveries()

    # -- settling

    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        """Neighbours leave as one disposition with a range."""
        held = self._open
        tags = [*takewhile(lambda tag: tag <= upto, held), *(tag for tag in singles if tag > upto)]
        deliveries = deque(held.pop(tag) for tag in tags if tag in held)
        for delivery in deliveries:
            delivery.update(Delivery.ACCEPTED)
        if self._dialect.confirms:
            self._requests.append((number, deliveries))
            return
        for delivery in deliveries:
            delivery.settle()
        self._barriers.append((number, self._barrier()))

    def _barrier(self) -> Link:
        """A link that nothing comes or goes on: its answer comes after the broker has seen what went before."""
        assert self._session is not None
        name = f"pyspark-mq-barrier-{time.monotonic_ns()}"
        if self.endpoint.topic is None:
            # A user who may only read may have another receiving link; without credit it is sent nothing.
            link: Link = self._session.receiver(name)
            source = link.source
        else:
            # There it would be one more subscription.
            link = self._session.sender(name)
            source = link.target
        source.address = self._address()
        if self.endpoint.topic is None and self._dialect.capabilities:
            source.capabilities.put_object(Array(UNDESCRIBED, Data.SYMBOL, symbol(self._dialect.capabilities[0])))  # type: ignore[arg-type]
        link.open()
        return link

    def _confirm(self) -> None:
        while self._requests:
            number, deliveries = self._requests[0]
            while deliveries and deliveries[0].settled:
                deliveries.popleft().settle()
            if deliveries:
                break
            self._requests.popleft()
            self.on_confirmed(number)
        while self._barriers and self._barriers[0][1].state & Endpoint.REMOTE_ACTIVE:
            number, link = self._barriers.popleft()
            link.close()
            self._closing.append(link)
            self.on_confirmed(number)
        # Not before the broker has closed it too: proton keeps 2 kB of a link that was freed earlier. The plugin of
        # RabbitMQ 3 never does, so there each settlement costs that.
        while self._closing and (
            self._closing[0].state & Endpoint.REMOTE_CLOSED or len(self._closing) > _CLOSING_LINKS_MAX
        ):
            self._closing.popleft().free()

    def reject(self, tags: Sequence[int]) -> None:
        """Outcome `rejected` (AMQP 1.0, 3.4.3)."""
        for tag in tags:
            delivery = self._open.pop(tag, None)
            if delivery is not None:
                delivery.update(Delivery.REJECTED)
                delivery.settle()

    def ask_depth(self) -> None:
        """AMQP 1.0 has no such question; there are brokers that answer one of their own."""
        if self._management is not None:
            self._management.ask()

    def close(self) -> None:
        if self._socket.connected:
            with contextlib.suppress(Exception):  # the session is over, whatever the other side says
                self._say_goodbye()
        self._socket.close()

    def _say_goodbye(self) -> None:
        if self._end is not None:
            return
        # Closing a link would end a durable subscription; the end of the connection does not.
        self._window = 0
        self._link = None
        self._proton.close()
        self._until(lambda: bool(self._proton.state & Endpoint.REMOTE_CLOSED), time.monotonic() + _CLOSE_TIMEOUT_S)


def _has_filter(source: Terminus) -> bool:
    data = source.filter
    data.rewind()
    return bool(data.next() and data.get_object())
