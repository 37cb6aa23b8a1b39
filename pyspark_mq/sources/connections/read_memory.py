"""Memory that a socket is read into. What was read stays where it is, and blocks are made of it there.

Batches refer to the memory they came in. So it is written to again only where nobody does; otherwise another one
follows, and what is not complete yet moves to it.
"""

from __future__ import annotations

import sys

import numpy as np

__all__ = ["ReadMemory"]

#: An idle connection keeps the least. As much as a block takes is enough for all reads between two of them.
_BYTES_MIN, _BYTES_MAX = 256 << 10, 4 << 20
#: Less room is not read into.
_ROOM_MIN = 64 << 10
#: References to a view that only this class has: its attribute, and the argument of `getrefcount`.
_OWN = 2


class ReadMemory:
    """Memory of one connection, for one thread.

    Attributes:
        view: the memory now. Whoever refers to it, and not to a part of it, keeps it from being written to again.
        begin, end: where the bytes that were received and not taken are.
    """

    def __init__(self) -> None:
        self.view = memoryview(b"")
        self.begin = self.end = 0

    def room(self, needed: int = 0) -> memoryview:
        """Return where to read to.

        Args:
            needed: the bytes that there have to be together with those that were not taken.
        """
        left = self.end - self.begin
        if self.begin and sys.getrefcount(self.view) == _OWN:
            # Much has come since: it will again. In parts of its own what is left may be moved.
            self._continue(self.view if self.end > _BYTES_MIN or len(self.view) == _BYTES_MIN else _made(_BYTES_MIN))
        if len(self.view) < self.begin + max(needed, left + _ROOM_MIN):
            self._continue(_made(max(_BYTES_MAX if self.begin else _BYTES_MIN, needed, 2 * left)))
        return self.view[self.end :]

    def _continue(self, view: memoryview) -> None:
        """Go on in that memory."""
        left = self.end - self.begin
        view[:left] = self.view[self.begin : self.end]
        self.view, self.begin, self.end = view, 0, left


def _made(size: int) -> memoryview:
    # Pages that are not written to take no memory.
    return np.empty(size, np.uint8).data
