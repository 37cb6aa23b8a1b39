"""The counters of a query, as its progress shows them. By rule 8, each dropped or lost message is counted.

``make docs`` writes the table of docs/options.md#counters from the docstring of :class:`Counters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

__all__ = ["ALARMS", "GAUGES", "SAID", "Counters"]


def _count(*, done: bool = False, alarm: bool = False, said: str = "") -> int:
    """Return a counter, and record what it means.

    Args:
        done: whether this counter counts deliveries that need no more work. A bounded run (trigger `availableNow`) no
            longer waits for these deliveries.
        alarm: whether the listener warns when the counter rises.
        said: the words for the counter in the line that the listener logs; empty if the counter is not in the line.
    """
    found: int = field(default=0, metadata={"done": done, "alarm": alarm, "said": said})
    return found


def _gauge() -> int:
    """Return a gauge: a current value, which may also fall."""
    found: int = field(default=0, metadata={"gauge": True})
    return found


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the source's process started, and five gauges with current values.

    A delivery is counted by at most one of the counters that are declared with `done=True`, and only once.

    Attributes:
        received: deliveries received, including redeliveries, but not rejected messages.
        redelivered: deliveries that the broker flagged as redelivered.
        duplicates_dropped: redeliveries and producers' duplicates that were dropped.
        reused_ids: dropped duplicates that were not flagged as redelivered: a producer reused an ID.
        rebound: planned messages that were redelivered to a replay.
        planned: messages that this process has assigned to epochs.
        settled: deliveries whose acknowledgement was confirmed, even if `settleGrace` has not passed yet.
        returned: buffered deliveries returned to the broker when a session ended.
        ambiguous: deliveries without an ID that were emitted although they may be duplicates.
        nameless: deliveries without an ID, emitted because of `onMissingMessageId=row`.
        rejected: messages rejected because they have no ID or cannot be decoded.
        reconnects: sessions that ended.
        replays: epochs that an earlier process planned and that Spark requested again.
        lost: planned messages that their epoch was emitted without (`failOnDataLoss=false`, or a release).
        forgotten: IDs forgotten because more than two million messages were left.
        unacked: now: deliveries not acknowledged yet, because their epoch is not committed.
        buffered: now: messages received but not planned.
        carried: now: messages that are planned, or acknowledged but not settled.
        remembered: now: remembered IDs of committed messages.
        backlog: now: messages that wait in the queue; null if the broker does not report them.
    """

    received: int = _count()
    redelivered: int = _count()
    duplicates_dropped: int = _count(done=True, said="duplicates dropped")
    reused_ids: int = _count()
    rebound: int = _count(done=True)
    planned: int = _count(done=True)
    settled: int = _count()
    returned: int = _count()
    ambiguous: int = _count()
    nameless: int = _count()
    rejected: int = _count(done=True, alarm=True, said="rejected")
    reconnects: int = _count(said="reconnects")
    replays: int = _count(said="replays")
    lost: int = _count(alarm=True, said="lost")
    forgotten: int = _count()
    unacked: int = _gauge()
    buffered: int = _gauge()
    carried: int = _gauge()
    remembered: int = _gauge()
    backlog: int | None = _gauge()

    def __add__(self, other: Counters) -> Counters:
        """Add up the counters of two queues. Only `replays` is not added: both queues count the same replays."""
        both = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in _COUNTS}
        known = self.backlog is not None and other.backlog is not None
        backlog = self.backlog + other.backlog if known else None  # type: ignore[operator]
        return Counters(**{**both, "replays": max(self.replays, other.replays), "backlog": backlog})

    @property
    def done(self) -> int:
        """Number of deliveries that need no more work, so that a bounded run need not wait for them."""
        return sum(_done(self))

    def totals(self) -> Counters:
        """Return these counters with all gauges set to 0, for a queue that is no longer read."""
        return replace(self, **dict.fromkeys(GAUGES, 0))

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Counters:
        """Create the counters from the result of :meth:`report`. A counter that is missing in the result is 0."""
        found = {one.name: report[name] for one in fields(cls) if (name := _documented(one.name)) in report}
        return cls(**found)

    def report(self) -> dict[str, int | None]:
        """Return the value of each counter, by the name that the documentation uses."""
        return {_documented(name): value for name, value in asdict(self).items()}


def _documented(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _names(kind: str) -> tuple[str, ...]:
    return tuple(field.name for field in fields(Counters) if field.metadata.get(kind))


_COUNTS = [field for field in fields(Counters) if field.name != "backlog"]
_done = attrgetter(*_names("done"))
#: Names of the counters that are gauges.
GAUGES = _names("gauge")
#: Documented names of the counters that make the listener warn when they rise.
ALARMS = tuple(map(_documented, _names("alarm")))
#: Documented name -> the words for the counter in the listener's line.
SAID = {_documented(field.name): field.metadata["said"] for field in fields(Counters) if field.metadata.get("said")}
