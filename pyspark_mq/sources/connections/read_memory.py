"""Receive memory of a socket, from which blocks are made without a copy.

Batches refer to the memory in which their bytes arrived, so that memory is reused only if nothing refers to it.
Otherwise new memory is allocated, and the bytes of incomplete deliveries move there.
"""

from __future__ import annotations

import sys

import numpy as np

__all__ = ["ReadMemory"]

#: Memory sizes. An idle connection keeps the smallest; the largest is the size of a block, enough for all reads between
#: two blocks.
_BYTES_MIN, _BYTES_MAX = 256 << 10, 4 << 20
#: Smallest room to read into.
_ROOM_MIN = 64 << 10
#: Number of references to a view that only this class holds: the attribute, and the argument of `getrefcount`.
_OWN = 2


class ReadMemory:
    """Memory of one connection, for one thread.

    Attributes:
        view: the current memory. A reference to the whole view prevents its reuse.
        begin, end: bounds of the bytes received and not yet taken.
    """

    def __init__(self) -> None:
        self.view = memoryview(b"")
        self.begin = self.end = 0

    def room(self, needed: int = 0) -> memoryview:
        """Return room to read into.

        Args:
            needed: number of bytes that must fit, including bytes received and not yet taken.
        """
        left = self.end - self.begin
        if self.begin and sys.getrefcount(self.view) == _OWN:
            # Nothing refers to the memory: reuse it if much has arrived or it is small, otherwise take a small one.
            self._continue(self.view if self.end > _BYTES_MIN or len(self.view) == _BYTES_MIN else _made(_BYTES_MIN))
        if len(self.view) < self.begin + max(needed, left + _ROOM_MIN):
            self._continue(_made(max(_BYTES_MAX if self.begin else _BYTES_MIN, needed, 2 * left)))
        return self.view[self.end :]

    def _continue(self, view: memoryview) -> None:
        """Move the bytes that are not taken yet to the start of `view`, and continue there. The places may overlap."""
        left = self.end - self.begin
        view[:left] = self.view[self.begin : self.end]
        self.view, self.begin, self.end = view, 0, left


def _made(size: int) -> memoryview:
    # Untouched pages take no memory.
    return np.empty(size, np.uint8).data
