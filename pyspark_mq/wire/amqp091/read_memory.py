"""The memory into which a socket is read. Batches of deliveries refer to it, so their bytes are not copied.

The memory is used again only if no batch refers to it any more. Otherwise new memory is allocated, and the bytes of
incomplete deliveries are copied there.
"""

from __future__ import annotations

import sys

import numpy as np

__all__ = ["ReadMemory"]

#: Smallest and usual largest size of the memory. An idle connection has the smallest one. The largest one is the
#: maximum size of a block, so it is enough for all reads between two blocks.
_BYTES_MIN, _BYTES_MAX = 256 << 10, 4 << 20
#: Minimum number of free bytes for a read.
_ROOM_MIN = 64 << 10
#: Value of `sys.getrefcount` for a view to which only this class refers: the attribute, and the function's argument.
_OWN = 2


class ReadMemory:
    """The memory into which one connection is read, by one thread.

    Attributes:
        view: the current memory. As long as other code refers to this object, the memory is not used again.
        begin, end: bounds of the bytes in it that were received, and that the caller has not processed yet.
    """

    def __init__(self) -> None:
        self.view = memoryview(b"")
        self.begin = self.end = 0

    def room(self, needed: int = 0) -> memoryview:
        """Return free memory to read into.

        Args:
            needed: number of bytes that must fit into the memory, including those that are not processed yet.
        """
        left = self.end - self.begin
        if self.begin and sys.getrefcount(self.view) == _OWN:
            # No batch refers to the memory. Use it again if much has arrived in it, or if it has the smallest size.
            # Otherwise take memory of the smallest size.
            self._continue(self.view if self.end > _BYTES_MIN or len(self.view) == _BYTES_MIN else _made(_BYTES_MIN))
        if len(self.view) < self.begin + max(needed, left + _ROOM_MIN):
            self._continue(_made(max(_BYTES_MAX if self.begin else _BYTES_MIN, needed, 2 * left)))
        return self.view[self.end :]

    def _continue(self, view: memoryview) -> None:
        """Copy the bytes that are not processed yet to the start of `view`, and use this memory from now on."""
        left = self.end - self.begin
        view[:left] = self.view[self.begin : self.end]
        self.view, self.begin, self.end = view, 0, left


def _made(size: int) -> memoryview:
    # Large memory is not expensive, because pages that are never written take no memory.
    return np.empty(size, np.uint8).data
