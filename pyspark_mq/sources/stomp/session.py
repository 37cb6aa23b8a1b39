"""The STOMP 1.2 session: it subscribes to one destination, receives messages, and settles them.

Acknowledgements are sent even while reading is paused.

A RECEIPT confirms acknowledgements. The broker processes a connection's frames in order, so the receipt for the last
acknowledgement also confirms all earlier ones. If an acknowledgement fails, the broker sends an ERROR instead, which
ends the session.

The differences between brokers are described by their :class:`~pyspark_mq.brokers.base.StompDialect`.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, ClassVar

import numpy as np

from pyspark_mq.brokers.base import STOMP, StompDialect
from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts, of_artemis, of_artemis_settings
from pyspark_mq.decode.batch import BATCH_MIN, ROW_BYTES, DeliveryBatch
from pyspark_mq.decode.stomp import FramesBatch, StompBatch, unreadable_of
from pyspark_mq.decode.stomp_frames import Frames
from pyspark_mq.decode.stomp_headers import UnreadableHeaders, as_text, parse, value
from pyspark_mq.errors import BrokerUnavailableError, MessageError, MqError
from pyspark_mq.sources.connections.session import (
    COPIED,
    Greeting,
    QueueDepth,
    ReceiveBuffer,
    Session,
    SessionLostError,
)
from pyspark_mq.sources.stomp.depth import Questions, QueueInfo
from pyspark_mq.sources.stomp.errors import subscribe_error
from pyspark_mq.sources.stomp.settling import StompSettling
from pyspark_mq.wire.connection import ConnectionLostError
from pyspark_mq.wire.stomp.connection import LOOK_BYTES, RECEIVE_BYTES, StompConnection
from pyspark_mq.wire.stomp.frames import MESSAGE, Frame, FrameReader, StompFrameError, id_for_errors
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["StompSession"]

_LOG = logging.getLogger("pyspark_mq")
_INT32_MAX = 2**31 - 1
#: How long to wait for the answer to the first subscription. The broker may be busy collecting garbage or requeueing a
#: former session's messages, and disconnecting would add to its work. Heartbeats show whether the broker is alive.
_SUBSCRIBE_TIMEOUT_S = 120.0
#: If nothing has arrived for this time, the session wakes the queue, as it may have stalled. If waking has no effect,
#: the time grows by the factor, up to the maximum.
_QUIET_FIRST_S = 0.01
_QUIET_LAST_S = 10.0
_QUIET_GROWTH = 4
#: Number of temporary subscriptions that wake a queue. Each of them makes the broker deliver one page of 200 messages,
#: so together they make it deliver 5,000.
_WAKEUPS = 25
#: A selector that matches no message, because the broker's message IDs begin with "ID:".
_NOTHING = "JMSMessageID='never'"
#: If the broker does not answer a management query within this time, it is taken not to support these queries.
_ANSWER_TIMEOUT_S = 5.0
_ACK = "ack"
_ACK_LINE, _BARE_ACK_LINE = b"\nack:", b"\nack\n"
#: The beginning of header `ack` on ActiveMQ Classic, the only broker that does not escape names. If a body has these
#: bytes, the name of a property contained an empty line, which ended the headers early: the broker's header `ack` is in
#: the body, and any header `ack` before it is forged.
_BROKERS_ACK = b"\nack:ID"
_SHOWN_BYTES = 60
#: Header of the frame without a message that ends a browsing subscription (ActiveMQ Classic).
_BROWSED = b"\nbrowser:end"
#: Header of each message of a stream.
_STREAM_OFFSET = "x-stream-offset"
_SUBSCRIBED = "subscribed"
_WOKEN = "woken"
#: Number of random bytes with which the names of the session's subscriptions and receipts end.
_OWN_BYTES = 9


class StompSession(Session):
    """One STOMP connection with one or more subscriptions to one destination."""

    batches: ClassVar[type[DeliveryBatch]] = StompBatch  # type: ignore[type-abstract]  # `of` chooses

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dialect = self.endpoint.broker.stomp
        assert dialect is not None, "an option of the source names this protocol for a broker without it"
        self._dialect: StompDialect = dialect
        self._url: Any = None
        self._numbers = count()
        #: The text with which the names of this session's subscriptions and receipts end, so that frames of the broker
        #: can be told from frames within a text, see :mod:`pyspark_mq.wire.stomp.frames`.
        self._own = f"-{secrets.token_urlsafe(_OWN_BYTES)}"
        #: Prefix of the headers of messages that may have an ID of their producer, with which they cannot be settled;
        #: empty if all messages can be settled.
        self._foreign = f"\n{self._dialect.foreign_prefix}".encode() if self._dialect.foreign_prefix else b""
        #: The beginning of each header that every message has, on a broker that does not escape names.
        self._always = tuple(f"\n{name}:".encode() for name in self._dialect.always)
        #: Queries for the queue's depth; None if the broker does not report it.
        self._questions: Questions | None = None
        self._on_info: Callable[[QueueInfo | None], object] = self._report_depth
        self._subscriptions = 0
        # Tags of deliveries are 1, 2, 3... in the order of arrival.
        self._tag = 0
        self._settling = StompSettling(
            cumulative=self._dialect.cumulative,
            reject_headers=self._dialect.reject_headers,
            own=self._own,
            forgeable=bool(self._dialect.always),
        )
        # Of the frames that request no receipt, only an ACK or a NACK may fail.
        self._reader = FrameReader(
            BATCH_MIN, dialect.last_header, self._own.encode(), lambda: self._settling.unconfirmed
        )
        self._connection = StompConnection(
            self.endpoint,
            self.now_s,
            self.options.stopping,
            take=self._take,
            reader=self._reader,
            reading=self._reading,
            own=self._own,
        )
        #: The headers of the last message received, or the batch that ends with this message.
        self._newest: bytes | FramesBatch = b""
        self._answers: set[str] = set()
        self._window = 0
        self._window_bytes = 0.0
        self._wakeups = _WAKEUPS
        self._quiet_s = _QUIET_FIRST_S
        #: Time at which :meth:`_wake_queue` is to be called next.
        self._wake_s = math.inf

    # -- opening

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        """Connect and log in. Whether the queue exists is known only after :meth:`consume`."""
        deadline = self.now_s() + timeout_s
        self._url = url
        # Query before the login, because after the login heartbeats are due, and on a slow link the query may take
        # longer than that.
        depth, facts = self._depth_at_first(deadline)
        self._log_in(deadline)
        # No broker reports a permanent name of itself over STOMP.
        return Greeting(url, "", depth, server=self._connection.server, facts=facts)

    def _log_in(self, deadline: float) -> None:
        headers = {}
        if self.endpoint.subscription is not None and self._dialect.client_id:
            headers["client-id"] = self._dialect.client_id.format(subscription=self.endpoint.subscription)
        self._connection.open(self._url, deadline, self.options.attempt, headers)

    def _depth_at_first(self, deadline: float) -> tuple[QueueDepth | None, QueueFacts]:
        """Query the queue's depth over a separate connection: the broker closes it if the user lacks permission."""
        address = self._dialect.management
        # With a selector the depth would be misleading, because it includes messages that do not match the selector.
        if not address or self.endpoint.topic is not None or self.endpoint.selector is not None:
            return None, NOTHING_KNOWN
        # Do not query again as a user that was refused, because each refusal adds a line to the broker's log.
        asker = f"{self._url} {self.endpoint.user(self._url)} {address}"
        if asker in self.endpoint.refused:
            return None, NOTHING_KNOWN
        answers, settings = self._ask_beside(asker, min(deadline, self.now_s() + _ANSWER_TIMEOUT_S))
        if not answers:
            return None, NOTHING_KNOWN
        self._questions = self._make_questions()
        info = answers[0]
        if info is None:
            return None, NOTHING_KNOWN
        facts = of_artemis(info.reported)
        return info.at_first(), facts if settings is None else facts.or_else(of_artemis_settings(settings))

    def _make_questions(self) -> Questions:
        return Questions(self._dialect.management, self.endpoint.name, self._own)

    def _ask_beside(self, asker: str, deadline: float) -> tuple[list[QueueInfo | None], dict[str, Any] | None]:
        """Query the queue and the settings of its address over a separate connection.

        Args:
            asker: identifies the broker and user, to remember a refusal.
            deadline: time until which to wait for answers.

        Returns:
            a list with the answers about the queue (empty if the broker refused or did not answer), and the settings of
            the queue's address (None if unknown).
        """
        beside = StompSession(self.endpoint, self.number, ReceiveBuffer(), self.options, self.now_s)
        answers: list[QueueInfo | None] = []
        beside._url, beside._on_info = self._url, answers.append
        beside._questions = questions = beside._make_questions()
        try:
            beside._log_in(deadline)
            beside.ask_depth()
            beside._connection.until(lambda: bool(answers), deadline)
            if answers[0] is not None:
                beside._ask(questions, *questions.question_of_settings(answers[0].address))
                beside._connection.until(lambda: not questions.asked, deadline)
        except (ConnectionLostError, TimeoutError) as failed:
            if not answers and (isinstance(failed, TimeoutError) or failed.stated):
                self.endpoint.refused.add(asker)
                _LOG.info("%s: %s does not report how many messages wait", self.endpoint.destination, self._url)
        except BrokerUnavailableError as failed:  # the connection failed, but a later query may succeed
            _LOG.debug("asking for the depth: %s", self.endpoint.hide(str(failed)))
        finally:
            beside.close()
        return answers, questions.settings

    # -- receiving

    def consume(self, window: int) -> None:
        """Subscribe to the destination; if already subscribed, add a subscription because the window has grown.

        The window is the number of unsettled deliveries that the broker may send. The window of a subscription cannot
        be changed, and ending the subscription would return its messages to the queue. So a further subscription gets
        the difference as its window; or the whole new window, if the old window is full of unsettled deliveries.

        Raises:
            DestinationError: the queue does not exist, or this user may not read it.
            OptionError: the broker rejects the selector.
            SessionLostError: the broker refused the subscription for a temporary reason.
        """
        maximum = self.endpoint.broker.prefetch_max[STOMP]
        if not self._window:
            self._subscribe_first(min(window, maximum))
        else:
            self._subscribe_again(window if len(self._settling.open) >= self._window else window - self._window)

    def extend(self, window: int) -> None:
        """Widen the window by adding a subscription for the difference, even if the present window is full."""
        self._subscribe_again(window - self._window)

    def _subscribe_again(self, more: int) -> None:
        maximum = self.endpoint.broker.prefetch_max[STOMP]
        while more > 0 and self._may_subscribe_again():
            self._subscribe(min(more, maximum))
            more -= maximum

    def _subscribe_first(self, window: int) -> None:
        self._answers.add(_SUBSCRIBED)
        self._subscribe(window)
        try:
            self._connection.until(lambda: _SUBSCRIBED not in self._answers, self.now_s() + _SUBSCRIBE_TIMEOUT_S)
        except ConnectionLostError:
            if _SUBSCRIBED in self._answers:  # otherwise the next run raises the error
                end = self._connection.end
                refused = isinstance(end, ConnectionLostError)
                raise (subscribe_error(str(end), self._url, self.endpoint) if refused else end) from None
        except TimeoutError:
            text = f"no answer to a subscription within {_SUBSCRIBE_TIMEOUT_S:g} s"
            raise SessionLostError(text) from None
        self.consuming = True

    def _may_subscribe_again(self) -> bool:
        # If a topic's subscription is not durable and shared, each further subscription would get all messages again.
        durable = self.endpoint.subscription is not None and self._dialect.shared
        return self.endpoint.topic is None or durable

    def _subscribe(self, window: int) -> None:
        dialect, endpoint = self._dialect, self.endpoint
        headers = dict(dialect.queue_headers if endpoint.topic is None else dialect.topic_headers)
        if endpoint.subscription is not None:
            for name, template in dialect.durable_headers.items():
                headers[name] = template.format(subscription=endpoint.subscription)
        if endpoint.selector is not None:
            headers["selector"] = endpoint.selector
        if self.options.browses:
            headers["browser"] = "true"
        headers[dialect.window_header] = str(self._grant(window))
        mode = "client" if dialect.cumulative else "client-individual"
        # All names have the same length, so that they ascend when RabbitMQ sorts them as consumer tags (see the session
        # for AMQP 0-9-1).
        name = f"{next(self._numbers):06}{self._own}"
        headers["receipt"] = f"{_SUBSCRIBED}{self._own}"
        self._connection.protocol.subscribe(self._destination(), name, mode, headers=headers)
        self._subscriptions += 1
        self._show_life()

    def _grant(self, window: int) -> int:
        """Widen the window by this many messages, and return the value for the header with a subscription's window."""
        self._window += window
        if not self._dialect.window_bytes:
            return window
        if not self._may_subscribe_again():
            return -1  # no limit: the window cannot be widened later
        # The header's largest value is so large that it hardly limits anything.
        size = min(math.ceil(window * self._message_bytes()), _INT32_MAX)
        self._window_bytes += size
        return size

    def _message_bytes(self) -> float:
        """Return the average size in bytes of the messages received so far; before the first message, an estimate."""
        return self._connection.received_bytes / self._tag if self._tag else self._dialect.window_bytes

    def _destination(self) -> str:
        name = self.endpoint.name
        if self._dialect.slash:
            name = name.replace("/", self._dialect.slash)
        return (self._dialect.queue if self.endpoint.topic is None else self._dialect.topic).format(name=name)

    @property
    def partial_bytes(self) -> int:
        return self._reader.partial_bytes

    def run(self, timeout_s: float) -> None:
        deadline, connection = self.now_s() + timeout_s, self._connection
        connection.socket.woken = False
        while True:
            self._raise_if_ended()
            now = self.now_s()
            if connection.socket.woken or now >= deadline:
                return
            if now >= self._wake_s:
                self._wake_queue(now)
            connection.turn(min(deadline, self._wake_s) - now)

    def _raise_if_ended(self) -> None:
        end = self._connection.end
        if isinstance(end, ConnectionLostError):
            raise SessionLostError(str(end), stated=end.stated) from end.__cause__
        if end is not None:
            raise end

    def wake(self) -> None:
        self._connection.wake()

    def _reading(self, ending: bool) -> int:
        """Return the maximum number of bytes to read from the socket now; 0 to leave them there.

        A paused session reads only to keep the connection alive. If the broker counts the window in bytes, and the
        window is full, the session reads only while an answer is outstanding. If the connection is ending, a session
        that is not paused reads the remaining bytes, because they may include the reason.
        """
        if ending:
            return 0 if self.paused else RECEIVE_BYTES
        if self.paused:
            return LOOK_BYTES if self.keep_alive_read_due else 0
        full = self._window > 0 and len(self._settling.open) >= self._window
        reads = not full or not self._dialect.window_bytes or self._answers or self._settling.unconfirmed
        return RECEIVE_BYTES if reads else 0

    def _take(self, frames: Iterable[Frame | Frames]) -> None:
        """Process received frames."""
        tag, size = self._tag, 0
        append, handles, dialect = self.buffer.inbox.append, self._settling.open, self._dialect
        try:
            for item in frames:
                alone: Iterable[Frame] = ()
                if not isinstance(item, Frames):
                    alone = (item,)
                elif self._are_plain(batch := FramesBatch(item, np.arange(len(item.kinds)) + tag + 1, dialect)):
                    handles.update(zip(batch.tags.tolist(), item.values(_ACK), strict=True))
                    append(batch)
                    self._newest = batch
                    tag, size = tag + len(batch), size + batch.size_bytes
                else:
                    alone = ((MESSAGE, *one) for one in item.cut())
                for command, block, body in alone:
                    if command != MESSAGE:
                        self._answered(command, block, body)
                    elif self._is_of_queue(tag + 1, headers := self._checked(block), body):
                        tag += 1
                        handles[tag] = value(headers, _ACK, dialect.last_header) or b""
                        append((tag, headers, body, dialect))
                        self._newest = headers
                        size += ROW_BYTES + len(headers) + len(body)
                    if self._connection.end is not None:  # ignore the remaining frames
                        return
        except StompFrameError as wrong:
            # The bytes cannot be divided into frames any more, so this session ends; the next one begins with a frame.
            self._connection.ended(ConnectionLostError(str(wrong), stated=True))
        finally:
            if tag > self._tag:
                deliveries, self._tag = tag - self._tag, tag
                self._arrived(deliveries, size)

    def _are_plain(self, batch: FramesBatch) -> bool:
        """Return whether a batch can be taken as a whole, because none of its messages has to be examined by itself."""
        questions, names, foreign = self._questions, batch.frames.fields, self._dialect.foreign_prefix
        return not (
            (not self._tag and _STREAM_OFFSET in names)
            or self.options.browses
            or (foreign and any(name.startswith(foreign) for name in names) and batch.hidden())
            or (questions is not None and questions.subscribed and questions.mark in batch.frames.data)
            or any(name not in layout for layout in batch.frames.layouts for name in self._dialect.always)
            or not self._have_own_acks(batch)  # last, because it records the IDs
        )

    def _checked(self, headers: bytes) -> bytes:
        """Return the headers of a message, marked as unreadable if an empty line in a name cut them short."""
        if all(entry in headers for entry in self._always) or type(headers) is UnreadableHeaders:
            return headers
        cut = UnreadableHeaders(headers)
        cut.error = "some of the broker's headers are missing, so the name of a property may contain an empty line"
        return cut

    def _have_own_acks(self, batch: FramesBatch) -> bool:
        """Return whether each message of a batch has one header `ack`, with an ID that no unsettled delivery has.

        If so, note these IDs. If the broker prevents forged headers, return True without a check.
        """
        ids = self._settling.ids
        if ids is None or any(layout.count(_ACK) != 1 for layout in batch.frames.layouts):
            return ids is None
        found = set(batch.frames.values(_ACK))
        if len(found) < len(batch) or not ids.isdisjoint(found):
            return False
        if batch.frames.data.count(_ACK_LINE) > len(batch):  # a body has such a line, too
            return False
        ids |= found
        return True

    def _is_of_queue(self, tag: int, headers: bytes, body: bytes) -> bool:
        """Return whether a message is a delivery from the queue, and may be taken.

        Other messages are answers to queries, and the mark at the end of a browsed queue. If a message must not be
        taken, the session ends.
        """
        questions = self._questions
        if self._own.encode() not in headers:
            self._connection.ended(self._foreign_frame(headers))
            return False
        if self.options.browses and _BROWSED in headers:
            return False
        if type(headers) is UnreadableHeaders and not self.options.keeps_unreadable:
            unreadable = unreadable_of((tag, headers, body, self._dialect))
            self._connection.ended(self._refuse(unreadable))
            return False
        if questions is not None and questions.subscribed and questions.is_answer(headers):
            # Do not count the answer, because the window in bytes depends on the average size of the queue's messages.
            self._connection.received_bytes -= len(headers) + len(body)
            self._on_info(questions.answer(body))
            return False
        ids = self._settling.ids
        if ids is not None:
            found = value(headers, _ACK) or b""
            own = headers.count(_ACK_LINE) == 1 and not headers.count(_BARE_ACK_LINE) and _BROKERS_ACK not in body
            if not own or found in ids:
                self._connection.ended(self._forged_ack(headers))
                return False
            ids.add(found)
        refused = self._refused(headers, first=tag == 1)
        if refused is not None:
            self._connection.ended(refused)
        return refused is None

    def _refused(self, headers: bytes, *, first: bool) -> MqError | None:
        """Return the error if a message must not be taken because it is from a stream, or hides the broker's ID.

        Args:
            headers: the message's header block.
            first: whether this is the session's first message.

        Returns:
            the error, or None if the message may be taken.
        """
        if first and f"\n{_STREAM_OFFSET}:".encode() in headers:
            return self._refuse_stream(COPIED)
        own_id = self._dialect.own_id
        if own_id is None or not self._foreign or self._foreign not in headers:
            return None
        found = parse(headers, self._dialect.last_header).get(self._dialect.id_header)
        if own_id.search(found or ""):
            return None
        return MessageError(
            f"{self.endpoint.destination} has a message that was sent over AMQP 1.0 with an ID of its producer, "
            f"{as_text(found)!r}. If this ID is the AMQP message-id, the broker cannot accept an acknowledgement over "
            "STOMP. If it is a property named message-id, it hides the broker's ID. The message stays in the queue. "
            "Read the queue with protocol 'amqp-1.0' and a new checkpointLocation, or have the producer send no "
            "message-id"
        )

    def _foreign_frame(self, headers: bytes) -> MessageError:
        """Return the error for a MESSAGE that the broker cannot have sent for a subscription of this session."""
        return MessageError(
            f"{self.endpoint.destination} has a message that contains a STOMP frame, which begins with "
            f"{headers.strip()[:_SHOWN_BYTES]!r}. The message before the frame is '{self._newest_id()}'. A property of "
            "one of these messages contains text that looks like the end of the message. Read the queue with protocol "
            "'amqp-1.0' and a new checkpointLocation, or remove the message with the broker's tools"
        )

    def _newest_id(self) -> str:
        """Return the ID of the last message received, for errors."""
        newest = self._newest
        block = newest if isinstance(newest, bytes) else [*newest.frames.cut()][-1][0]
        return id_for_errors(block, self._dialect.last_header)

    def _answered(self, command: str, block: bytes, body: bytes) -> None:
        connection = self._connection
        if command == "CONNECTED" and self._newest:
            connection.ended(self._foreign_frame(b"CONNECTED"))
            return
        doubtful = connection.end is None and self._newest and self._dialect.always
        receipt = connection.answered(command, block, body)
        if receipt is not None:
            self._receipt(receipt)
        elif doubtful and connection.end is not None and self._own.encode() not in block:
            reason = f"{connection.end}. A message can contain such a frame; the last message was '{self._newest_id()}'"
            connection.end = ConnectionLostError(reason, stated=True)

    def _forged_ack(self, headers: bytes) -> MessageError:
        """Return the error for a message whose acknowledgement might settle another message."""
        found = as_text(parse(headers).get("message-id")) or ""
        return MessageError(
            f"{self.endpoint.destination} holds a message, '{found:.200}', with a doubtful header 'ack': the header is "
            "repeated, is in the body, or equals that of an earlier message. The name of a property of this message, "
            "or of the earlier one, has line feeds, which the broker does not escape, so an acknowledgement might "
            "settle another message. Read the queue with protocol 'amqp-1.0' and a new checkpointLocation, or use the "
            "broker's tools to find the message with such a property, and remove it"
        )

    def _arrived(self, deliveries: int, size: int) -> None:
        self.buffer.count(deliveries, size)
        if self.buffer.full:
            self.paused = True
        self._wakeups = _WAKEUPS
        self._show_life()

    def _resume(self) -> None:
        self.paused = False
        # Bytes that arrived during the pause were not read, so the time of the last read says nothing.
        self._connection.socket.received_s = self.now_s()
        self._show_life()

    # -- sending

    def _show_life(self) -> None:
        """Note that the queue is active, and set the time after which it counts as stalled if nothing arrives."""
        if self._dialect.window_bytes or (self._dialect.stalls and self.endpoint.topic is None):
            self._quiet_s = _QUIET_FIRST_S
            self._wake_s = self.now_s() + self._quiet_s

    def _wake_queue(self, now: float) -> None:
        """If nothing has arrived for a while although the window is not full, make the queue deliver more messages."""
        self._wake_s = math.inf
        room = self._window - len(self._settling.open)
        if not self._settling.open or self.paused or room <= 0:
            return  # whatever changes this state also sets the time of the next call
        if self._dialect.stalls:
            self._wake_page(now)
        elif not self._may_subscribe_again():
            return  # the subscription has no limit
        elif self._window_bytes - len(self._settling.open) * self._message_bytes() < 2 * self._message_bytes():
            # The messages are larger than estimated, so fewer of them fit into the window in bytes. Subscribe again.
            self._window -= room
            self._subscribe(room)

    def _wake_page(self, now: float) -> None:
        """Wake a queue that delivers no more messages while a page of messages is unacknowledged.

        ActiveMQ Classic loads the messages of a queue in pages. As measured, an acknowledgement, a new message or a new
        consumer makes the queue deliver one more page. So the session adds temporary consumers, with a selector that
        matches no message.
        """
        for _ in range(self._wakeups):
            name = f"{next(self._numbers)}{self._own}"
            receipt = f"{_WOKEN}{self._own}"
            headers = {"selector": _NOTHING, self._dialect.window_header: "1", "receipt": receipt}
            self._connection.protocol.subscribe(self._destination(), name, "auto", headers=headers)
            self._connection.protocol.unsubscribe(name)
        # If nothing arrives, the queue is empty or other consumers have its messages.
        self._wakeups = 1
        self._quiet_s = min(self._quiet_s * _QUIET_GROWTH, _QUIET_LAST_S)
        self._wake_s = now + self._quiet_s

    # -- settling

    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        if not upto and not singles:
            self._settle(self._settling.ask(number))
            return
        self._settle(self._settling.acknowledge(number, upto, singles))
        self._show_life()

    def reject(self, tags: Sequence[int]) -> None:
        """Reject messages. RabbitMQ dead-letters them to the queue's dead-letter exchange, or drops them if there is
        none. ActiveMQ Classic moves them to the dead-letter queue. Artemis drops them (measured on 2.40 and 2.56).
        """
        self._settle(self._settling.reject(tags))

    def _settle(self, frames: bytes) -> None:
        self._connection.socket.outgoing += frames
        # Deliveries whose settlement waits for earlier deliveries occupy the window. If it is full, widen it.
        waiting = self._settling.waiting
        if waiting and len(self._settling.open) >= self._window and self._may_subscribe_again():
            self._subscribe(waiting)

    def _receipt(self, receipt: str) -> None:
        """Process a RECEIPT frame. `receipt` is the name of the receipt without its random end."""
        if receipt == _WOKEN:  # this receipt does not show that the queue delivers
            return
        self._answers.discard(receipt)
        for number in self._settling.confirmed(receipt):
            if self._connection.end is None:
                self.buffer.confirmed(number)
        self._show_life()

    def ask_depth(self) -> None:
        """Query the queue's depth, unless the broker does not answer this user, or an answer is outstanding."""
        questions = self._questions
        if questions is None or questions.asked or self._connection.end is not None:
            return
        if not questions.subscribed:
            questions.subscribed = True
            destination, headers = questions.subscription()
            self._connection.protocol.subscribe(destination, questions.name, "auto", headers=headers)
        self._ask(questions, *questions.question())

    def _ask(self, questions: Questions, destination: str, body: str, headers: dict[str, str]) -> None:
        questions.asked = True
        self._connection.protocol.send(destination, body, headers=headers)

    def _report_depth(self, info: QueueInfo | None) -> None:
        if info is not None:
            self.buffer.reported(info.depth(self._subscriptions))

    def close(self) -> None:
        self._window = 0  # so that the answer is read
        self._connection.close(waits=not self.paused)
