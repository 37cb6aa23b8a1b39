"""The host of receivers: one thread that takes what their sessions receive and tells it, in order.

Receivers have a thread each, for their connection. The host goes round them, makes blocks of what is in their inboxes,
and tells those and the events. It is the same in the source's process and in a receiver process: there what it tells
goes over a socket.

**Order** (rules 6 and 10). One thread tells everything. Before a confirmation, and before a word on the depth of the
queue, it hands over what the session had received by then; behind the end of a session it hands over nothing of it.

**Nothing is in flight unseen.** The redelivery clock concludes from answers that what was ready has come. A host may
be slow, or stopped. So its word counts: every tenth of a second it says up to when everything that came was told. A
host that finds that it stood still for longer than a broker may take to hand something out says so, and the clock
begins anew.

**Bytes.** A consumer counts what arrived, learns from the host what that takes in blocks, and from :class:`.Limits`
what was taken. The difference is what pauses it: what waits in the inbox, what is being made into blocks, what is on
its way and what waits to be taken.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate, groupby
from typing import Any

import pyarrow as pa

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.block import make_block
from pyspark_mq.sources.connections.consumer import TRANSIT_S, Consumer, drained
from pyspark_mq.sources.connections.events import (
    Attended,
    Confirmed,
    Delivered,
    Event,
    EventQueue,
    Failed,
    Lost,
    Opened,
    Standing,
    Stopped,
    Told,
)
from pyspark_mq.sources.connections.receiver import Receiver
from pyspark_mq.sources.connections.requests import Ask, Begin, SetLimits, Stop, ToHost
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.runtime import Runtime, begin_thread

__all__ = ["Host"]

_LOG = logging.getLogger("pyspark_mq")

#: Each block has a price: behind a round with deliveries the next is begun so long after its beginning, no sooner; and
#: later behind one with so many that somebody waits for more than the next.
_ROUND_S = 0.02
_LARGE_ROUND_S = 0.06
_LARGE_ROUND_ROWS = 200
#: It is told at least so often that everything was handed over, and how the sessions stand.
_WORD_S = 0.1
#: The host does nothing for so long: its process was stopped, or had no turn. What came may be unread.
_BREAK_S = TRANSIT_S
#: A block is made in a small part of the time that counts as a break.
_ROWS_MAX = 5_000
_BYTES_MAX = 4 << 20


class _Seat:
    """One receiver, and what the host knows of it."""

    def __init__(self, begin: Begin, receiver: Receiver, make_consumer: type[Consumer]) -> None:
        self.begin = begin
        self.receiver = receiver
        self.decoder = make_consumer.decoder
        self.consumer: Consumer | None = None
        self.standing: Standing | None = None
        self.stopped = False


class Host:
    """Receivers, and what they bring.

    Args:
        find_consumer: the consumer class of a protocol, by its name.
        schema: of the blocks to make.
        tell: called with everything there is to tell, on the host's thread.
        runtime: what receivers run on.
        now_s: the clock of :class:`.Attended`.
        sessions: numbers for sessions, unique in the query.

    Attributes:
        arrived: set when there is something to look at.
    """

    def __init__(
        self,
        find_consumer: Callable[[str], type[Consumer]],
        schema: pa.Schema,
        tell: Callable[[Event | Attended], None],
        runtime: Runtime,
        now_s: Callable[[], float],
        sessions: Iterator[int],
    ) -> None:
        self._find_consumer = find_consumer
        self._schema = schema
        self._tell = tell
        self._runtime = runtime
        self._now_s = now_s
        self._sessions = sessions
        self._events = EventQueue()
        self.arrived = self._events.arrived
        self._seats: dict[int, _Seat] = {}
        self._looked_s = now_s()
        self._broke_off = False
        self._ending = False

    # -- for the thread that asks

    def obey(self, message: ToHost) -> None:
        """Handle a message; only the end of a connection blocks, for a moment."""
        if isinstance(message, Begin):
            self._begin(message)
            return
        seat = self._seats.get(message.key)
        if seat is None:
            return
        if isinstance(message, Ask):
            seat.receiver.ask(message.session, message.request)
        elif isinstance(message, SetLimits):
            seat.receiver.limit(message.limits)
        elif isinstance(message, Stop):
            if message.waits:
                seat.receiver.stop()
            else:
                seat.receiver.stop(0.0)
            seat.stopped = True
            self.arrived.set()

    def obey_beside(self, message: Stop) -> None:
        """Stop a receiver without blocking the caller."""
        seat = self._seats.get(message.key)
        if seat is not None:
            begin_thread("pyspark-mq stop", lambda: self.obey(message), lambda _: self._stopped(seat))

    def _stopped(self, seat: _Seat) -> None:
        seat.stopped = True
        self.arrived.set()

    def _begin(self, begin: Begin) -> None:
        try:
            make = self._find_consumer(begin.endpoint.protocol)
        except MqError as missing:
            self._events.put(Failed(begin.key, missing))
            return

        def make_consumer(endpoint: Endpoint, session: int, arrived: threading.Event) -> Consumer:
            consumer = make(endpoint, session, arrived)
            consumer.keeps_unreadable = begin.keeps_unreadable
            return consumer

        receiver = Receiver(begin, make_consumer, self._events, self._sessions, self._runtime)
        self._seats[begin.key] = _Seat(begin, receiver, make)
        receiver.start()

    def end(self) -> None:
        """Go round no more."""
        self._ending = True
        self.arrived.set()

    # -- the host's thread

    def life(self) -> Iterator[float]:
        """Go round until it is to end; yields how long to rest, in seconds."""
        said_s = self._now_s()
        while not self._ending:
            began_s = self._look()
            self.arrived.clear()
            broke_off, self._broke_off = self._broke_off, False
            rows = self._round()
            if broke_off or began_s - said_s >= _WORD_S:
                said_s = began_s
                self._tell(Attended(began_s, broke_off))
            if rows:
                round_s = _ROUND_S if rows < _LARGE_ROUND_ROWS else _LARGE_ROUND_S
                self._runtime.sleep(max(0.0, began_s + round_s - self._now_s()))
                yield 0.0
            else:
                yield max(0.0, said_s + _WORD_S - self._now_s())

    def _look(self) -> float:
        """Look at the clock; whoever finds it much later than the last time has stood still."""
        now_s = self._now_s()
        self._broke_off = self._broke_off or now_s - self._looked_s > _BREAK_S
        self._looked_s = now_s
        return now_s

    def _round(self) -> int:
        """Tell everything that is there; how many deliveries that was."""
        # Behind the end of its session, which a connection that closes slowly tells late.
        ended = [key for key, seat in list(self._seats.items()) if seat.stopped and seat.receiver.ended]
        rows = sum(map(self._pass_on, self._events.take()))
        for seat in list(self._seats.values()):
            rows += self._hand_over(seat)
            self._tell_standing(seat)
        for key in ended:
            del self._seats[key]
            self._tell(Stopped(key))
        return rows

    def _pass_on(self, event: Event) -> int:
        seat, rows = self._seats.get(event.key), 0
        if seat is not None:
            if isinstance(event, Opened):
                seat.consumer, seat.standing = seat.receiver.consumer_of(event.session), None
            elif isinstance(event, Lost):
                seat.consumer = None
            elif isinstance(event, Confirmed | Told):
                rows = self._hand_over(seat)
        self._tell(event)
        return rows

    def _hand_over(self, seat: _Seat) -> int:
        consumer = seat.consumer
        rows = left = 0 if consumer is None else len(consumer.inbox)
        try:
            while consumer is not None and left > 0:
                raws = drained(consumer.inbox, min(left, _ROWS_MAX))
                if not raws:
                    break  # the session has ended meanwhile
                left -= len(raws)
                for part, size in _parts(raws, seat.decoder.sizes(raws)):
                    self._look()
                    metadata, block = make_block(seat.decoder, part, seat.begin.ids, self._schema)
                    consumer.bytes_grown += sum(block.sizes) - size
                    self._tell(Delivered(seat.begin.key, consumer.session, metadata, block))
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - what dies silently would hang the query
            _LOG.exception("handing over failed")
            text = f"{seat.begin.endpoint.destination}: deliveries could not be taken in: "
            self._tell(Failed(seat.begin.key, MqError(f"{text}{type(error).__name__}: {error}")))
            seat.receiver.stop(0.0)
            seat.consumer = None
        return rows

    def _tell_standing(self, seat: _Seat) -> None:
        consumer = seat.consumer
        if consumer is None:
            return
        behind = consumer.behind or bool(consumer.inbox)
        standing = Standing(seat.begin.key, consumer.session, consumer.paused, behind)
        if standing != seat.standing:
            seat.standing = standing
            self._tell(standing)


def _parts(raws: list[Any], sizes: list[int]) -> list[tuple[list[Any], int]]:
    """Split deliveries into pieces of about `_BYTES_MAX`, or of one larger delivery; with the bytes of each piece."""
    if sum(sizes) <= _BYTES_MAX:
        return [(raws, sum(sizes))]
    parts = []
    for _, piece in groupby(
        zip(raws, accumulate(sizes), sizes, strict=True), lambda one: (one[1] - one[2]) // _BYTES_MAX
    ):
        some = list(piece)
        parts.append(([raw for raw, _, _ in some], sum(size for _, _, size in some)))
    return parts
