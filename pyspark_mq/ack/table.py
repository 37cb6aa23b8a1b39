"""The life of a delivery: one table, state x event.

Two rules for this file: only ``TRANSITIONS`` decides what an event does to a message, and nothing here knows about
brokers, Spark, threads or time.

The in-flight table holds the messages of one state in one container. For each event, it looks up the transition once
for each container concerned, performs the action, and moves the messages into the container of the target state. It has
no other way to move a message, so a wrong row here makes the in-flight table wrong:
``tests/unit/test_table_mutations.py`` changes every row in every way and checks that each change is noticed.

Theory
------
A message is identified by its ID, never by the handle of a delivery: a handle (delivery tag, ack id) is valid only in
the session that received it, and brokers redeliver a message under a new handle whenever a session ends (AMQP 0-9-1
section 4.7 "message redelivery"; not all brokers set the redelivered flag, so nothing here uses it).

The coordinator of the two-phase commit is Spark's checkpoint:

* phase one is PLAN. The ID is in a file that the offset log names, so from here on the message belongs to exactly one
  epoch, forever;
* COMMIT is Spark's proof that the epoch is in the commit log. Only now may the broker forget the message;
* phase two is the acknowledgement that COMMIT causes. The broker may lose it, or forget that it has processed it, so
  every delivery with the ID of a committed message is acknowledged again.

A crash is not an event. The next process finds the IDs of committed epochs in files: their messages are COMMITTED from
the beginning, and those of the open epoch meet RESTORE_PLANNED. The loss of a session (LOSE) voids handles and leaves
PLANNED and COMMITTED messages as they are. A message that is only RECEIVED is forgotten, because the broker redelivers
it, perhaps to another consumer.

The memory decides for many IDs at once how long they are remembered (:mod:`pyspark_mq.dedup.memory`); events of single
messages do not decide this.

Only one action acknowledges, and every row with this action leads to COMMITTED (rule 1). ``tests/unit/test_table.py``
checks every row of the table for this, and the in-flight table refuses a row that breaks the rule.

Rules are cited by their number in docs/how-it-works.md#the-rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from pyspark_mq.errors import InternalError

__all__ = ["TRANSITIONS", "Action", "Event", "IllegalEventError", "State", "step"]


class State(Enum):
    """State of a message in this process."""

    UNSEEN = "unseen"  #: never seen, or forgotten
    RECEIVED = "received"  #: in the buffer, unacknowledged
    PLANNED = "planned"  #: the message's ID is in the file of an epoch that Spark has, or is about to have
    COMMITTED = "committed"  #: the message's epoch is in the commit log


class Event(Enum):
    """An event in the life of a message."""

    DELIVER = "deliver"  #: a delivery with the message's ID arrives, the first or a later one
    PLAN = "plan"  #: the message is cut into an epoch
    BEGIN = "begin"  #: Spark has logged its epoch. Only for an echo, which the epoch does not emit
    COMMIT = "commit"  #: Spark proves that the message's epoch is committed
    LOSE = "lose"  #: a handle is gone with its session; a message that is only received has no other handle
    ABANDON = "abandon"  #: the message was not redelivered for a replay (rule 9); the query continues without it
    RESTORE_PLANNED = "restore planned"  #: the file of an open epoch names the message as planned


class Action(Enum):
    """An action that the in-flight table takes in a transition."""

    NOTHING = "nothing"
    KEEP = "keep"  #: hold payload and handle
    BIND = "bind"  #: hold one more handle, and the payload if none is held yet
    ACKNOWLEDGE = "acknowledge"  #: acknowledge every handle of the message
    UNBIND = "unbind"  #: drop the handle; keep the rest
    LEAVE = "leave"  #: record that the acknowledgement was cut off, so that the message may be redelivered
    FORGET = "forget"  #: drop everything known about the message


class IllegalEventError(InternalError):
    """The event cannot happen in this state. The in-flight table is unchanged."""

    def __init__(self, state: State, event: Event) -> None:
        self.state = state
        self.event = event
        super().__init__(f"a message in state '{state.value}' cannot meet event '{event.value}'")


_S, _E, _A = State, Event, Action

TRANSITIONS: Mapping[tuple[State, Event], tuple[State, Action]] = MappingProxyType(
    {
        (_S.UNSEEN, _E.DELIVER): (_S.RECEIVED, _A.KEEP),
        (_S.UNSEEN, _E.RESTORE_PLANNED): (_S.PLANNED, _A.NOTHING),
        # A second delivery while the first is open is a producer's duplicate, or the same message after the end of
        # another connection, which was not noticed here yet. Either way both handles are acknowledged together
        # (rule 7).
        (_S.RECEIVED, _E.DELIVER): (_S.RECEIVED, _A.BIND),
        (_S.RECEIVED, _E.PLAN): (_S.PLANNED, _A.NOTHING),
        (_S.RECEIVED, _E.LOSE): (_S.UNSEEN, _A.FORGET),
        (_S.PLANNED, _E.DELIVER): (_S.PLANNED, _A.BIND),
        # An earlier epoch has emitted it, and is committed.
        (_S.PLANNED, _E.BEGIN): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.PLANNED, _E.COMMIT): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.PLANNED, _E.LOSE): (_S.PLANNED, _A.UNBIND),
        # The epoch never emits an abandoned message, so the message counts as new if it is redelivered after all:
        # otherwise a message that was only late would really be lost.
        (_S.PLANNED, _E.ABANDON): (_S.UNSEEN, _A.FORGET),
        # Rule 4: a dropped duplicate is acknowledged, or it would fill the prefetch window.
        (_S.COMMITTED, _E.DELIVER): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.COMMITTED, _E.LOSE): (_S.COMMITTED, _A.LEAVE),
    }
)


def step(state: State, event: Event) -> tuple[State, Action]:
    """Return the state after `event`, and the action to take.

    Raises:
        IllegalEventError: the table has no such pair.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalEventError(state, event) from None
