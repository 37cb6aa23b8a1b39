"""One queue's part in a replay."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_mq.dedup import Key
from pyspark_mq.sources.queues.reader import QueueReader

__all__ = ["Awaited"]


class Awaited:
    """Planned messages of one epoch that a replay waits for.

    Args:
        keys: IDs in order.
        gap_s: seconds without a message after which the window is doubled.
    """

    def __init__(self, queue: QueueReader, epoch: int, keys: Sequence[Key], gap_s: float) -> None:
        self.queue = queue
        self._epoch = epoch
        self._gap_s = gap_s
        self._began_s = queue.view.connected_s
        queue.begin_replay(epoch, keys)

    @property
    def planned(self) -> int:
        """Number of messages of the epoch in this queue."""
        return len(self.queue.planned(self._epoch))

    @property
    def missing(self) -> int:
        """Number of messages that have not been redelivered."""
        return self.queue.count_missing(self._epoch)

    def missing_ids(self) -> list[Key]:
        return self.queue.missing(self._epoch)

    @property
    def waited_s(self) -> float:
        """Connected seconds since the replay began."""
        return self.queue.view.connected_s - self._began_s

    def ask_for_more(self, now_s: float) -> None:
        """Widen windows that are full of other messages, after a while without a delivery."""
        queue = self.queue
        if self.waited_s <= queue.view.delay_s:
            return  # a wider window does not speed up delayed redelivery
        if queue.view.late or now_s - queue.last_activity_s < self._gap_s:
            return
        if queue.ask_for_more(self.missing):
            self._gap_s *= 2

    def abandon(self) -> None:
        self.queue.abandon(self._epoch)
