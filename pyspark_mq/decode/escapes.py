"""Counts bytes of a message that become four or more characters of text, called *escapes* here.

In JSON a control character becomes six characters (RFC 8259, section 7). A byte that is not UTF-8 becomes four
characters (`\\xff`), or five in JSON. An untrusted sender may send a message that has only such bytes, and whose text
is therefore up to six times as large as the message.
"""

from __future__ import annotations

__all__ = ["ESCAPES_MAX", "TOO_MANY_ESCAPES", "escapes", "escapes_too_much"]

#: Maximum number of bytes in a message's values that become escapes.
ESCAPES_MAX = 1_000_000
TOO_MANY_ESCAPES = f"the values have more than {ESCAPES_MAX:,} control characters and bytes that are not UTF-8"
#: Control characters that JSON writes as six characters. The others have short escapes.
_CONTROLS = bytes({*range(0x20)} - {*b"\b\t\n\f\r"})
_BEYOND_ASCII = bytes(range(0x80, 0x100))


def escapes(value: bytes) -> int:
    """Return how many bytes of a value become four or more characters, such as ``\\xff``, in a text or in JSON.

    If the value is not UTF-8, all bytes beyond ASCII count.
    """
    found = len(value) - len(value.translate(None, _CONTROLS))
    if not value.isascii():
        try:
            value.decode()
        except UnicodeDecodeError:
            found += len(value) - len(value.translate(None, _BEYOND_ASCII))
    return found


def escapes_too_much(value: bytes) -> bool:
    """Whether more than :data:`ESCAPES_MAX` bytes of a value count in :func:`escapes`."""
    return len(value) > ESCAPES_MAX and escapes(value) > ESCAPES_MAX
