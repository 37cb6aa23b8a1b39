"""Until when a message may come again: one clock for each queue, fed what is observed. No I/O, no waiting.

An ID is remembered after the end of a session for as long as its message may come again. Time alone
does not say when that is over: a broker that would hand a message out again cannot while the window is full or the
consumer pauses, nor while there is no connection. What it does keep to (measured on every broker):
what a session has left behind comes before what nobody was handed yet.

So the clock here goes only while every connection is up, and the *horizon* follows it: the moment
before which whatever was ready to come again has come. It moves on

* when every session has answered a question that it was asked `TRANSIT_S` later, and has had room since: what was
  ready then was handed out before the answer, and has arrived before it, however much was in between. Whether there was
  room is known at the answer, and not before, as on a slow link a whole window may be on its way; or
* when a session is handed what nobody had before, behind all that may have been on its way at that moment: what was
  ready then was handed out before. It has arrived where a session shows the same, or has answered since, or is full, so
  that nothing is on its way to it; or
* when many windows have been settled since, however often sessions ended: what is settled does not come again.

The last is for RabbitMQ, which flags a whole classic queue after a restart. And no broker flags everything that it
hands out again: so what looks new proves nothing before a window has been taken in besides.

It stands still while things come again, one after the other: a broker may do that slowly, and answer at once. How long
a gap may be goes by those before it, from the opening of a session on.
What is asked is the broker's confirmation of acknowledgements, or of none where there are none. A session that is
silent answers nothing, so nothing is concluded from its silence.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_mq.ack import Batch
from pyspark_mq.sources.connections.consumer import TRANSIT_S, Greeting
from pyspark_mq.sources.position import FINDERS, end_of
from pyspark_mq.sources.settings import Settings

__all__ = ["OVERDUE_WAIT_S", "TRANSIT_S", "Flow", "Horizon", "RedeliveryClock"]

_LOG = logging.getLogger("pyspark_mq")

#: Behind what has come again more is waited for so many times the longest gap so far, for so long at most.
_GAPS = 4
_GAP_MAX_S = 5.0
#: So much of a window may be free without being asked for: over AMQP 1.0 credit is topped up by tenths.
_UNASKED_PARTS = 10
#: Windows to be settled where everything is flagged as redelivered. Several processes, and such as had a larger
#: `prefetch`, may each have left one behind.
_FLAGGED_WINDOWS = 20
#: So many may be on their way where a window is so many bytes as that many messages took before.
_WINDOWS_IN_BYTES = 2
#: Brims are looked at so often.
_LOOK_S = TRANSIT_S / 10
#: Questions whose answers are waited for; those to sessions that are silent are given up first.
_ASKED_MAX = 100
#: Pause between questions that are asked for their answers: longer each time from the first to the last.
_ASK_FIRST_S = 0.1
_ASK_GROWTH = 1.25
_ASK_LAST_S = 5.0
#: For IDs past their time: just long enough for the broker to have had its chance.
OVERDUE_WAIT_S = 0.01
#: A half-open connection is given up by the broker after two heartbeats without a sign, and a bit.
_HALF_OPEN_HEARTBEATS = 3


@dataclass(frozen=True, slots=True)
class Flow:
    """One session as it stands.

    Attributes:
        taken: messages taken in so far.
        fresh: the place among them, or one before it, of the last that the broker did not flag as redelivered; 0 if
            there is none.
        held: how many of them are unacknowledged.
        window: how many unacknowledged messages it may be handed.
        flagged: has the broker flagged any of them?
        paused: does it leave unread what it is handed?
        in_bytes: does the broker count the window so, and may have handed out more?
    """

    taken: int
    fresh: int
    held: int
    window: int
    flagged: bool = True
    paused: bool = False
    in_bytes: bool = False

    @property
    def free(self) -> int:
        """How many places of its window are free."""
        return max(0, self.window - self.held)

    @property
    def brim(self) -> int:
        """How many deliveries in all fill the window as it is now, what is asked for alone."""
        return self.taken - self.held + self.window - self.window // _UNASKED_PARTS

    @property
    def on_its_way(self) -> int:
        """How many may be, at most."""
        return _WINDOWS_IN_BYTES * self.window if self.in_bytes else self.free


class Horizon:
    """The clock of connected time, and the horizon behind it. Both in seconds, and neither goes back.

    Args:
        prefetch: messages that a session before may have left behind.

    Attributes:
        shows_new: since a session last opened or ended, was one handed what nobody had before?
    """

    def __init__(self, prefetch: int) -> None:
        self._prefetch = prefetch
        self.shows_new = False
        self._connected_s = 0.0
        self._horizon_s = 0.0
        self._interrupted_s = 0.0
        self._seen_s: float | None = None
        #: All sessions read everything since then.
        self._unhindered_s = 0.0
        self._mark_s = 0.0
        #: Those of the last look.
        self._sessions: set[int] = set()
        #: Session -> how many may have been handed out by the mark: what comes behind was handed out after it.
        self._mark: dict[int, int] | None = None
        #: When something new was seen behind it first.
        self._turned_s: float | None = None
        #: A moment that no interruption takes back, and how many were settled by then.
        self._far_s, self._far_settled = OVERDUE_WAIT_S, 0
        self._came_again_s: float | None = None
        self._gap_s = 0.0
        #: Number of a question -> when it was asked, and below how many deliveries each session had room so long before
        #: that the broker knew; oldest first.
        self._asked: dict[int, tuple[float, Mapping[int, int]]] = {}
        #: The same at the looks since then, with their times.
        self._brims: deque[tuple[float, Mapping[int, int]]] = deque()
        #: Session -> when the newest question was that it has answered, and that it has answered with room.
        self._answered: dict[int, float] = {}
        self._had_room: dict[int, float] = {}

    @property
    def connected_s(self) -> float:
        """For how long all sessions were up so far."""
        return self._connected_s

    @property
    def steady_s(self) -> float:
        """For how long they were, since a session last opened or ended."""
        return self._connected_s - self._interrupted_s

    @property
    def horizon_s(self) -> float:
        """Everything that was ready at this moment of connected time has come."""
        return self._horizon_s

    def interrupt(self) -> None:
        """A session has opened or ended: what was on its way in the others says nothing for it."""
        self.shows_new, self._turned_s = False, None
        self._interrupted_s = self._unhindered_s = self._connected_s
        self._seen_s = self._mark = self._came_again_s = None
        self._gap_s = 0.0
        self._asked.clear()
        self._answered.clear()
        self._had_room.clear()
        self._brims.clear()

    def came_again(self) -> None:
        """Something was handed out again that the end of a session had left open."""
        before_s = self._interrupted_s if self._came_again_s is None else self._came_again_s
        self._gap_s = max(self._gap_s, self._connected_s - before_s)
        self._came_again_s = self._connected_s

    def asked(self, number: int) -> None:
        """Take note that sessions are asked for an answer that comes behind all they were handed before."""
        brims = self._brims[0] if self._brims else (math.inf, {})
        self._asked[number] = self._connected_s, brims[1] if brims[0] <= self._connected_s - TRANSIT_S else {}
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]

    def answered(self, number: int, session: int, taken: int) -> None:
        """Take note that a session has answered, and that what came before the answer was taken in.

        Args:
            number: of the question.
            session: that has answered.
            taken: deliveries that it has had so far.
        """
        if number not in self._asked:
            return
        asked_s, brims = self._asked[number]
        self._answered[session] = max(asked_s, self._answered.get(session, 0.0))
        # By the answer the broker had handed out `taken`. Below the brim of so long before the question it had room all
        # the time since, and handed out what was ready.
        if asked_s - TRANSIT_S >= self._unhindered_s and taken < brims.get(session, 0):
            self._had_room[session] = max(asked_s, self._had_room.get(session, 0.0))

    def observe(self, now_s: float, flows: Mapping[int, Flow], settled: int = 0) -> None:
        """All sessions are up, and everything they received is taken in.

        Args:
            now_s: on any clock that never goes back.
            flows: session -> how it stands.
            settled: messages that the broker has confirmed to be gone so far, of all sessions that there were.
        """
        if self._seen_s is not None:
            self._connected_s += now_s - self._seen_s
        self._seen_s = now_s
        if any(flow.paused for flow in flows.values()):
            self._unhindered_s = self._connected_s
        if self._mark is None:
            # What is overdue was ready when the first session opened.
            self._set_mark(self._interrupted_s + OVERDUE_WAIT_S, flows)
        self._sessions = set(flows)
        self._look_at_brims(flows)
        gap_s = max(TRANSIT_S, min(_GAPS * self._gap_s, _GAP_MAX_S))
        if self._came_again_s is None or self._connected_s > self._came_again_s + gap_s:
            self._look_at_answers(flows)
            self._look_at_turnover(flows, self._mark or {}, settled)

    def _look_at_brims(self, flows: Mapping[int, Flow]) -> None:
        looks = self._brims
        if not looks or self._connected_s - looks[-1][0] >= _LOOK_S:
            looks.append((self._connected_s, {name: flow.brim for name, flow in flows.items()}))
        while len(looks) > 1 and looks[1][0] <= self._connected_s - TRANSIT_S:
            looks.popleft()

    def _look_at_answers(self, flows: Mapping[int, Flow]) -> None:
        if all(name in self._had_room for name in flows):
            answered_s = min((self._had_room[name] for name in flows), default=self._connected_s)
            self._horizon_s = max(self._horizon_s, answered_s - TRANSIT_S)

    def _set_mark(self, mark_s: float, flows: Mapping[int, Flow]) -> None:
        self._mark_s = mark_s
        # What is new since the last look was handed everything since.
        self._mark = {
            name: flow.taken + flow.on_its_way if name in self._sessions else 0 for name, flow in flows.items()
        }

    def _look_at_turnover(self, flows: Mapping[int, Flow], mark: Mapping[int, int], settled: int) -> None:
        fresh = {name for name, flow in flows.items() if flow.fresh > mark[name]}
        self.shows_new = self.shows_new or bool(fresh)
        # Where nothing is flagged, what looks new may have been left behind: as much as each session held.
        flags = any(flow.flagged for flow in flows.values())
        least = 0 if flags else self._prefetch
        turned = {name for name, flow in flows.items() if flow.taken - mark[name] >= max(flow.window, least)}
        if self.steady_s < TRANSIT_S:
            return
        shown = turned & fresh
        if shown:
            self._turned_s = self._connected_s if self._turned_s is None else self._turned_s
            if all(
                name in shown or not flow.on_its_way or (flags and self._answered.get(name, 0.0) > self._turned_s)
                for name, flow in flows.items()
            ):
                self._advance(self._mark_s, flows, settled)
                return
        windows = sum(max(flow.window, self._prefetch) for flow in flows.values())
        if settled - self._far_settled >= _FLAGGED_WINDOWS * windows and all(
            name in turned or not flow.on_its_way for name, flow in flows.items()
        ):
            self._advance(self._far_s, flows, settled)

    def _advance(self, horizon_s: float, flows: Mapping[int, Flow], settled: int) -> None:
        self._horizon_s = max(self._horizon_s, horizon_s)
        self._turned_s = None
        self._far_s, self._far_settled = self._connected_s, settled
        self._set_mark(self._connected_s, flows)


class RedeliveryClock(Horizon):
    """The horizon of a queue, and how long it has to be waited for there.

    Args:
        settings: the query's, with this queue as its endpoint.

    Attributes:
        delay_s: for how long the broker holds back what comes again, as the user or the broker said.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.prefetch)
        self._settings = settings
        self.delay_s = settings.redelivery_delay_s
        #: May a cluster strand messages of a node that it lost? Not known before the first connection.
        self._strands: bool | None = None
        self._half_open = False
        self._question, self._ask_s, self._ask_rest_s = 0, -math.inf, _ASK_FIRST_S

    def opened(self, greeting: Greeting) -> None:
        """A session has opened."""
        self.interrupt()
        self._learn_delay(greeting.redelivery_delay_s)
        broker, version = self._settings.endpoint.broker, greeting.server.rpartition("/")[2]
        strands = greeting.facts.kind in {None, "quorum"} and broker.hides_lost_consumers(version)
        self._strands = bool(self._strands) or strands

    def lost(self, *, ever_paused: bool) -> None:
        """A session has ended.

        Args:
            ever_paused: the broker does not count its consumer, and may keep what it was handed.
        """
        self.interrupt()
        self._half_open = self._half_open or ever_paused

    def interrupt(self) -> None:
        super().interrupt()
        self._ask_s, self._ask_rest_s = -math.inf, _ASK_FIRST_S

    def observe(self, now_s: float, flows: Mapping[int, Flow], settled: int = 0) -> None:
        if self._seen_s is not None:  # what a session left half-open waits by now
            self._half_open = False
        super().observe(now_s, flows, settled)

    def wait_s(self, *, alone: bool) -> float:
        """For how much of connected time the broker may still bring back what a lost session held.

        A broker that has noticed the end of the old connection hands its messages out again at
        once, before any others. One that has not (half-open TCP) notices after two heartbeats
        without a sign of life, and until then lists a consumer that is not ours, unless that had been
        cancelled for a pause. And there are brokers that hold back what comes again.

        Args:
            alone: does the broker report no consumers besides ours, and would it?
        """
        # A queue of a cluster that has no leader for a moment says that it has no consumers.
        alone = alone and not self._half_open and not self._settings.endpoint.clustered
        return self.delay_s + (self._settings.settle_grace_s if alone else self.kept_s)

    def question(self, now_s: float) -> int | None:
        """The number of a question that is due, for its answer alone; below those of settlements. None if none is."""
        if now_s < self._ask_s:
            return None
        self._ask_rest_s = min(self._ask_rest_s * _ASK_GROWTH, _ASK_LAST_S)
        self._ask_s = now_s + self._ask_rest_s
        self._question -= 1
        self.asked(self._question)
        return self._question

    @property
    def kept_s(self) -> float:
        """The longest that a broker keeps what a connection that is gone was handed.

        Only a cluster loses a node and goes on; but behind one address there may be a cluster, and nothing tells.
        Before the first connection, when an offset is read, it may be any version.
        """
        stranded_s = 0.0 if self._strands is False else self._settings.endpoint.broker.stranded_s
        return max(self.half_open_s, stranded_s)

    @property
    def half_open_s(self) -> float:
        """The longest that a broker takes a connection for alive that is not."""
        endpoint = self._settings.endpoint
        half_open_s = endpoint.broker.half_open_s.get(endpoint.protocol, 0.0)
        if endpoint.clustered:
            # A queue may be on another node than the one that hangs, which takes that for alive with its clients.
            half_open_s = max(half_open_s, endpoint.broker.node_lost_s)
        return max(self._settings.settle_grace_s, _HALF_OPEN_HEARTBEATS * endpoint.heartbeat_s, half_open_s)

    def until_s(self, batch: Batch[Any], utc_s: float) -> int | None:
        """What an offset says of a carried batch: up to when it has to be, seconds since 1970.

        None where that is open; and the number of processes that have found it open and planned with it, while those
        are few. Each of them may be handed a message, and take it along when it ends, without having looked at it. An
        end that there is once is kept by the batch, and each offset repeats it: what every process put off a little
        would never be over.

        Args:
            batch: one that is carried.
            utc_s: now.
        """
        left_s = batch.wait_left_s(self.horizon_s)
        if batch.exposure is None:
            return None if left_s is None else math.ceil(utc_s + left_s)
        if batch.sessions:  # acknowledged here: it was found in no offset
            return None
        found = 1 + (batch.until_s or 0)
        if found < FINDERS:
            return found
        if found == FINDERS:
            batch.until_s = math.ceil(utc_s + (self.kept_s + self.delay_s if left_s is None else left_s))
        return batch.until_s

    def carried_s(self, until_s: int | None, utc_s: float) -> float | None:
        """For how long what an offset carries has to be carried here.

        What the broker keeps for a connection that is gone it gives up by its own clock, also while nobody is connected
        here; then it comes first.

        Args:
            until_s: as :meth:`until_s` has said it.
            utc_s: now.

        Returns:
            connected seconds; `OVERDUE_WAIT_S` if the time is over, None for a whole wait.
        """
        end_s = end_of(until_s)
        if end_s is None:
            return None
        left_s = min(end_s + self._settings.settle_grace_s - utc_s, self.kept_s + self.delay_s)
        return max(left_s, OVERDUE_WAIT_S)

    def _learn_delay(self, told_s: float) -> None:
        if told_s <= self.delay_s:
            return
        self.delay_s = told_s
        settings = self._settings
        late = told_s >= settings.replay_timeout_s
        _LOG.log(
            logging.WARNING if late else logging.INFO,
            "%s: the queue holds back what comes again for up to %.0f s; message IDs are carried for as long%s",
            settings.endpoint.destination, told_s,
            f". That is not below replayTimeout={settings.replay_timeout_s:g}s: raise it, or a restart may fail with "
            "a DataLossError although nothing is lost" if late else "",
        )  # fmt: skip
