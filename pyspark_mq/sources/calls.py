"""Spark's calls: whether a call is legal now, and what it does. Two coupled tables, call x state. Pure.

Two rules for this file: only ``SHOWING`` and ``EPOCHS`` decide what a call does, and nothing here knows about queues,
files or time. :class:`.EpochSource` does what the tables say, and ``tests/unit/test_call_mutations.py`` checks that
each change of a row is noticed.

Theory
------
Spark never reports what it has done; its calls prove it. Two things are known at any moment, and each has a table.

*The committed offset.* A process starts without knowing what is committed. A call with a position shows the committed
offset, and the source then learns what a former process left. A bounded run keeps to the queues it began with.
``SHOWING`` says what a call does first.

*The place of the call's epoch.* For PAYLOAD and COMMIT, the call's epoch is the epoch at the call's position. For the
other calls, it is the last epoch here. ``EPOCHS`` says what happens to that epoch. If the epoch is elsewhere, PAYLOAD
is a replay and COMMIT does nothing: a process acknowledges only epochs it has run (rule 16). Spark does not run an
epoch if its optimizer removes the source from the plan, as for `limit(0)`.

LATEST commits its position first, because Spark writes the commit log before it asks for the next offset. ``EPOCHS``
has three kinds of LATEST, depending on how its position relates to the last epoch here.

An epoch is planned, begun and committed before the next is planned, so LATEST meets no epoch that is planned or begun.

Rules are cited by their number in docs/how-it-works.md#the-rules.
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
    """A call of Spark."""

    BOUND = "bound"  #: `prepareForTriggerAvailableNow`
    LATEST = "latest"  #: `latestOffset(start)`; in ``EPOCHS``, a call that continues from the last epoch here
    BEHIND = "latest, from an earlier epoch"
    BEYOND = "latest, from a later epoch"
    PAYLOAD = "payload"  #: `partitions(start, end)`
    COMMIT = "commit"  #: `commit(end)`


class Committed(Enum):
    """Knowledge of what is committed."""

    UNKNOWN = "unknown"  #: the committed offset is unknown
    BOUNDED = "bounded"  #: the committed offset is unknown, and the run is bounded
    KNOWN = "known"
    CLOSED = "closed"  #: the committed offset is known, and the run is bounded


class First(Flag):
    """Steps that a call takes before anything else."""

    NOTHING = 0
    FIND = auto()  #: look for queues
    LEARN = auto()  #: learn which messages a former process had committed (rule 5)


class EpochPlace(Enum):
    """The place of an epoch, as seen from this process."""

    ELSEWHERE = "elsewhere"  #: the epoch is a former process's, or acknowledged, or does not exist
    PLANNED = "planned"  #: the epoch is planned here, but Spark has not asked for its payload
    BEGUN = "begun"  #: Spark has asked for the payload of the epoch, and may ask again


class Act(Enum):
    """What to do with the epoch that a call is about."""

    NOTHING = "nothing"  #: repeat the previous answer, because an epoch stays as it was written
    PLAN = "plan"  #: plan the next epoch, if there are messages for it
    REPLAY = "replay"  #: begin the epoch as soon as its messages are here
    BEGIN = "begin"  #: keep the rows that the epoch emits until the epoch is committed
    ACKNOWLEDGE = "acknowledge"  #: acknowledge the epoch, and all epochs before it
    REFUSE = "refuse"  #: fail the query, because Spark has ended an epoch whose messages it did not ask for


_BOTH = First.FIND | First.LEARN

#: (call, knowledge of what is committed) -> the first steps, and the knowledge after them.
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

#: (call, place of the call's epoch) -> the act. Pairs that are left out cannot occur.
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
        # Committed but never begun: this process has emitted none of its rows (rule 16).
        (Call.COMMIT, EpochPlace.PLANNED): Act.REFUSE,
        (Call.COMMIT, EpochPlace.BEGUN): Act.ACKNOWLEDGE,
    }
)


class IllegalCallError(InternalError):
    """The table has no entry for this call with its epoch in this place."""


def latest_at(start: int, last: int) -> Call:
    """Return the kind of a LATEST call that continues from epoch `start`, while `last` is the last epoch here."""
    return Call.LATEST if start == last else Call.BEHIND if start < last else Call.BEYOND


def show(call: Call, shown: Committed) -> tuple[First, Committed]:
    """Return the first steps of a call, and what is known about the committed offset after these steps."""
    return SHOWING[call, shown]


def step(call: Call, epoch: EpochPlace) -> Act:
    """Return what a call does with its epoch.

    Raises:
        IllegalCallError: the table has no such pair.
    """
    try:
        return EPOCHS[call, epoch]
    except KeyError:
        raise IllegalCallError(f"Spark cannot call '{call.value}' for an epoch that is '{epoch.value}'") from None
