"""Parses the headers of a STOMP frame.

A header *block* is the header lines of a frame as received, without the command and without carriage returns at the
ends of lines. Each line is between two line feeds: ``b"\\nack:1\\nsubscription:0\\n"``.

If a header is repeated, its first entry is used (STOMP 1.2, section "Repeated Header Entries"). The exception is a
header that the broker's dialect may name (:attr:`~pyspark_mq.brokers.base.StompDialect.last_header`), whose last entry
is used. A line without a colon is a header with an empty value. Bytes that are not UTF-8 become surrogate characters,
from which they can be restored, so different IDs stay different. An escape that STOMP does not define is not changed,
because an error would make the message unreadable forever.
"""

from __future__ import annotations

import re

__all__ = ["UnreadableHeaders", "as_text", "parse", "value"]

_ESCAPE = re.compile(r"\\[rnc\\]")
_MEANINGS = {"\\r": "\r", "\\n": "\n", "\\c": ":", "\\\\": "\\"}


class UnreadableHeaders(bytes):
    """The header block of a message that cannot be read, for example because the end of its frame is not certain.

    Attributes:
        error: why the message is unreadable.
    """

    error = "a text with a NUL in it, which STOMP cannot carry"


def parse(block: bytes, last: str = "", *, escaped: bool = True) -> dict[str, str]:
    """Parse the header block of a frame.

    Args:
        block: the header lines, each between two line feeds, without the command.
        last: name of the header whose last entry is used if the header is repeated; empty if there is no such header.
        escaped: whether headers have escapes, as in all frames except CONNECTED (section "Value Encoding").

    Returns:
        the headers by name, without escapes.
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
    """Return the value of one header, with its escapes, or None if the header is missing.

    Args:
        block: the header lines, each between two line feeds, without the command.
        name: the header's name, which must not have characters that are escaped.
        last: name of the header whose last entry is used if the header is repeated; empty if there is no such header.
    """
    # Do not parse all headers, because this would take thirty times the memory of the block.
    entry, bare = f"\n{name}:".encode(), f"\n{name}\n".encode()
    begin, alone = block.rfind(entry) if name == last else block.find(entry), block.find(bare)
    if begin < 0 or (name != last and 0 <= alone < begin):
        return b"" if alone >= 0 else None
    begin += len(entry)
    return block[begin : block.find(b"\n", begin)]


def as_text(value: str | None) -> str | None:
    """Return a header's value as text for a string column.

    Bytes that are not UTF-8 become escapes such as ``\\xff``.
    """
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _unescape(text: str) -> str:
    """Replace the escapes in a header's name or value by the characters that they stand for."""
    return _ESCAPE.sub(lambda found: _MEANINGS[found[0]], text) if "\\" in text else text
