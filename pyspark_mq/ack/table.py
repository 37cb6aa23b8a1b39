"""The life of a message: a table that says what each event does to a message in each state.

Two rules apply to this file. Only ``TRANSITIONS`` decides what an event does to a message, and nothing in the file
depends on brokers, Spark, threads or time.

The in-flight table (:mod:`.in_flight`) applies this table. It keeps the messages of one state in one container. For an
event, it looks up the transition once for each container with messages to which the event applies, performs the
action, and moves the messages into the container of the target state. It cannot move messages in any other way, so a
wrong row in this table makes the in-flight table wrong. ``tests/unit/test_table_mutations.py`` changes each row in
every possible way, and checks that a test notices the change.

Theory
------
A message is identified by its ID, never by the handle of a delivery: a handle (delivery tag, ack id) is valid only in
the session that received it, and brokers redeliver a message under a new handle whenever a session ends (AMQP 0-9-1
section 4.7 "message redelivery"; not all brokers set the redelivered flag, so nothing here uses it).

The coordinator of the two-phase commit is Spark's checkpoint:

* phase one is PLAN. The message's ID is now in a file that Spark's offset log names, so from now on the message belongs
  to exactly one epoch, forever;
* COMMIT means that Spark has proved that the epoch is in its commit log. Only now may the broker forget the message;
* phase two is the acknowledgement that follows COMMIT. The acknowledgement may be lost on the way to the broker, or the
  broker may lose it in a crash. So every later delivery with the ID of a committed message is acknowledged again.

A crash of the process is not an event. The next process reads the IDs from files: messages of committed epochs are
COMMITTED from the beginning, and RESTORE_PLANNED is applied to messages of the epoch that is not committed. The end of
a session (LOSE) makes handles invalid, but does not change PLANNED and COMMITTED messages. A message that is only
RECEIVED is forgotten, because the broker redelivers it, perhaps to another consumer.

The memory (:mod:`pyspark_mq.dedup.memory`) decides how long the ID of a COMMITTED message is remembered. It decides for
many IDs at once, so this table has no event for it.

Only the action ACKNOWLEDGE acknowledges messages, and every row with this action leads to the state COMMITTED (rule 1).
``tests/unit/test_table.py`` checks this for every row of the table, and the in-flight table refuses a row that breaks
the rule.

"Rule 1" means the rule with this number in docs/design.md#the-rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from pyspark_mq.errors import InternalError

__all__ = ["TRANSITIONS", "Action", "Event", "IllegalEventError", "State", "step"]


class State(Enum):
    """The state of a message in this process."""

    UNSEEN = "unseen"  #: never seen, or forgotten
    RECEIVED = "received"  #: in the buffer, unacknowledged
    PLANNED = "planned"  #: the message's ID is in the file of an epoch that Spark has, or is about to have
    COMMITTED = "committed"  #: the message's epoch is in the commit log


class Event(Enum):
    """An event in the life of a message."""

    DELIVER = "deliver"  #: a delivery with the message's ID arrives, the first or a later one
    PLAN = "plan"  #: the message is assigned to an epoch
    BEGIN = "begin"  #: Spark has logged the epoch. Applies only to an echo, a redelivery that the epoch does not emit
    COMMIT = "commit"  #: Spark has proved that the message's epoch is committed
    LOSE = "lose"  #: the session of a handle has ended; applied to a received message only if no handle is left
    ABANDON = "abandon"  #: the message was not redelivered for a replay (rule 9); the query continues without it
    RESTORE_PLANNED = "restore planned"  #: the file of an open epoch names the message as planned


class Action(Enum):
    """An action of the in-flight table on a message in a transition."""

    NOTHING = "nothing"
    KEEP = "keep"  #: record the payload and the handle
    BIND = "bind"  #: record another handle of the message, and its payload if there is none yet
    ACKNOWLEDGE = "acknowledge"  #: acknowledge every handle of the message
    UNBIND = "unbind"  #: drop the handle; keep the message, its payload and its other handles
    LEAVE = "leave"  #: record that the session ended before the acknowledgement was settled; a redelivery may follow
    FORGET = "forget"  #: drop everything known about the message


class IllegalEventError(InternalError):
    """An event that the transition table does not allow in the message's state. The in-flight table is unchanged."""

    def __init__(self, state: State, event: Event) -> None:
        self.state = state
        self.event = event
        super().__init__(f"a message in state '{state.value}' cannot receive event '{event.value}'")


_S, _E, _A = State, Event, Action

TRANSITIONS: Mapping[tuple[State, Event], tuple[State, Action]] = MappingProxyType(
    {
        (_S.UNSEEN, _E.DELIVER): (_S.RECEIVED, _A.KEEP),
        (_S.UNSEEN, _E.RESTORE_PLANNED): (_S.PLANNED, _A.NOTHING),
        # There is a second delivery while the first is open. Either a producer has sent a duplicate, or the broker
        # redelivers the message because another connection has ended, which this process has not noticed yet. In both
        # cases the two handles are acknowledged together (rule 7).
        (_S.RECEIVED, _E.DELIVER): (_S.RECEIVED, _A.BIND),
        (_S.RECEIVED, _E.PLAN): (_S.PLANNED, _A.NOTHING),
        (_S.RECEIVED, _E.LOSE): (_S.UNSEEN, _A.FORGET),
        (_S.PLANNED, _E.DELIVER): (_S.PLANNED, _A.BIND),
        # The message is an echo: an earlier epoch has emitted it, and is committed.
        (_S.PLANNED, _E.BEGIN): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.PLANNED, _E.COMMIT): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.PLANNED, _E.LOSE): (_S.PLANNED, _A.UNBIND),
        # The epoch never emits an abandoned message. If the message is redelivered later after all, it counts as new;
        # otherwise it would be lost although it was only late.
        (_S.PLANNED, _E.ABANDON): (_S.UNSEEN, _A.FORGET),
        # Rule 4: a dropped duplicate is acknowledged, or it would fill the prefetch window.
        (_S.COMMITTED, _E.DELIVER): (_S.COMMITTED, _A.ACKNOWLEDGE),
        (_S.COMMITTED, _E.LOSE): (_S.COMMITTED, _A.LEAVE),
    }
)


def step(state: State, event: Event) -> tuple[State, Action]:
    """Return the state that a message has after `event`, and the action to perform.

    Raises:
        IllegalEventError: the table has no row for this state and event.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalEventError(state, event) from None
