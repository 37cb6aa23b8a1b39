"""The counters of a query, as its progress shows them. By rule 8, each dropped or lost message is counted.

``make docs`` writes the table of docs/options.md#counters from the docstring of :class:`Counters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

__all__ = ["GAUGES", "Counters"]

#: Names of the counters that are gauges: current values, which may also fall.
GAUGES = ("unacked", "buffered", "carried", "remembered", "backlog")


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the source's process started, and five gauges with current values.

    Attributes:
        received: deliveries received. First deliveries and redeliveries count, but rejected messages do not.
        redelivered: deliveries that the broker flagged as redelivered.
        duplicates_dropped: redeliveries and producers' duplicates that were dropped: their ID or content was known.
        reused_ids: dropped duplicates that were not flagged as redelivered, which means that a producer reused an ID.
        rebound: planned messages for which a replay waited, and which the broker then redelivered.
        planned: messages that this process has assigned to epochs.
        settled: deliveries whose acknowledgement was confirmed, even if `settleGrace` has not passed yet.
        returned: buffered deliveries returned to the broker when a session ended.
        ambiguous: deliveries without an ID that were emitted although they may be redeliveries of emitted messages.
        nameless: deliveries without an ID that were emitted because of `onMissingMessageId=row`.
        rejected: messages rejected because they have no ID or cannot be decoded.
        reconnects: sessions that ended.
        replays: epochs that an earlier process planned and that Spark requested again.
        lost: planned messages without which an epoch was emitted (`failOnDataLoss=false`, or a release).
        forgotten: IDs forgotten, as more than two million acknowledgements were cut off; messages may be redelivered.
        unacked: now: deliveries for which no acknowledgement is due yet.
        buffered: now: messages received but not planned.
        carried: now: messages that are planned, or acknowledged but not settled; a new session may receive them again.
        remembered: now: remembered IDs of committed messages, whether settled or not.
        backlog: now: messages that wait in the queue, as the broker last reported; null if it does not report them.
    """

    received: int = 0
    redelivered: int = 0
    duplicates_dropped: int = 0
    reused_ids: int = 0
    rebound: int = 0
    planned: int = 0
    settled: int = 0
    returned: int = 0
    ambiguous: int = 0
    nameless: int = 0
    rejected: int = 0
    reconnects: int = 0
    replays: int = 0
    lost: int = 0
    forgotten: int = 0
    unacked: int = 0
    buffered: int = 0
    carried: int = 0
    remembered: int = 0
    backlog: int | None = 0

    def __add__(self, other: Counters) -> Counters:
        """Add up the counters of two queues. Only `replays` is not added: both queues count the same replays."""
        both = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in _COUNTS}
        known = self.backlog is not None and other.backlog is not None
        backlog = self.backlog + other.backlog if known else None  # type: ignore[operator]
        return Counters(**{**both, "replays": max(self.replays, other.replays), "backlog": backlog})

    def totals(self) -> Counters:
        """Return these counters with all gauges set to 0, for a queue that is no longer read."""
        return replace(self, **dict.fromkeys(GAUGES, 0))

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Counters:
        """Parse the result of :meth:`report`. A counter that is missing there is 0."""
        found = {one.name: report[name] for one in fields(cls) if (name := _documented(one.name)) in report}
        return cls(**found)

    def report(self) -> dict[str, int | None]:
        """Return documented name of each counter -> its value."""
        return {_documented(name): value for name, value in asdict(self).items()}


_COUNTS = [field for field in fields(Counters) if field.name != "backlog"]


def _documented(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
