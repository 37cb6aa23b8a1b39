"""The counters of a query, as its progress shows them (rule 8: nothing is dropped without a number).

``make docs`` writes the table of docs/options.md#counters from the docstring of :class:`Counters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

__all__ = ["GAUGES", "Counters"]

#: Gauges, which may fall.
GAUGES = ("unacked", "buffered", "carried", "remembered", "backlog")


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since this process started, and five current gauges.

    Attributes:
        received: deliveries received. First deliveries and redeliveries count, but rejected messages do not.
        redelivered: deliveries that the broker flagged as redelivered.
        duplicates_dropped: redeliveries and producers' duplicates that were dropped, as their ID or content was known.
        reused_ids: dropped duplicates that were not flagged as redelivered, which means that a producer reused an ID.
        rebound: planned messages that a replay waited for and that were redelivered with their payload.
        planned: messages cut into epochs by this process.
        settled: deliveries whose acknowledgement was confirmed, even if `settleGrace` has not passed yet.
        returned: buffered deliveries returned to the broker when a session ended.
        ambiguous: deliveries without an ID that were emitted although they may be redeliveries of emitted messages.
        nameless: deliveries without an ID that were emitted because of `onMissingMessageId=row`.
        rejected: messages rejected because they have no ID or cannot be decoded.
        reconnects: sessions that ended.
        replays: epochs that an earlier process planned and that Spark requested again.
        lost: planned messages that an epoch continued without (`failOnDataLoss=false`, or a release).
        forgotten: IDs forgotten because more than two million were left; their messages may be redelivered.
        unacked: now: deliveries for which no acknowledgement is due yet.
        buffered: now: messages received but not planned.
        carried: now: planned messages, and acknowledged but unsettled messages; a new session may receive them again.
        remembered: now: remembered IDs of committed messages, whether settled or not.
        backlog: now: messages ready in the queue, as the broker last reported; null if the broker reports no number.
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
        """Add up the counters of two queues. Both count the same replays, so the larger number is used."""
        both = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in _COUNTS}
        known = self.backlog is not None and other.backlog is not None
        backlog = self.backlog + other.backlog if known else None  # type: ignore[operator]
        return Counters(**{**both, "replays": max(self.replays, other.replays), "backlog": backlog})

    def totals(self) -> Counters:
        """Return the counters of a queue that is gone: totals stay, gauges are 0."""
        return replace(self, **dict.fromkeys(GAUGES, 0))

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Counters:
        """Parse reported counters. A counter that is missing from the report is 0."""
        found = {one.name: report[name] for one in fields(cls) if (name := _documented(one.name)) in report}
        return cls(**found)

    def report(self) -> dict[str, int | None]:
        """Return the counters under their documented names."""
        return {_documented(name): value for name, value in asdict(self).items()}


_COUNTS = [field for field in fields(Counters) if field.name != "backlog"]


def _documented(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
