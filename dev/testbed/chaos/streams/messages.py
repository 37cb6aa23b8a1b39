"""Numbered messages: how a producer writes them, and how a checker reads many at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["BODY_BYTES", "ENTRY_BYTES", "encoded", "numbers_of"]

_DIGITS = 12
BODY_BYTES = 100
_FILLING = b"." * (BODY_BYTES - _DIGITS)
#: A data section of AMQP 1.0 with a binary of one byte's length.
_HEAD = b"\x00\x53\x75\xa0" + bytes([BODY_BYTES])
#: In a chunk each has its size before it.
ENTRY_BYTES = 4 + len(_HEAD) + BODY_BYTES
_POWERS = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)


def encoded(number: int) -> bytes:
    """The message of a number."""
    return _HEAD + b"%012d" % number + _FILLING


def numbers_of(data: bytes | memoryview, stride: int) -> npt.NDArray[np.int64]:
    """The numbers of bodies that lie behind each other, each at the end of so many bytes.

    Raises:
        ValueError: they are no such bodies.
    """
    rows = np.frombuffer(data, np.uint8).reshape(-1, stride)[:, stride - BODY_BYTES :]
    digits = rows[:, :_DIGITS].astype(np.int64) - ord("0")
    if ((digits < 0) | (digits > 9)).any() or (rows[:, _DIGITS:] != ord(".")).any():
        raise ValueError("bytes that no producer of a chaos test has written")
    numbers: npt.NDArray[np.int64] = digits @ _POWERS
    return numbers
