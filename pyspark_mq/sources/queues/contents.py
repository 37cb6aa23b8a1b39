"""Notes that distinguish messages without IDs, for each queue that is read and some that are not any more."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from pyspark_mq.ack import Ledger
from pyspark_mq.ack.copies import Copies
from pyspark_mq.dedup import Key, QueueMemory, is_content

__all__ = ["Contents"]

#: Ordinals of contents begin somewhere: no process before has used one of them.
_ORDINAL_BITS = 60
#: Queues that are not read any more, of which something is kept besides the keys that are remembered.
_UNREAD_MAX = 64


class Contents:
    """The :class:`.Copies` of each queue.

    Args:
        memory: of a queue.
        proves: see :class:`.Broker`.
    """

    def __init__(self, memory: Callable[[str], QueueMemory], *, proves: bool) -> None:
        self._memory = memory
        self._proves = proves
        self._ordinals = count(secrets.randbits(_ORDINAL_BITS))
        self._copies: dict[str, Copies] = {}
        #: Queues that are not read, from the one that went first on.
        self._unread: dict[str, None] = {}

    def read(self, queue: str) -> Copies:
        """Return what distinguishes the messages of a queue that is read from now on."""
        self._unread.pop(queue, None)
        return self._of(queue)

    def end(self, queue: str, ledger: Ledger[Key, Any]) -> None:
        """Take note that a queue is not read any more."""
        copies = self._copies.get(queue)
        if copies is not None and copies.needed(ledger):
            self._keep_unread(queue)
        else:
            self._copies.pop(queue, None)

    def recall(self, queue: str, keys: Sequence[Key], *, never_acknowledged: bool = False) -> None:
        """Take note of what a former process has left open (:meth:`.Copies.recall`), of a queue that is read or not."""
        if any(map(is_content, keys)):
            if queue not in self._copies:
                self._keep_unread(queue)
            self._of(queue).recall(keys, never_acknowledged=never_acknowledged)

    def _of(self, queue: str) -> Copies:
        if queue not in self._copies:
            self._copies[queue] = Copies(self._ordinals, self._memory(queue), proves=self._proves)
        return self._copies[queue]

    def _keep_unread(self, queue: str) -> None:
        self._unread[queue] = None
        if len(self._unread) > _UNREAD_MAX:
            oldest = next(iter(self._unread))
            del self._unread[oldest], self._copies[oldest]
