"""STOMP 1.2 by stomp.py.

Frames to the broker are made and written by stomp.py, on a transport of our own, which is how its
own WebSocket transport does it. Ours is read and written by :meth:`StompSession.run` on the receiver's
thread, through a socket that never blocks. That way acknowledgements go out while reading is
paused, heartbeats need no thread, TLS has the same settings as the other protocols (stomp.py takes no
`ssl.SSLContext`), and frames are read by :mod:`pyspark_mq.sources.stomp.frames`, for the reasons given there.

A RECEIPT confirms: the broker handles the frames of a connection in order and answers when it is
done with one, so a receipt asked with the last acknowledgement stands for all before it. Whatever
ERROR comes after the opening ends the session, so none can be confirmed by mistake.

What differs between brokers is in their :class:`~pyspark_mq.brokers.base.StompDialect`.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from pyspark_mq.brokers.base import STOMP
from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts, of_artemis, of_artemis_settings
from pyspark_mq.decode.batch import ROW_BYTES, DeliveryBatch
from pyspark_mq.decode.stomp import FramesBatch, StompBatch, unreadable_of
from pyspark_mq.decode.stomp_frames import Frames
from pyspark_mq.decode.stomp_headers import UnreadableHeaders, as_text, parse, value
from pyspark_mq.errors import MessageError, MqError
from pyspark_mq.sources.connections.session import COPIED, Greeting, QueueDepth, ReceiveBuffer, SessionLostError
from pyspark_mq.sources.stomp.connection import PROVED, StompConnection
from pyspark_mq.sources.stomp.depth import Questions, QueueInfo
from pyspark_mq.sources.stomp.errors import subscribe_error
from pyspark_mq.sources.stomp.frames import MESSAGE, Frame, StompFrameError
from pyspark_mq.sources.stomp.settling import StompSettling
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["StompSession"]

_LOG = logging.getLogger("pyspark_mq")
_INT32_MAX = 2**31 - 1
_CLOSE_TIMEOUT_S = 1.0
#: The broker's answer to the first subscription, when it has other things to do: to collect garbage, or to take
#: back what a former session held. To leave would only give it more to do; heartbeats show whether it is there.
_SUBSCRIBE_TIMEOUT_S = 120.0
#: How long a queue that stalls is quiet before it is woken; after a fruitless wake-up, longer each time.
_QUIET_FIRST_S = 0.01
_QUIET_LAST_S = 10.0
_QUIET_GROWTH = 4
#: Each subscription that comes and goes has one page of 200 messages handed out: 5,000.
_WAKEUPS = 25
#: Never true: the broker gives each message an ID of its own, which begins with "ID:".
_NOTHING = "JMSMessageID='never'"
#: A broker that does not answer a question for this long does not answer such questions.
_ANSWER_TIMEOUT_S = 5.0
_ACK = "ack"
#: A frame without a message, where a subscription that browses has come to the end (ActiveMQ Classic).
_BROWSED = b"\nbrowser:end"
#: Header of each message of a stream.
_STREAM_OFFSET = "x-stream-offset"
_SUBSCRIBED = "subscribed"
_DISCONNECTED = "disconnected"


class StompSession(StompConnection):
    """One connection with one or more subscriptions to the same destination."""

    batches: ClassVar[type[DeliveryBatch]] = StompBatch  # type: ignore[type-abstract]  # `of` chooses

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: How headers begin of messages that may have an ID not of the broker's; empty where none can.
        self._foreign = f"\n{self._dialect.foreign_prefix}".encode() if self._dialect.foreign_prefix else b""
        #: What to ask the broker with; None if it is not to be asked.
        self._questions: Questions | None = None
        self._on_info: Callable[[QueueInfo | None], object] = self._report_depth
        self._subscriptions = 0
        # Deliveries have numbers of our own: 1, 2, 3... in the order of arrival.
        self._tag = 0
        self._settling = StompSettling(cumulative=self._dialect.cumulative, reject_headers=self._dialect.reject_headers)
        self._answers: set[str] = set()
        self._window = 0
        self._window_bytes = 0.0
        self._wakeups = _WAKEUPS
        self._quiet_s = _QUIET_FIRST_S

    # -- opening

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        """Whether the queue is there is only known by :meth:`consume`."""
        deadline = self.now_s() + timeout_s
        self._log_in(url, deadline)
        # No broker reports a name that it keeps.
        depth, facts = self._depth_at_first(deadline)
        return Greeting(url, "", depth, server=self._server, facts=facts)

    def _depth_at_first(self, deadline: float) -> tuple[QueueDepth | None, QueueFacts]:
        """Ask over a connection of its own: a user who may not ask loses the connection for it."""
        address = self._dialect.management
        # A queue does not count the messages that a selector lets through.
        if not address or self.endpoint.topic is not None or self.endpoint.selector is not None:
            return None, NOTHING_KNOWN
        # Who was refused an answer is not asked for again: each refusal is a line in the broker's log.
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
        return Questions(self._dialect.management, self.endpoint.name, uuid.uuid4().hex)

    def _ask_beside(self, asker: str, deadline: float) -> tuple[list[QueueInfo | None], dict[str, Any] | None]:
        """The answers over a connection that is there for the questions, or nothing: of the queue, of its address."""
        beside = StompSession(self.endpoint, self.number, ReceiveBuffer(), now_s=self.now_s)
        answers: list[QueueInfo | None] = []
        beside._on_info = answers.append
        beside._questions = questions = beside._make_questions()
        try:
            beside._log_in(self._url, deadline)
            beside.ask_depth()
            beside._until(lambda: bool(answers), deadline)
            if answers[0] is not None:
                beside._ask(questions, *questions.question_of_settings(answers[0].address))
                beside._until(lambda: not questions.asked, deadline)
        except (SessionLostError, TimeoutError) as failed:
            if not answers and (isinstance(failed, TimeoutError) or failed.stated):
                self.endpoint.refused.add(asker)
                _LOG.info("%s: %s does not tell how many messages wait", self.endpoint.destination, self._url)
        except MqError as failed:  # not connected, or not this time
            _LOG.debug("asking for the depth: %s", self.endpoint.hide(str(failed)))
        finally:
            beside.close()
        return answers, questions.settings

    # -- receiving

    def consume(self, window: int) -> None:
        """Take in by one subscription, or by a further one for what the window grows.

        A subscription keeps its window, and giving it up would give its messages back. So a larger
        one is had by a further subscription for the difference; while all of the window is
        taken, the new one counts from zero.

        Raises:
            DestinationError: the queue does not exist or is not for us.
            OptionError: the broker does not understand the selector.
            SessionLostError: it was refused for a reason that may pass.
        """
        maximum = self.endpoint.broker.prefetch_max[STOMP]
        if not self._window:
            self._subscribe_first(min(window, maximum))
        else:
            self._subscribe_again(window if len(self._settling.open) >= self._window else window - self._window)

    def extend(self, window: int) -> None:
        """Widen by a further subscription for the difference, always."""
        self._subscribe_again(window - self._window)

    def _subscribe_again(self, more: int) -> None:
        maximum = self.endpoint.broker.prefetch_max[STOMP]
        while more > 0 and self._may_subscribe_again():
            self._subscribe(min(more, maximum))
            more -= maximum

    def _subscribe_first(self, window: int) -> None:
        self._answers.add(_SUBSCRIBED)
        self._subscribe(window, receipt=_SUBSCRIBED)
        try:
            self._until(lambda: _SUBSCRIBED not in self._answers, self.now_s() + _SUBSCRIBE_TIMEOUT_S)
        except SessionLostError as ended:
            raise subscribe_error(str(ended), self._url, self.endpoint) from None
        except TimeoutError:
            text = f"no answer to a subscription within {_SUBSCRIBE_TIMEOUT_S:g} s"
            raise SessionLostError(text) from None

    def _may_subscribe_again(self) -> bool:
        # Without a durable name each subscription to a topic gets all messages.
        durable = self.endpoint.subscription is not None and self._dialect.shared
        return self.endpoint.topic is None or durable

    def _subscribe(self, window: int, **more: str) -> None:
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
        # Of one length, so that they ascend: RabbitMQ's consumer tags (see the consumer for AMQP 0-9-1).
        number = f"{next(self._numbers):06}"
        self._protocol.subscribe(self._destination(), number, mode, headers=headers | more)
        self._subscriptions += 1
        self._show_life()

    def _grant(self, window: int) -> int:
        """Return the window header for this many more messages."""
        self._window += window
        if not self._dialect.window_bytes:
            return window
        if not self._may_subscribe_again():
            return -1  # no limit: there is no second chance
        # What is larger than the header can say is as good as no limit.
        size = min(math.ceil(window * self._message_bytes()), _INT32_MAX)
        self._window_bytes += size
        return size

    def _message_bytes(self) -> float:
        """The bytes of a message that count in a window: its frame, as received so far."""
        return self._received_bytes / self._tag if self._tag else self._dialect.window_bytes

    def _destination(self) -> str:
        name = self.endpoint.name
        if self._dialect.slash:
            name = name.replace("/", self._dialect.slash)
        return (self._dialect.queue if self.endpoint.topic is None else self._dialect.topic).format(name=name)

    def run(self, timeout_s: float) -> None:
        deadline = self.now_s() + timeout_s
        self._socket.woken = False
        while True:
            self._raise_if_ended()
            left_s = deadline - self.now_s()
            if self._socket.woken or left_s <= 0:
                return
            self._turn(left_s)

    def _reading(self) -> bool:
        """Return False while paused, and beyond a window that the broker counts in bytes, unless it has to confirm."""
        if self.paused:
            return self.keep_alive_read_due
        full = self._window > 0 and len(self._settling.open) >= self._window
        return not full or not self._dialect.window_bytes or bool(self._answers) or self._settling.unconfirmed

    def _take(self, frames: Iterable[Frame | Frames]) -> None:
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
                    tag, size = tag + len(batch), size + batch.size_bytes
                else:
                    alone = ((MESSAGE, *one) for one in item.cut())
                for command, headers, body in alone:
                    if command != MESSAGE:
                        self._answered(command, headers, body)
                    elif self._is_of_queue(tag + 1, headers, body):
                        tag += 1
                        handles[tag] = value(headers, _ACK, dialect.last_header) or b""
                        append((tag, headers, body, dialect))
                        size += ROW_BYTES + len(headers) + len(body)
                    if self._end is not None:  # whether or not more has come with it
                        return
        except StompFrameError as wrong:
            # What is no frame belongs to no message: the next session begins with one.
            self._ended(str(wrong), stated=True)
        finally:
            if tag > self._tag:
                deliveries, self._tag = tag - self._tag, tag
                self._arrived(deliveries, size)

    def _are_plain(self, batch: FramesBatch) -> bool:
        """Whether all are messages of the queue, and none has to be looked at for what may be wrong with it."""
        questions, names, foreign = self._questions, batch.frames.fields, self._dialect.foreign_prefix
        return not (
            (not self._tag and _STREAM_OFFSET in names)
            or self.options.browses
            or (foreign and any(name.startswith(foreign) for name in names) and batch.hidden())
            or (questions is not None and questions.subscribed and questions.mark in batch.frames.data)
        )

    def _is_of_queue(self, tag: int, headers: bytes, body: bytes) -> bool:
        """Return whether a message is one of the queue's, to be taken in; end the session if it cannot be."""
        questions = self._questions
        if type(headers) is UnreadableHeaders and not self.options.keeps_unreadable:
            unreadable = unreadable_of((tag, headers, body, self._dialect))
            self._end = self._end or self._refuse(unreadable)
            return False
        if questions is not None and questions.subscribed and questions.is_answer(headers):
            # The window in bytes goes by what the messages of the queue take.
            self._received_bytes -= len(headers) + len(body)
            self._on_info(questions.answer(body))
            return False
        if self.options.browses and _BROWSED in headers:
            return False
        refused = self._refused(headers, first=tag == 1)
        self._end = self._end or refused
        return refused is None

    def _refused(self, headers: bytes, *, first: bool) -> MqError | None:
        """Return why a message cannot be taken in, if it cannot: it is of a stream, or hides the broker's own ID."""
        if first and f"\n{_STREAM_OFFSET}:".encode() in headers:
            return self._refuse_stream(COPIED)
        own_id = self._dialect.own_id
        if own_id is None or not self._foreign or self._foreign not in headers:
            return None
        found = parse(headers, self._dialect.last_header).get(self._dialect.id_header)
        if own_id.search(found or ""):
            return None
        return MessageError(
            f"{self.endpoint.destination} holds a message that came over AMQP 1.0 with its producer's ID, "
            f"{as_text(found)!r}: the broker cannot take its acknowledgement over STOMP if that is its message-id, and "
            "shows no other if it is a property of that name. It stays in the queue. Read the queue with protocol "
            "'amqp-1.0' and a new checkpointLocation, or have the producer send no message-id"
        )

    def _arrived(self, deliveries: int, size: int) -> None:
        self.buffer.count(deliveries, size)
        if self.buffer.full:
            self.paused = True
        self._wakeups = _WAKEUPS
        self._show_life()

    def _resume(self) -> None:
        self.paused = False
        # What the broker has sent meanwhile was not looked at.
        self._socket.received_s = self.now_s()
        self._show_life()

    # -- sending

    def _show_life(self) -> None:
        """The queue shows signs of life; when it is quiet again it may have stalled."""
        if self._dialect.window_bytes or (self._dialect.stalls and self.endpoint.topic is None):
            self._quiet_s = _QUIET_FIRST_S
            self._wake_s = self.now_s() + self._quiet_s

    def _wake_queue(self, now: float) -> None:
        """Have a quiet queue hand out more if the window is not full."""
        self._wake_s = float("inf")
        room = self._window - len(self._settling.open)
        if not self._settling.open or self.paused or room <= 0:
            return  # whatever changes that also wakes
        if self._dialect.stalls:
            self._wake_page(now)
        elif self._window_bytes - len(self._settling.open) * self._message_bytes() < 2 * self._message_bytes():
            # The messages are larger than was thought.
            self._window -= room
            if self._may_subscribe_again():
                self._subscribe(room)

    def _wake_page(self, now: float) -> None:
        """Wake a queue that hands out no more as a page of it is unacknowledged.

        Measured on ActiveMQ Classic: an acknowledgement, a new message or a new consumer has it hand
        out one page more. So consumers come and go, with a selector that nothing matches.
        """
        for _ in range(self._wakeups):
            number = str(next(self._numbers))
            headers = {"selector": _NOTHING, self._dialect.window_header: "1"}
            self._protocol.subscribe(self._destination(), number, "auto", headers=headers)
            self._protocol.unsubscribe(number)
        # If nothing comes of it the queue is empty, or others have its messages.
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
        """RabbitMQ dead-letters to the queue's dead-letter exchange, and drops without one. ActiveMQ
        Classic moves to the dead-letter queue. Artemis drops (measured on 2.40 and 2.56).
        """
        self._settle(self._settling.reject(tags))

    def _settle(self, frames: bytes) -> None:
        self._socket.outgoing += frames
        # What waits for others takes room in the window; when there is no other room left, there has to be more.
        waiting = self._settling.waiting
        if waiting and len(self._settling.open) >= self._window and self._may_subscribe_again():
            self._subscribe(waiting)
        self._send()

    def _receipt(self, receipt: str | None) -> None:
        if receipt is None:
            self._ended("a RECEIPT came without a receipt-id", stated=True)
            return
        if receipt == PROVED:
            self._proof_s = -math.inf
            return
        self._answers.discard(receipt)
        for number in self._settling.confirmed(receipt):
            if self._end is None:
                self.buffer.confirmed(number)
        self._show_life()

    def ask_depth(self) -> None:
        """Ask for the queue's depth where the broker answers this user, unless an answer is due."""
        questions = self._questions
        if questions is None or questions.asked or self._end is not None:
            return
        if not questions.subscribed:
            questions.subscribed = True
            destination, headers = questions.subscription()
            self._protocol.subscribe(destination, questions.SUBSCRIPTION, "auto", headers=headers)
        self._ask(questions, *questions.question())

    def _ask(self, questions: Questions, destination: str, body: str, headers: dict[str, str]) -> None:
        questions.asked = True
        self._protocol.send(destination, body, headers=headers)
        self._send()

    def _report_depth(self, info: QueueInfo | None) -> None:
        if info is not None:
            self.buffer.reported(info.depth(self._subscriptions))

    def close(self) -> None:
        try:
            if self._connected and self._end is None:
                self._answers.add(_DISCONNECTED)
                self._protocol.disconnect(_DISCONNECTED)
                self._wake_s = float("inf")
                if not self.paused:
                    self._until(lambda: _DISCONNECTED not in self._answers, self.now_s() + _CLOSE_TIMEOUT_S)
        except Exception as failed:  # noqa: BLE001 - the session is over, whatever it is
            _LOG.debug("closing: %s", self.endpoint.hide(str(failed)))
        finally:
            self._socket.close()
