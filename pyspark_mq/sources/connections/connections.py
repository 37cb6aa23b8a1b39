"""The connections of a query, as the thread that Spark calls sees them.

Receivers keep one session each alive, beside that thread. :class:`Sessions` reads what they report and
takes what they received, knows which sessions live and how many messages each may have been handed,
passes requests on, and holds them to a number of bytes. Nothing above it touches a consumer: a session
is a number there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from pyspark_mq.ack import Settlement
from pyspark_mq.sources.connections.consumer import Consumer, QueueDepth, SessionLostError, drained
from pyspark_mq.sources.connections.events import (
    AnyReceiver,
    AnySession,
    Confirmed,
    Failed,
    Lost,
    Mailbox,
    Opened,
    ReceiverPool,
    Terms,
)
from pyspark_mq.sources.connections.receiver import Receiver
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["Deliveries", "Sessions"]

_DEPTH_AGE_MAX_S = 0.25
#: A process that receives says ten times a second that it has handed over everything.
_LATE_S = 0.25


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What came in one session since the last time, in order; never empty."""

    session: int
    raws: list[Any]
    body_bytes: int


@dataclass(frozen=True, slots=True)
class _Renewal:
    """Ends a session. A class, as it may have to go to another process."""

    why: str

    def __call__(self, _: Consumer) -> None:
        raise SessionLostError(self.why)


