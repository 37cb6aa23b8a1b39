"""The host of receivers: one thread that takes what their sessions receive and emits it, in order.

Receivers have a thread each, for their connection. The host goes round them, makes blocks of what is in their inboxes,
and emits those and the events. It is the same in the source's process and in a receiver process: there what it emits
goes over a socket.

**Order** (rules 6 and 10). One thread emits everything. Before a confirmation, and before a word on the depth of the
queue, it hands over what the session had received by then; behind the end of a session it hands over nothing of it.

**Nothing is in flight unseen.** The redelivery clock concludes from answers that what was ready has come. A host may
be slow, or stopped. So its progress mark counts, every tenth of a second: all that came up to then was emitted. A
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
from pyspark_mq.sources.connections.events import (
    Confirmed,
    Delivered,
    DepthReported,
    Event,
    EventQueue,
    Failed,
    Lost,
    Opened,
    Progress,
    SessionStatus,
    Stopped,
)
from pyspark_mq.sources.connections.keeper import SessionKeeper
from pyspark_mq.sources.connections.requests import Ask, Begin, SetLimits, Stop, ToWorker
from pyspark_mq.sources.connections.session import TRANSIT_S, Session, drained
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.runtime import Runtime, begin_thread

__all__ = ["Worker"]

_LOG = logging.getLogger("pyspark_mq")

#: Each block has a price: behind a round with deliveries the next is begun so long after its beginning, no sooner; and
#: later behind one with so many that somebody waits for more than the next.
_ROUND_S = 0.02
_LARGE_ROUND_S = 0.06
_LARGE_ROUND_ROWS = 200
#: The progress mark and the sessions' status are emitted at least so often.
_WORD_S = 0.1
#: The host does nothing for so long: its process was stopped, or had no turn. What came may be unread.
_BREAK_S = TRANSIT_S
#: A block is made in a small part of the time that counts as a break.
_ROWS_MAX = 5_000
_BYTES_MAX = 4 << 20


class _Slot:
    """One receiver, and what the host knows of it."""

    def __init__(self, begin: Begin, receiver: SessionKeeper, make_session: type[Session]) -> None:
        self.begin = begin
        self.receiver = receiver
        self.decoder = make_session.decoder
        self.consumer: Session | None = None
        self.status: SessionStatus | None = None
        self.stopped = False


class Worker:
    """Receivers, and what they bring.

    Args:
        find_session: the consumer class of a protocol, by its name.
        schema: of the blocks to make.
        emit: called with every event, on the host's thread.
        runtime: what receivers run on.
        now_s: the clock of :class:`.Progress`.
        sessions: numbers for sessions, unique in the query.

    Attributes:
        arrived: set when there is something to look at.
    """

    def __init__(
        self,
        find_session: Callable[[str], type[Session]],
        schema: pa.Schema,
        emit: Callable[[Event | Progress], None],
        runtime: Runtime,
        now_s: Callable[[], float],
        sessions: Iterator[int],
    ) -> None:
        self._find_consumer = find_session
        self._schema = schema
        self._emit = emit
        self._runtime = runtime
        self._now_s = now_s
        self._sessions = sessions
        self._events = EventQueue()
        self.arrived = self._events.arrived
        self._slots: dict[int, _Slot] = {}
        self._looked_s = now_s()
        self._broke_off = False
        self._ending = False

    # -- for the thread that asks

    def handle(self, message: ToWorker) -> None:
        """Handle a message; only the end of a connection blocks, for a moment."""
        if isinstance(message, Begin):
            self._begin(message)
            return
        slot = self._slots.get(message.key)
        if slot is None:
            return
        if isinstance(message, Ask):
            slot.receiver.ask(message.session, message.request)
        elif isinstance(message, SetLimits):
            slot.receiver.limit(message.limits)
        elif isinstance(message, Stop):
            if message.waits:
                slot.receiver.stop()
            else:
                slot.receiver.stop(0.0)
            slot.stopped = True
            self.arrived.set()

    def stop_in_background(self, message: Stop) -> None:
        """Stop a receiver without blocking the caller."""
        slot = self._slots.get(message.key)
        if slot is not None:
            begin_thread("pyspark-mq stop", lambda: self.handle(message), lambda _: self._stopped(slot))

    def _stopped(self, slot: _Slot) -> None:
        slot.stopped = True
        self.arrived.set()

    def _begin(self, begin: Begin) -> None:
        try:
            make = self._find_consumer(begin.endpoint.protocol)
        except MqError as missing:
            self._events.put(Failed(begin.key, missing))
            return

        def make_session(endpoint: Endpoint, session: int, arrived: threading.Event) -> Session:
            consumer = make(endpoint, session, arrived)
            consumer.keeps_unreadable = begin.keeps_unreadable
            return consumer

        receiver = SessionKeeper(begin, make_session, self._events, self._sessions, self._runtime)
        self._slots[begin.key] = _Slot(begin, receiver, make)
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
                self._emit(Progress(began_s, broke_off))
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
        """Emit everything that is there; return how many deliveries that was."""
        # Behind the end of its session, which a connection that closes slowly reports late.
        ended = [key for key, slot in list(self._slots.items()) if slot.stopped and slot.receiver.ended]
        rows = sum(map(self._pass_on, self._events.take()))
        for slot in list(self._slots.values()):
            rows += self._hand_over(slot)
            self._emit_status(slot)
        for key in ended:
            del self._slots[key]
            self._emit(Stopped(key))
        return rows

    def _pass_on(self, event: Event) -> int:
        slot, rows = self._slots.get(event.key), 0
        if slot is not None:
            if isinstance(event, Opened):
                slot.consumer, slot.status = slot.receiver.consumer_of(event.session), None
            elif isinstance(event, Lost):
                slot.consumer = None
            elif isinstance(event, Confirmed | DepthReported):
                rows = self._hand_over(slot)
        self._emit(event)
        return rows

    def _hand_over(self, slot: _Slot) -> int:
        consumer = slot.consumer
        rows = left = 0 if consumer is None else len(consumer.inbox)
        try:
            while consumer is not None and left > 0:
                raws = drained(consumer.inbox, min(left, _ROWS_MAX))
                if not raws:
                    break  # the session has ended meanwhile
                left -= len(raws)
                for part, size in _parts(raws, slot.decoder.sizes(raws)):
                    self._look()
                    metadata, block = make_block(slot.decoder, part, slot.begin.ids, self._schema)
                    consumer.bytes_grown += sum(block.sizes) - size
                    self._emit(Delivered(slot.begin.key, consumer.session, metadata, block))
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - what dies silently would hang the query
            _LOG.exception("handing over failed")
            text = f"{slot.begin.endpoint.destination}: deliveries could not be taken in: "
            self._emit(Failed(slot.begin.key, MqError(f"{text}{type(error).__name__}: {error}")))
            slot.receiver.stop(0.0)
            slot.consumer = None
        return rows

    def _emit_status(self, slot: _Slot) -> None:
        consumer = slot.consumer
        if consumer is None:
            return
        behind = consumer.behind or bool(consumer.inbox)
        status = SessionStatus(slot.begin.key, consumer.session, consumer.paused, behind)
        if status != slot.status:
            slot.status = status
            self._emit(status)


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
