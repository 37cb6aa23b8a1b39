"""Headers of a STOMP frame. Pure.

A *block* is the header lines of a frame as received, each between two line feeds:
``b"\\nack:1\\nsubscription:0\\n"``, without the command and without carriage returns at the ends of lines.

The first entry of a repeated header counts (STOMP 1.2, section "Repeated Header Entries"). For one header that the
dialect may name, the last entry counts (:attr:`~pyspark_mq.brokers.base.StompDialect.last_header`). A line without a
colon is a header with an empty value. Bytes that are not UTF-8 become reversible surrogates, so different IDs stay
different. Undefined escapes are kept: an error would make the message unreadable forever.
"""

from __future__ import annotations

import re

__all__ = ["UnreadableHeaders", "as_text", "parse", "value"]

_ESCAPE = re.compile(r"\\[rnc\\]")
_MEANINGS = {"\\r": "\r", "\\n": "\n", "\\c": ":", "\\\\": "\\"}


class UnreadableHeaders(bytes):
    """The header block of a message whose frame ended in the wrong place.

    Attributes:
        error: why the message is unreadable.
    """

    error = "a text with a NUL in it, which STOMP cannot carry"


def parse(block: bytes, last: str = "", *, escaped: bool = True) -> dict[str, str]:
    """Return all headers.

    Args:
        block: as in the module's docstring.
        last: the header whose last entry counts; empty for none.
        escaped: whether headers are escaped, as in all frames except CONNECTED (section "Value Encoding").
    """
    text = block.decode("utf-8", "surrogateescape")
    lines = text[1:-1].split("\n") if len(text) > 1 else []
    lines.reverse()
    headers: dict[str, str] = {}
    for line in lines:
        name, _, found = line.partition(":")
        headers[name] = found
    if last and len(headers) < len(lines):
        entry = next((line for line in lines if line.startswith(f"{last}:")), "")
        if entry:
            headers[last] = entry[len(last) + 1 :]
    if escaped and "\\" in text:
        return {_unescape(name): _unescape(found) for name, found in headers.items()}
    return headers


def value(block: bytes, name: str, last: str = "") -> bytes | None:
    """Return one header as written, including escapes, or None if the header is missing.

    Args:
        block: as in the module's docstring.
        name: a name without characters that are escaped.
        last: as for :func:`parse`.
    """
    # Parsing all headers would take thirty times the memory of the block.
    entry, bare = f"\n{name}:".encode(), f"\n{name}\n".encode()
    begin, alone = block.rfind(entry) if name == last else block.find(entry), block.find(bare)
    if begin < 0 or (name != last and 0 <= alone < begin):
        return b"" if alone >= 0 else None
    begin += len(entry)
    return block[begin : block.find(b"\n", begin)]


def as_text(value: str | None) -> str | None:
    """Return a header's value as text for a string column. Bytes that are not UTF-8 become escapes."""
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _unescape(text: str) -> str:
    """Unescape a name or a value."""
    return _ESCAPE.sub(lambda found: _MEANINGS[found[0]], text) if "\\" in text else text
