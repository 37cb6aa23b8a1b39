"""What a trigger costs Spark beyond its rows. Pure.

Planning, two logs and the start of tasks have a price that is the same for one row and for fifty thousand: 0.2-0.3 s
on a machine with cores to spare, seconds on one without, and whatever the sink takes for a commit. It is learnt from
the triggers before: a line through rows and durations, of which older ones count ever less.
"""

from __future__ import annotations

__all__ = ["TriggerCost"]

#: Before anything is known: on a machine with cores to spare.
_FIXED_FIRST_S = 0.25
#: What a trigger counts for when the next one is observed.
_KEPT = 0.8
#: Rows have to differ by so much of their mean (standard deviation) to tell something about the price of a row.
_SPREAD = 0.1


class TriggerCost:
    """Learns it. The first trigger says nothing: it is the JVM that is slow then."""

    def __init__(self) -> None:
        self._seen = 0
        self._weight = self._rows = self._took = self._rows_rows = self._rows_took = 0.0
        self._row_s = 0.0

    def observe(self, rows: int, took_s: float) -> None:
        """A trigger has run.

        Args:
            rows: of its epoch.
            took_s: from the plan of its epoch to when Spark asked for the next one.
        """
        self._seen += 1
        if self._seen == 1:
            return
        self._weight = self._weight * _KEPT + 1
        self._rows = self._rows * _KEPT + rows
        self._took = self._took * _KEPT + took_s
        self._rows_rows = self._rows_rows * _KEPT + rows * rows
        self._rows_took = self._rows_took * _KEPT + rows * took_s
        mean = self._rows / self._weight
        variance = self._rows_rows / self._weight - mean * mean
        if variance > (_SPREAD * mean) ** 2:
            self._row_s = (self._rows_took / self._weight - mean * self._took / self._weight) / variance

    @property
    def fixed_s(self) -> float:
        """The price of a trigger without rows, in seconds; from nothing to what all of it took."""
        if not self._weight:
            return _FIXED_FIRST_S
        mean_s, mean = self._took / self._weight, self._rows / self._weight
        return max(0.0, mean_s - max(0.0, self._row_s) * mean)