class Sessions:
    """All sessions of a query: one for each of its `consumers`, when all are connected.

    Args:
        settings: the query's.
        make_consumer: the consumer class of the protocol.
        runtime: the clock, and what receivers run on.
        arrived: set when there is something to look at; what it is set by may be other sessions too.
        pool: processes that hold the connections; None if this one does.

    Attributes:
        first_window: how many unacknowledged messages the next session to be opened asks for.
    """

    def __init__(
        self,
        settings: Settings,
        make_consumer: type[Consumer],
        runtime: Runtime,
        arrived: threading.Event | None = None,
        pool: ReceiverPool | None = None,
    ) -> None:
        self.first_window = settings.prefetch
        self._runtime = runtime
        self._decoder = make_consumer.decoder if pool is None else pool.decoder
        self._mailbox = Mailbox(arrived)
        keeps_unreadable = settings.on_unreadable is not OnUnreadable.FAIL

        def make(endpoint: Endpoint, session: int, arrived: threading.Event) -> Consumer:
            consumer = make_consumer(endpoint, session, arrived)
            consumer.keeps_unreadable = keeps_unreadable
            return consumer

        def make_receiver() -> AnyReceiver:
            if pool is not None:
                return pool.receiver(settings, self._mailbox, self._terms)
            return Receiver(settings.endpoint, make, self._mailbox, self._terms, runtime)

        self._receivers = [make_receiver() for _ in range(settings.consumers)]
        self._bytes_allowed = 0.0
        self._live: dict[int, tuple[AnyReceiver, AnySession]] = {}
        self._windows: dict[int, int] = {}
        self._failure: Exception | None = None
        #: Up to when everything was there to be taken, the last time; and how often receiving had stood still by then.
        self._attended_s = -math.inf
        self._breaks = 0
        #: Did receiving stand still for a while between the last two times that everything was taken?
        self.broke_off = False
        self.started = False

    def _terms(self) -> Terms:
        return Terms(self.first_window, self._bytes_allowed)

    def start(self) -> None:
        """Have the receivers connect, if they have not been told to yet."""
        if not self.started:
            self.started = True
            for receiver in self._receivers:
                receiver.start()

    def stop(self) -> None:
        """Close the connections."""
        for receiver in self._receivers:
            receiver.stop()

    # -- what happened

    def news(self) -> Iterator[Opened | Lost | Confirmed]:
        """What receivers reported since the last time, in order.

        A session whose opening makes the caller raise never counts as living: nothing is taken from it.

        Raises:
            MqError: after the last of them, if a receiver has given up.
        """
        for letter in self._mailbox.take():
            if isinstance(letter, Failed):
                self._failure = letter.error
                continue
            yield letter
            if isinstance(letter, Opened):
                self._live[letter.consumer.session] = (letter.receiver, letter.consumer)
                self._windows[letter.consumer.session] = letter.window
            elif isinstance(letter, Lost):
                self._live.pop(letter.session, None)
                self._windows.pop(letter.session, None)
        if self._failure is not None:
            raise self._failure

    @property
    def complete(self) -> bool:
        """Is every receiver connected?"""
        return len(self._live) == len(self._receivers)

    def take(self) -> Iterator[Deliveries]:
        """What every session received since the last time."""
        self._look_at_attendance()
        for session, (_, consumer) in self._live.items():
            raws = drained(consumer.inbox)
            if raws:
                size = sum(self._decoder.sizes(raws))
                consumer.bytes_taken += size
                yield Deliveries(session, raws, size)

    def _look_at_attendance(self) -> None:
        told = [consumer.attended for _, consumer in self._live.values() if consumer.attended is not None]
        self._attended_s = min((until_s for _, until_s in told), default=self._runtime.monotonic_s())
        breaks = sum(count for count, _ in told)
        self.broke_off, self._breaks = breaks != self._breaks, breaks

    @property
    def attended_s(self) -> float:
        """Up to when everything that had come was there at the last :meth:`take`.

        That moment itself, unless another process receives and has not said so for that long.
        """
        return self._attended_s

    @property
    def late(self) -> bool:
        """Has a process that receives not said for a while that it has handed over everything?"""
        now_s = self._runtime.machine_s()
        told = (consumer.attended for _, consumer in self._live.values())
        return any(attended is not None and now_s - attended[1] > _LATE_S for attended in told)

    @property
    def untaken(self) -> int:
        """Messages received and not taken yet."""
        return sum(map(self.untaken_in, self._live))

    def untaken_in(self, session: int) -> int:
        """The same for one session that lives."""
        return len(self._live[session][1].inbox)

    @property
    def paused(self) -> bool:
        """Does a session wait because it has too many bytes?"""
        return any(consumer.paused for _, consumer in self._live.values())

    @property
    def behind(self) -> bool:
        """Has more come to a session than it has read? Then more waits at the broker, or on its way."""
        return any(consumer.behind for _, consumer in self._live.values())

    # -- requests

    def ask(self, session: int, request: Callable[[Consumer], None]) -> None:
        """Have a request carried out in a session, if that still lives then."""
        if session in self._live:
            self._live[session][0].ask(session, request)

    def acknowledge(self, settlement: Settlement) -> None:
        """Have acknowledgements sent, each in the session it belongs to (rule 10)."""
        for part in settlement.parts:
            self.ask(part.session, methodcaller("acknowledge", settlement.number, part.upto, part.singles))

    def ask_for_answers(self, number: int) -> None:
        """Have the broker confirm in each session, under that number, that it has got so far."""
        for session in self._live:
            self.ask(session, methodcaller("acknowledge", number, 0, ()))

    def renew(self, session: int, why: str) -> None:
        """End a session, so that the broker takes back what it holds; the receiver opens another."""
        self.ask(session, _Renewal(why))

    def reject(self, session: int, tags: Sequence[int]) -> None:
        """Have messages refused for good."""
        self.ask(session, methodcaller("reject", tags))

    # -- how much

    @property
    def windows(self) -> dict[int, int]:
        """How many unacknowledged messages each session may have been handed."""
        return self._windows

    def set_window(self, session: int, window: int) -> None:
        """Let a session have more."""
        self._windows[session] = window
        self.ask(session, methodcaller("consume", window))

    def widen(self, window: int) -> None:
        """Let every session have at least so many."""
        for session, now in list(self._windows.items()):
            if now < window:
                self.set_window(session, window)

    def bound_bytes(self, most: float, *, resume: bool) -> None:
        """Tell each receiver how many bytes it may pile up before it pauses.

        Args:
            most: for all of them.
            resume: have those that pause go on.
        """
        self._bytes_allowed = most / len(self._receivers)
        for session, (receiver, consumer) in self._live.items():
            consumer.bytes_allowed = self._bytes_allowed
            if consumer.paused and resume and not consumer.inbox:  # what it waits for is taken first
                receiver.ask(session, methodcaller("resume"))

    # -- what the broker still has

    def refresh_depth(self, age_max_s: float = _DEPTH_AGE_MAX_S) -> None:
        """Ask the broker how many messages wait, unless it has reported it lately."""
        now = self._runtime.machine_s()
        for session, (receiver, _) in self._live.items():
            if now - receiver.depth_at_s > age_max_s:
                receiver.depth_at_s = now
                receiver.ask(session, methodcaller("ask_depth"))

    def depths(self) -> list[int]:
        """Messages waiting at the broker, as last reported to each receiver; empty if it does not report it."""
        return [depth.ready for depth in self._told()]

    @property
    def starved(self) -> bool | None:
        """Has every session room that the broker leaves unused? None where a protocol does not show that.

        See :attr:`Consumer.starved <pyspark_mq.sources.connections.consumer.Consumer.starved>`.
        """
        signs = [consumer.starved for _, consumer in self._live.values()]
        return None if not signs or None in signs else all(signs)

    def _told(self) -> list[QueueDepth]:
        """What was last reported to each receiver, where something was."""
        return [receiver.depth for receiver in self._receivers if receiver.depth is not None]

    def depth_in(self, session: int) -> QueueDepth | None:
        """What was last reported to the receiver of a session that lives."""
        return self._live[session][0].depth

    @property
    def newest_depth(self) -> int | None:
        """Messages waiting at the broker, by its last report; None if it does not report it."""
        told = max(self._receivers, key=lambda receiver: receiver.depth_at_s).depth
        return None if told is None else told.ready

    @property
    def company(self) -> int:
        """Consumers of the queue beside these, as the broker said last; 0 if it does not report them."""
        told = self._told()
        counted = max((depth.other_consumers + depth.own_consumers for depth in told), default=0)
        return max(0, counted - sum(depth.own_consumers for depth in told))

    @property
    def alone(self) -> bool:
        """Did the broker report no consumers of the queue besides these, and would it?"""
        told = self._told()
        return bool(told) and all(depth.counts_lost for depth in told) and not self.company
