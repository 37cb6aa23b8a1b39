"""The messages of one queue for which a replay waits."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_mq.dedup import Key
from pyspark_mq.sources.queues.reader import QueueReader

__all__ = ["Awaited"]


class Awaited:
    """The planned messages of one epoch in one queue, for whose redelivery a replay waits.

    Args:
        queue: the reader of the queue.
        epoch: number of the epoch.
        keys: keys of the messages, in planned order.
        gap_s: number of seconds without a message after which the prefetch window is doubled, see :class:`.Timing`.
    """

    def __init__(self, queue: QueueReader, epoch: int, keys: Sequence[Key], gap_s: float) -> None:
        self.queue = queue
        self._epoch = epoch
        self._gap_s = gap_s
        self._began_s = queue.view.connected_s
        queue.begin_replay(epoch, keys)

    @property
    def planned(self) -> int:
        """Number of messages that the epoch planned from this queue."""
        return len(self.queue.planned(self._epoch))

    @property
    def missing(self) -> int:
        """Number of messages that were not redelivered yet."""
        return self.queue.count_missing(self._epoch)

    def missing_ids(self) -> list[Key]:
        return self.queue.missing(self._epoch)

    @property
    def waited_s(self) -> float:
        """Seconds since the replay began during which every connection of the queue was open."""
        return self.queue.view.connected_s - self._began_s

    def ask_for_more(self, now_s: float) -> None:
        """If no message has arrived for a while, widen the prefetch windows that are full of other messages."""
        queue = self.queue
        if self.waited_s <= queue.view.delay_s:
            return  # the broker delays redeliveries, so a wider window would not help
        if queue.view.late or now_s - queue.last_activity_s < self._gap_s:
            return
        if queue.ask_for_more(self.missing):
            self._gap_s *= 2

    def abandon(self) -> None:
        self.queue.abandon(self._epoch)
