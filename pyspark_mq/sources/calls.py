"""Spark's calls to the source: two tables that say which calls are possible in which state, and what they do.

Two rules apply to this file. Only ``SHOWING`` and ``EPOCHS`` decide what a call does. And the file does not know about
queues, files or time. :class:`.EpochSource` does what the tables say. ``tests/unit/test_call_mutations.py`` checks that
a test notices each change of a row.

Theory
------
Spark never reports what it has done, but its calls prove it. The source keeps track of two things, and there is a table
for each of them.

*The committed offset.* When a process starts, it does not know which offset is committed. The first call with a
position as its argument shows the committed offset. The source then learns which messages a former process had
committed but not settled. A bounded run reads only the queues that exist when it begins. ``SHOWING`` has the steps that
a call takes first.

*The place of the call's epoch.* A PAYLOAD or COMMIT call concerns the epoch that ends at the call's position. Any other
call concerns the last epoch that this process knows. ``EPOCHS`` says what a call does with its epoch. If another
process has planned the epoch, PAYLOAD is a replay, and COMMIT does nothing: a process acknowledges only epochs that it
has seen Spark run (rule 16). (Spark does not run an epoch if its optimizer removes the source from the plan, for
example because of `limit(0)`.)

A LATEST call also proves that its start is committed, because Spark writes the commit log before it asks for the next
offset. So the source first treats it as a COMMIT call. ``EPOCHS`` has three kinds of LATEST calls, depending on whether
the start is before, at or after the last epoch that this process knows.

An epoch is planned, begun and committed before the next one is planned. So at a LATEST call that continues from the
last epoch, no epoch is planned or begun.

"Rule 16" means the rule with this number in docs/design.md#the-rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, Flag, auto
from types import MappingProxyType

from pyspark_mq.errors import InternalError

__all__ = [
    "EPOCHS",
    "SHOWING",
    "Act",
    "Call",
    "Committed",
    "EpochPlace",
    "First",
    "IllegalCallError",
    "latest_at",
    "show",
    "step",
]


class Call(Enum):
    """A call that Spark makes to the source."""

    BOUND = "bound"  #: `prepareForTriggerAvailableNow`
    LATEST = "latest"  #: `latestOffset(start)`; in ``EPOCHS``, a call that continues from the last known epoch
    BEHIND = "latest, from an earlier epoch"
    BEYOND = "latest, from a later epoch"
    PAYLOAD = "payload"  #: `partitions(start, end)`
    COMMIT = "commit"  #: `commit(end)`


class Committed(Enum):
    """A state of this process: whether it knows the committed offset, and whether its run is bounded."""

    UNKNOWN = "unknown"  #: the committed offset is unknown
    BOUNDED = "bounded"  #: the committed offset is unknown, and the run is bounded
    KNOWN = "known"
    CLOSED = "closed"  #: the committed offset is known, and the run is bounded


class First(Flag):
    """Steps that the source takes at the beginning of a call."""

    NOTHING = 0
    FIND = auto()  #: find out which queues to read
    LEARN = auto()  #: learn which messages a former process had committed (rule 5)


class EpochPlace(Enum):
    """The progress of an epoch in this process: planned, begun, or neither."""

    ELSEWHERE = "elsewhere"  #: a former process has planned the epoch, or it is acknowledged, or it does not exist
    PLANNED = "planned"  #: this process has planned the epoch, but Spark has not asked for its payload
    BEGUN = "begun"  #: Spark has asked for the payload of the epoch, and may ask again


class Act(Enum):
    """An action of the source on the epoch that a call concerns."""

    NOTHING = "nothing"  #: repeat the previous answer, because an epoch does not change once its file is written
    PLAN = "plan"  #: plan the next epoch, if there are messages for it
    REPLAY = "replay"  #: wait until the epoch's messages are redelivered, then begin the epoch
    BEGIN = "begin"  #: keep the epoch's rows until it is committed, because Spark may ask for them again
    ACKNOWLEDGE = "acknowledge"  #: acknowledge the epoch, and all epochs before it
    REFUSE = "refuse"  #: fail the query, because Spark has ended an epoch whose messages it did not ask for


_BOTH = First.FIND | First.LEARN

#: (call, what is known before it) -> the first steps of the call, and what is known after them.
SHOWING: Mapping[tuple[Call, Committed], tuple[First, Committed]] = MappingProxyType(
    {
        (Call.BOUND, Committed.UNKNOWN): (First.FIND, Committed.BOUNDED),
        (Call.BOUND, Committed.BOUNDED): (First.FIND, Committed.BOUNDED),
        (Call.BOUND, Committed.KNOWN): (First.FIND, Committed.CLOSED),
        (Call.BOUND, Committed.CLOSED): (First.NOTHING, Committed.CLOSED),
        (Call.LATEST, Committed.UNKNOWN): (_BOTH, Committed.KNOWN),
        (Call.LATEST, Committed.BOUNDED): (_BOTH, Committed.CLOSED),
        (Call.LATEST, Committed.KNOWN): (First.FIND, Committed.KNOWN),
        (Call.LATEST, Committed.CLOSED): (First.NOTHING, Committed.CLOSED),
        (Call.PAYLOAD, Committed.UNKNOWN): (_BOTH, Committed.KNOWN),
        (Call.PAYLOAD, Committed.BOUNDED): (_BOTH, Committed.CLOSED),
        (Call.PAYLOAD, Committed.KNOWN): (First.NOTHING, Committed.KNOWN),
        (Call.PAYLOAD, Committed.CLOSED): (First.NOTHING, Committed.CLOSED),
        (Call.COMMIT, Committed.UNKNOWN): (First.LEARN, Committed.KNOWN),
        (Call.COMMIT, Committed.BOUNDED): (First.LEARN, Committed.CLOSED),
        (Call.COMMIT, Committed.KNOWN): (First.NOTHING, Committed.KNOWN),
        (Call.COMMIT, Committed.CLOSED): (First.NOTHING, Committed.CLOSED),
    }
)

#: (call, place of the call's epoch) -> what the source does with the epoch. Missing pairs cannot occur.
EPOCHS: Mapping[tuple[Call, EpochPlace], Act] = MappingProxyType(
    {
        (Call.LATEST, EpochPlace.ELSEWHERE): Act.PLAN,
        (Call.BEHIND, EpochPlace.ELSEWHERE): Act.NOTHING,
        (Call.BEHIND, EpochPlace.PLANNED): Act.NOTHING,
        (Call.BEHIND, EpochPlace.BEGUN): Act.NOTHING,
        (Call.PAYLOAD, EpochPlace.ELSEWHERE): Act.REPLAY,
        (Call.PAYLOAD, EpochPlace.PLANNED): Act.BEGIN,
        (Call.PAYLOAD, EpochPlace.BEGUN): Act.NOTHING,
        (Call.COMMIT, EpochPlace.ELSEWHERE): Act.NOTHING,
        # Spark has committed the epoch without asking for its payload, so none of its messages was emitted (rule 16).
        (Call.COMMIT, EpochPlace.PLANNED): Act.REFUSE,
        (Call.COMMIT, EpochPlace.BEGUN): Act.ACKNOWLEDGE,
    }
)


class IllegalCallError(InternalError):
    """A call that is impossible in the present place of its epoch, because ``EPOCHS`` has no entry for it."""


def latest_at(start: int, last: int) -> Call:
    """Return the kind of a LATEST call.

    Args:
        start: number of the epoch from which the call continues.
        last: number of the last epoch that this process knows.
    """
    return Call.LATEST if start == last else Call.BEHIND if start < last else Call.BEYOND


def show(call: Call, shown: Committed) -> tuple[First, Committed]:
    """Look up the first steps of a call, and what is known about the committed offset after these steps."""
    return SHOWING[call, shown]


def step(call: Call, epoch: EpochPlace) -> Act:
    """Look up what the source does with the epoch that a call concerns.

    Raises:
        IllegalCallError: the table has no entry for this call and place.
    """
    try:
        return EPOCHS[call, epoch]
    except KeyError:
        raise IllegalCallError(f"Spark cannot call '{call.value}' for an epoch that is '{epoch.value}'") from None
