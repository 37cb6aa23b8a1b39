"""Measures how long the steps of an epoch take, for the query's progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pyspark_mq.sources.runtime import Runtime

__all__ = ["Timings"]

#: Maximum number of committed epochs for which the time of the confirmation is measured at once.
_EPOCHS_KEPT = 16


class Timings:
    """The times of the last planned epoch, and of the last epoch whose acknowledgements the broker has confirmed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._asked_s = self._gathered_s = 0.0
        self._asked_at_ms = 0
        self._epoch: dict[str, int] | None = None
        self._committed: deque[tuple[int, float, Sequence[Callable[[], bool]]]] = deque(maxlen=_EPOCHS_KEPT)
        self._confirmed: dict[str, int] | None = None

    def asked(self) -> None:
        """Record that Spark asks for an epoch now."""
        self._asked_s = self._gathered_s = self._runtime.monotonic_s()
        self._asked_at_ms = self._runtime.utc_us() // 1000

    def gathered(self) -> None:
        """Record that the epoch's messages have arrived. Also check which committed epochs are confirmed by now."""
        self._gathered_s = self._runtime.monotonic_s()
        while self._committed and not any(waits() for waits in self._committed[0][2]):
            epoch, since_s, _ = self._committed.popleft()
            self._confirmed = {
                "epoch": epoch,
                "confirmedAtMs": self._runtime.utc_us() // 1000,
                "confirmMs": _ms(self._runtime.monotonic_s() - since_s),
            }

    def planned(self, epoch: int, messages: int, size: int) -> None:
        """Record that an epoch is planned, with the number of its messages and their size in bytes."""
        self._epoch = {
            "epoch": epoch,
            "messages": messages,
            "bytes": size,
            "askedAtMs": self._asked_at_ms,
            "receiveMs": _ms(self._gathered_s - self._asked_s),
            "planMs": _ms(self._runtime.monotonic_s() - self._gathered_s),
        }

    def committed(self, epoch: int, under_way: Sequence[Callable[[], bool]]) -> None:
        """Record that Spark has committed an epoch, and that acknowledgements for it were sent.

        Args:
            epoch: number of the epoch.
            under_way: for each queue, a function that returns True until the broker has confirmed the queue's
                acknowledgements.
        """
        self._committed.append((epoch, self._runtime.monotonic_s(), under_way))

    def report(self) -> dict[str, dict[str, int] | None]:
        """Return the times of the last planned and the last confirmed epoch by their documented names; None if none."""
        return {"lastPlanned": self._epoch, "lastConfirmed": self._confirmed}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
