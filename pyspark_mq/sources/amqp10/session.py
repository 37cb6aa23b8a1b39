"""Sessions over AMQP 1.0, with python-qpid-proton.

Link credit (AMQP 1.0, 2.6.7) limits what the broker delivers: a session has at most `window` unsettled deliveries, and
grants more credit when some are settled. If too many bytes are unprocessed in the inbox, deliveries stay in the engine,
and its incoming window closes (2.5.6).

To acknowledge a delivery, the session accepts it, and the broker confirms this by settling it (2.6.12). Some brokers do
not settle deliveries. For these, the session opens another link after it has accepted deliveries: a *flush marker*. The
broker's answer to this link shows that the acceptances were processed, though they may not be on disk. The session
settles a delivery only after its confirmation, so that it notices the broker's own outcome. If that is another outcome
than `accepted`, the session ends, and the message is redelivered. If a broker that settles deliveries leaves one
unsettled for long, the session opens a flush marker, too. If the broker answers that link first, it does not hold the
delivery any more, and the session ends.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar

from proton import UNDESCRIBED, Array, Data, Described, Endpoint, Link, ProtonException, Terminus, symbol

from pyspark_mq.brokers.base import Amqp10Dialect
from pyspark_mq.brokers.facts import of_rabbitmq, version_of
from pyspark_mq.decode.amqp10 import Amqp10Batch, WalkedBatch, find_batches
from pyspark_mq.decode.amqp10_message import UnreadableMessage, unreadable_of
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.batch import ROW_BYTES, DeliveryBatch
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.amqp10.depth import ManagementLinks
from pyspark_mq.sources.amqp10.incoming import Handle, Incoming
from pyspark_mq.sources.amqp10.transfers import Transfers
from pyspark_mq.sources.connections.session import COPIED, Greeting, QueueDepth, Session, SessionLostError
from pyspark_mq.wire.amqp10.connection import UNREADABLE, UNREADABLE_ERRORS, Amqp10Connection
from pyspark_mq.wire.amqp10.engine import FRAME_BYTES, free_closed
from pyspark_mq.wire.connection import ConnectionLostError
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["Amqp10Session"]

_INCOMING_BYTES = 16 << 20
#: If the broker has not settled accepted deliveries after this time, a flush marker finds out whether it still will.
_SETTLED_S = 30.0
#: Longest wait for the broker's report about a queue while a session is opened.
_ASK_TIMEOUT_S = 5.0
#: More credit is granted only when at least a tenth of the window is free, because each grant is a frame.
_TOP_UP_PARTS = 10
#: The encoded name (AMQP 1.0, 1.6.21) of a message annotation that each message of a RabbitMQ stream has.
_STREAM_OFFSET = b"\xa3\x0fx-stream-offset"
_SELECTOR = "apache.org:selector-filter:string"


class Amqp10Session(Session):
    """A session over AMQP 1.0: one connection with one AMQP session and one receiving link."""

    batches: ClassVar[type[DeliveryBatch]] = Amqp10Batch  # type: ignore[type-abstract]  # `of` chooses

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dialect = self.endpoint.broker.amqp10
        assert dialect is not None, "an option of the source names this protocol for a broker without it"
        self._dialect: Amqp10Dialect = dialect
        self._link_name = self.endpoint.subscription or f"pyspark-mq-{self.number}"
        self._transfers = Transfers(self._link_name, FRAME_BYTES)
        self._connection = Amqp10Connection(
            self.endpoint,
            self.now_s,
            self.options.stopping,
            look=self._look,
            cut=lambda data: self._transfers.cut(data, take=not self.paused),
        )
        self._window = 0
        self._management: ManagementLinks | None = None
        self._sections = SectionReader(counts_acquirers=self._dialect.counts_acquirers, forms=self._dialect.forms)
        self._incoming: Incoming | None = None
        self._open: dict[int, Handle] = {}
        #: Tag of the newest delivery.
        self._newest = 0
        #: The newest messages, which are not in the inbox yet. The last of them has the tag `_newest`.
        self._taken: list[bytes] = []
        #: Requests that the broker confirms by settling deliveries: number, time, and deliveries that are not settled.
        self._requests: deque[tuple[int, float, deque[Handle]]] = deque()
        self._closing: deque[Link] = deque()
        #: Number of each request that a later flush marker will confirm, and the deliveries that it accepted.
        #: `_flush_marker`: the flush marker that is not answered yet, and the requests that it will confirm.
        self._unconfirmed: list[tuple[int, list[Handle]]] = []
        self._flush_marker: tuple[Link, list[tuple[int, list[Handle]]]] | None = None
        #: Time of the request that the broker has not settled for long, and for which the flush marker was opened; None
        #: if there is no such request.
        self._doubted_s: float | None = None

    # -- opening

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        deadline, late = self.now_s() + timeout_s, f"within {timeout_s:.0f} s"
        connection = self._connection
        connection.open(url, deadline, self._container_id(), self.options.attempt, late)
        try:
            self.endpoint.check_product(url, connection.server_property("product"))
            self._begin()
            self._attach()
            connection.until(self._attached, deadline)
            info = self._ask_queue(deadline)
            broker_id = connection.proton.remote_container if self._dialect.names_itself else None
        except UNREADABLE_ERRORS as unreadable:
            raise BrokerUnavailableError(f"{url}: {UNREADABLE} ({unreadable})") from None
        except ConnectionLostError:
            raise connection.open_error(url) from None
        except TimeoutError:
            raise BrokerUnavailableError(f"{url}: {self.endpoint.destination} did not answer {late}") from None
        server = f"{connection.server_property('product')}/{connection.server_property('version')}"
        if info is None:
            return Greeting(url, broker_id or "", None, server)
        return Greeting(url, broker_id or "", self._depth(info), server, of_rabbitmq(info, version_of(server)))

    def _container_id(self) -> str:
        # Brokers take this for the JMS client ID, which together with the link's name identifies a durable
        # subscription.
        subscription = self.endpoint.subscription
        if subscription is None or self.endpoint.shared:
            return f"pyspark-mq-{id(self):x}-{time.time_ns():x}"
        return f"pyspark-mq.{subscription}"

    def _ask_queue(self, deadline: float) -> dict[str, Any] | None:
        """Ask the broker about the queue. Return its answer; None if it does not answer."""
        management = self._management
        if management is None:
            return None
        management.ask()
        info: dict[str, Any] | None = None

        def answered() -> bool:
            nonlocal info
            info = management.answer() or info
            return not management.asked or management.refused

        with contextlib.suppress(TimeoutError):
            self._connection.until(answered, min(deadline, self.now_s() + _ASK_TIMEOUT_S))
        return info

    def _depth(self, info: Mapping[str, Any]) -> QueueDepth:
        # The broker counts each link as a consumer, even without credit: the receiving link and a flush marker.
        own = (self._connection.link is not None) + (self._flush_marker is not None)
        counts = (info.get("message_count"), info.get("consumer_count"))
        ready, consumers = (count if isinstance(count, int) else 0 for count in counts)
        return QueueDepth(ready, max(0, consumers - own), own)

    def _begin(self) -> None:
        session = self._connection.session = self._connection.proton.session()
        session.incoming_capacity = _INCOMING_BYTES
        session.open()
        # These links come before the receiving link, because with the first receiving link of a session proton sends a
        # flow, whose delivery count the broker has not announced yet (2.7.4). RabbitMQ 4.0, whose count begins at -5,
        # takes this for a credit of five messages.
        queue = self.endpoint.queue
        if queue is not None and self._dialect.answers(self._connection.server_property("version")):
            self._management = ManagementLinks(session, queue)

    def _attach(self) -> None:
        connection, endpoint, dialect = self._connection, self.endpoint, self._dialect
        link = connection.session.receiver(self._link_name)
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
        if self.options.browses:
            source.distribution_mode = Terminus.DIST_MODE_COPY
        if endpoint.selector is not None:
            source.filter.put_dict({symbol("selector"): Described(symbol(_SELECTOR), endpoint.selector)})
        link.snd_settle_mode = Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_FIRST
        link.open()
        connection.link, self._incoming = link, Incoming(link, self._transfers)

    def _address(self) -> str:
        if self.endpoint.topic is not None:
            return self._dialect.topic_address(self.endpoint.topic)
        return self._dialect.queue_address(self.endpoint.name, self._connection.server_property("version"))

    def _attached(self) -> bool:
        # A broker that refuses a link first attaches it without a source and then detaches it (AMQP 1.0, 2.6.3).
        link = self._connection.link
        assert link is not None
        if not link.state & Endpoint.REMOTE_ACTIVE or not link.remote_source.address:
            return False
        if self.endpoint.selector is not None and not _has_filter(link.remote_source):
            self._connection.ended("the broker does not support selectors")
            return False
        return True

    # -- one turn of the loop

    @property
    def partial_bytes(self) -> int:
        return 0 if self._incoming is None else self._incoming.partial_bytes

    def run(self, timeout_s: float) -> None:
        self._raise_if_ended()
        self._top_up()
        self._connection.turn(timeout_s)
        self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        end = self._connection.end
        if end is not None:
            raise SessionLostError(end, stated=self._connection.stated)

    def wake(self) -> None:
        self._connection.wake()

    def _look(self) -> None:
        """Process what has arrived: first deliveries, and then confirmations, which must come after them."""
        self._receive()
        self._confirm()
        if self._management is not None and self._management.asked and self._window:
            info = self._management.answer()
            if info is not None:
                self.buffer.reported(self._depth(info))
        # When the consumer timeout of RabbitMQ 4.3 has passed, the broker takes messages back, the oldest first, by
        # sending a disposition on the link. The link stays open, but the messages are not redelivered on it.
        oldest = next(iter(self._open.values()), None)
        if oldest is not None and self._deliveries.taken_back(oldest):
            self._connection.ended("the broker took back messages that were not acknowledged in time", stated=True)
        self._connection.note_close()

    # -- receiving

    def consume(self, window: int) -> None:
        """Start to consume, or change the window. All held deliveries count towards the window."""
        self.consuming = True  # the link is attached
        self._window = window
        self._top_up()

    def _top_up(self) -> None:
        link = self._connection.link
        if link is None or self._window == 0 or self.paused:
            return
        credit, maximum = link.credit, self._dialect.credit_max or self._window
        free = min(self._window - len(self._open), maximum) - credit
        # A topic has no management links (see `_begin`). After more messages than credit, proton would state a negative
        # credit, with which RabbitMQ 4.0 ends the session ("undefined_serial_addition").
        beyond = link.queued - credit
        if (free > 0 and (free * _TOP_UP_PARTS >= maximum or not credit)) or beyond > 0:
            link.flow(max(free, beyond))

    @property
    def _deliveries(self) -> Incoming:
        assert self._incoming is not None, "nothing is received and settled before the link is attached"
        return self._incoming

    def _take_deliveries(self) -> None:
        if self._connection.link is None or self.paused:
            return
        buffer, held, taken = self.buffer, self._open, self._taken
        for delivery, data in self._deliveries.messages():
            self._newest = tag = self._newest + 1
            if tag == 1 and _STREAM_OFFSET in data:
                raise self._refuse_stream(COPIED)
            held[tag] = delivery
            taken.append(data)
            buffer.bytes_arrived += ROW_BYTES + len(data)
            if buffer.full:
                self.paused = True
                break
        self._deliveries.check()

    def _pass_on(self) -> None:
        messages, self._taken = self._taken, []
        first = self._newest - len(messages) + 1
        for item in find_batches(first, messages, self._sections):
            if type(item) is UnreadableMessage and not self.options.keeps_unreadable:
                raise self._refuse(unreadable_of(item))
            self.buffer.inbox.append(item)
            if isinstance(item, WalkedBatch):
                self.buffer.deliveries += len(item)
            else:
                self.buffer.deliveries += 1
                self.buffer.bytes_arrived += item.size - len(messages[item.tag - first])
        if messages:
            self.buffer.wake()

    def _receive(self) -> None:
        """Take messages out of proton's engine, which has limited memory, and put them into the inbox."""
        try:
            self._take_deliveries()
        except (UnicodeDecodeError, ProtonException) as error:
            self._connection.ended(f"{type(error).__name__}: {error}")
        self._pass_on()

    def _resume(self) -> None:
        self.paused = False
        self._receive()

    # -- acknowledging

    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        """Accept deliveries. One disposition is sent for consecutive deliveries."""
        held, deliveries = self._open, self._deliveries
        tags = [*takewhile(lambda tag: tag <= upto, held), *(tag for tag in singles if tag > upto)]
        handles = [held.pop(tag) for tag in tags if tag in held]
        deliveries.accept(handles)
        if self._dialect.confirms and handles:
            self._requests.append((number, self.now_s(), deque(handles)))
            return
        self._unconfirmed.append((number, handles))
        self._raise_flush_marker()

    def _raise_flush_marker(self) -> None:
        """Open a flush marker: a link whose answer confirms all deliveries that were accepted since the last one.

        Do nothing while a flush marker is unanswered. There is only one at a time, because the plugin of RabbitMQ 3
        fails if thousands of links are opened and closed (`noproc` of a consumer).
        """
        if self._flush_marker is None and self._unconfirmed:
            self._flush_marker = self._flush_marker_link(), self._unconfirmed
            self._unconfirmed = []

    def _flush_marker_link(self) -> Link:
        """Open a link without credit. The broker answers when it has processed everything that was sent before."""
        session = self._connection.session
        name = f"pyspark-mq-flush-marker-{time.monotonic_ns()}"
        if self.endpoint.topic is None:
            # Another receiving link needs only the permission to read. Without credit the broker delivers nothing on
            # it.
            link: Link = session.receiver(name)
            source = link.source
        else:
            # On a topic a receiving link would create another subscription, so open a sending link.
            link = session.sender(name)
            source = link.target
        source.address = self._address()
        if self.endpoint.topic is None and self._dialect.capabilities:
            source.capabilities.put_object(Array(UNDESCRIBED, Data.SYMBOL, symbol(self._dialect.capabilities[0])))  # type: ignore[arg-type]
        link.open()
        return link

    def _confirm(self) -> None:
        while self._requests:
            number, asked_s, handles = self._requests[0]
            deliveries = self._deliveries
            while handles and (deliveries.settled(handles[0]) or deliveries.taken_back(handles[0])):
                if not self._settle([handles.popleft()]):
                    return
            if handles:
                self._doubt(asked_s)
                break
            self._requests.popleft()
            self.buffer.confirmed(number)
        # The broker may refuse the flush marker because of too many consumers. This counts as an answer, too.
        if self._flush_marker is not None and self._flush_marker[0].state & (
            Endpoint.REMOTE_ACTIVE | Endpoint.REMOTE_CLOSED
        ):
            link, acknowledged = self._flush_marker
            self._flush_marker = None
            link.close()
            self._closing.append(link)
            doubted_s, self._doubted_s = self._doubted_s, None
            if doubted_s is not None and self._requests and self._requests[0][1] <= doubted_s:
                self._connection.ended("the broker does not settle acknowledged messages: it no longer holds them")
                return
            for number, accepted in acknowledged:
                if not self._settle(accepted):
                    return
                self.buffer.confirmed(number)
            self._raise_flush_marker()
        free_closed(self._closing)

    def _doubt(self, asked_s: float) -> None:
        """If the broker has not settled a request for long, open a flush marker to find out whether it still will.

        Args:
            asked_s: time of the request.
        """
        if self._flush_marker is None and self.now_s() - asked_s > _SETTLED_S:
            self._doubted_s = asked_s
            self._flush_marker = self._flush_marker_link(), []

    def _settle(self, accepted: Sequence[Handle]) -> bool:
        """Settle accepted deliveries.

        Returns:
            False if the broker has set another outcome for one of them. The session then ends, and none is settled.
        """
        deliveries = self._deliveries
        if any(map(deliveries.taken_back, accepted)):
            self._connection.ended("the broker did not accept an acknowledgement and keeps its message", stated=True)
            return False
        deliveries.settle(accepted)
        return True

    def reject(self, tags: Sequence[int]) -> None:
        """Settle deliveries with the outcome `rejected` (AMQP 1.0, 3.4.3)."""
        for tag in tags:
            handle = self._open.pop(tag, None)
            if handle is not None:
                self._deliveries.reject(handle)

    def ask_depth(self) -> None:
        """Ask the broker at its management address, if it has one. AMQP 1.0 itself does not define such a query."""
        if self._management is not None:
            self._management.ask()

    def close(self) -> None:
        self._window = 0
        self._connection.close()


def _has_filter(source: Terminus) -> bool:
    data = source.filter
    data.rewind()
    return bool(data.next() and data.get_object())
