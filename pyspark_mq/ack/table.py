"""The life of a delivery: one table, state x event.

Two rules for this file. Everything that decides what an event does to a message stands in
``TRANSITIONS``; and nothing here knows about brokers, Spark, threads or time.

The in-flight table holds messages of one state in one container. For each event it looks the transition
up once for each container that meets it, does the action, and moves the messages into the
container of the target state. It has no other way to move a message, so a wrong row here is a
wrong in-flight table: ``tests/unit/test_table_mutations.py`` changes every row in every way and has each
change noticed.

Theory
------
A message is known by its ID, never by the handle of a delivery: a handle (delivery tag, ack id)
means something only within the session that received it, and brokers hand the same message out
again under a new handle whenever a session ends (AMQP 0-9-1 section 4.7 "message redelivery";
the redelivered flag is not set by all of them, so nothing here looks at it).

The coordinator of the two-phase commit is Spark's checkpoint:

* phase one is PLAN. The ID is written down and named by the offset log, so from here on the message
  belongs to exactly one epoch, forever;
* COMMIT is Spark's proof that the epoch is in the commit log. Only now may the broker forget;
* phase two is the acknowledgement that COMMIT asks for. The broker may take it, or forget that it
  did: whatever comes with the ID of a committed message is acknowledged again.

A crash is not an event of its own. The process is gone, and the next one finds the IDs of committed
epochs in files: those are COMMITTED from the beginning. What was received or planned before the files
were read meets RESTORE_COMMITTED, the open epoch RESTORE_PLANNED.
The loss of a session (LOSE) takes the handles away and leaves PLANNED and COMMITTED as they are; what
was only RECEIVED is forgotten, because the broker will bring it again and somebody else may get it.

How long an ID is remembered is decided for many together (:mod:`pyspark_mq.dedup.memory`), and
nothing that happens to a single message ends it.

One action acknowledges, and every row that has it leads to COMMITTED: that is rule 1.
``tests/unit/test_table.py`` reads it from the table, and the in-flight table refuses a row that breaks it.

Rules are cited by their number in docs/how-it-works.md#the-rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from pyspark_mq.errors import InternalError

__all__ = ["TRANSITIONS", "Action", "Event", "IllegalEventError", "State", "step"]


class State(Enum):
    """State of a message, seen from this process."""

    UNSEEN = "unseen"  #: not known: never met, or forgotten
    RECEIVED = "received"  #: in the buffer, unacknowledged
    PLANNED = "planned"  #: its ID is in the file of an epoch that Spark has, or is about to have
    COMMITTED = "committed"  #: its epoch is in the commit log


class Event(Enum):
    """An event in the life of a message."""

    DELIVER = "deliver"  #: a delivery with its ID arrives, first or again
    PLAN = "plan"  #: it is cut into an epoch
    COMMIT = "commit"  #: Spark proves that its epoch is committed
    LOSE = "lose"  #: its handle is gone with its session; a received message has no other
    ABANDON = "abandon"  #: it did not come back for its replay (rule 9) and the user goes on
    RESTORE_PLANNED = "restore planned"  #: found as planned in the file of an open epoch
    RESTORE_COMMITTED = "restore committed"  #: found in the file of a committed epoch


class Action(Enum):
    """An action that a transition asks of the in-flight table."""

    NOTHING = "nothing"
    KEEP = "keep"  #: hold payload and handle
    BIND = "bind"  #: hold one more handle, and the payload if there is none yet
    ACKNOWLEDGE = "acknowledge"  #: acknowledge every handle of the message
    REPLAN = "replan"  #: move it from the epoch it is in to the one that was planned first
    UNBIND = "unbind"  #: drop the handle; keep the rest
    LEAVE = "leave"  #: what was acknowledged is left open by its session, and may come again
    FORGET = "forget"  #: drop everything known


class IllegalEventError(InternalError):
    """An event that cannot happen in this state. The in-flight table is left as it was."""

    def __init__(self, state: State, event: Event) -> None:
        self.state = state
        self.event = event
        super().__init__(f"a message in state '{state.value}' cannot meet event '{event.value}'")


_S, _E, _A = State, Event, Action

TRANSITIONS: Mapping[tuple[State, Event], tuple[State, Action]] = MappingProxyType(
    {
        (_S.UNSEEN, _E.DELIVER): (_S.RECEIVED, _A.KEEP),
        (_S.UNSEEN, _E.RESTORE_PLANNED): (_S.PLANNED, _A.NOTHING),
        # A second delivery while the first is open is a producer's duplicate, or the same
        # message over another connection whose end we have not noticed. Either way it shares
        # the fate of the first, and both handles are acknowledged together (rule 7).
        (_S.RECEIVED, _E.DELIVER): (_S.RECEIVED, _A.BIND),
        (_S.RECEIVED, _E.PLAN): (_S.PLANNED, _A.NOTHING),
        (_S.RECEIVED, _E.LOSE): (_S.UNSEEN, _A.FORGET),
        # Spark 4.0 and 4.1 show the committed offset only after an epoch was planned.
        (_S.RECEIVED, _E.RESTORE_COMMITTED): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.PLANNED, _E.DELIVER): (_S.PLANNED, _A.BIND),
        (_S.PLANNED, _E.COMMIT): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.PLANNED, _E.LOSE): (_S.PLANNED, _A.UNBIND),
        # Spark 4.0 has the end of a bounded run planned before it shows an epoch that a former process
        # left open: what is open comes first, and takes its messages back.
        (_S.RECEIVED, _E.RESTORE_PLANNED): (_S.PLANNED, _A.NOTHING),
        (_S.PLANNED, _E.RESTORE_PLANNED): (_S.PLANNED, _A.REPLAN),
        # Never emitted by this epoch, so it counts as new if it turns up after all: a message
        # declared lost and then dropped would be lost twice.
        (_S.PLANNED, _E.ABANDON): (_S.UNSEEN, _A.FORGET),
        (_S.PLANNED, _E.RESTORE_COMMITTED): (_S.COMMITTED, _A.ACKNOWLEDGE),
        # Rule 4: a dropped duplicate is acknowledged, or it fills the prefetch window.
        (_S.COMMITTED, _E.DELIVER): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.COMMITTED, _E.LOSE): (_S.COMMITTED, _A.LEAVE),
        # Planned by a process that had not been shown the committed offset yet: not emitted again.
        (_S.COMMITTED, _E.RESTORE_PLANNED): (_S.COMMITTED, _A.NOTHING),
    }
)


def step(state: State, event: Event) -> tuple[State, Action]:
    """The state after `event`, and what has to be done.

    Raises:
        IllegalEventError: the table has no such pair.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalEventError(state, event) from None
