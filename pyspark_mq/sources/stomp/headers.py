"""Headers of a STOMP frame, kept as bytes until somebody asks for one. Pure.

A *block* is the header lines of a frame as they came, each with a line feed before and behind it:
``b"\\nack:1\\nsubscription:0\\n"``, without the command and without carriage returns at the ends of lines. So a header
is found by one search for ``b"\\nname"``, which cannot be mistaken for one whose name ends so, nor for a value.

Of a repeated header the first counts (STOMP 1.2, section "Repeated Header Entries"), except for one that a dialect
names: there the last does (:attr:`~pyspark_mq.brokers.base.StompDialect.last_header`). A line without a colon is a
header with an empty value. Bytes that are no UTF-8 become the surrogates that give them back, so different IDs stay
different; escapes that mean nothing are left alone: an error would make the message unreadable forever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["as_text", "as_texts", "parse", "searchable", "text", "unescape", "value", "values"]

_COLON = ord(":")
_EOL = b"\n"
_ESCAPE = re.compile(r"\\[rnc\\]")
_MEANINGS = {"\\r": "\r", "\\n": "\n", "\\c": ":", "\\\\": "\\"}
#: A name with one of these is written in more than one way, or cannot be searched for.
_WRITTEN_OTHERWISE = re.compile(r"[\\:\r\n]|^$")


def parse(block: bytes, last: str = "", *, escaped: bool = True) -> dict[str, str]:
    """Return all headers.

    Args:
        block: as in the module's docstring.
        last: the header of which the last entry counts; empty for none.
        escaped: all but those of CONNECTED are (section "Value Encoding").
    """
    text = _decoded(block)
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
        return {unescape(name): unescape(found) for name, found in headers.items()}
    return headers


def value(block: bytes, name: str, last: str = "") -> bytes | None:
    """One header as it is written, escapes and all; None if there is none.

    Args:
        block: as in the module's docstring.
        name: without any of the characters that are escaped.
        last: as for :func:`parse`.
    """
    return values([block], name, last)[0]


def values(blocks: Sequence[bytes], name: str, last: str = "") -> list[bytes | None]:
    """Return a header's value in each of many blocks."""
    key = b"\n" + name.encode("utf-8", "surrogateescape")
    size, from_behind = len(key), name == last
    found: list[bytes | None] = []
    append = found.append
    for block in blocks:
        at = block.rfind(key) if from_behind else block.find(key)
        if at < 0:
            append(None)
            continue
        at += size
        if block[at] == _COLON:
            append(block[at + 1 : block.find(_EOL, at)])
        else:
            append(_last(block, key) if from_behind else _next(block, key, at))
    return found


def _next(block: bytes, key: bytes, at: int) -> bytes | None:
    """From the place behind a find of the key on: a name may go on there, or its line have no colon."""
    while at >= len(key):
        if block[at] == _COLON:
            return block[at + 1 : block.find(_EOL, at)]
        if block[at : at + 1] == _EOL:
            return b""
        at = block.find(key, at) + len(key)
    return None


def _last(block: bytes, key: bytes) -> bytes | None:
    at = block.rfind(key + b":")
    if at >= 0:
        at += len(key) + 1
        return block[at : block.find(_EOL, at)]
    return b"" if key + _EOL in block else None


def text(block: bytes, name: str, last: str = "") -> str | None:
    """One header as text; None if there is none. Arguments as for :func:`value`."""
    return as_texts(values([block], name, last))[0]


def as_texts(found: Sequence[bytes | None]) -> list[str | None]:
    """Values of a header as applications see them."""
    present = [item for item in found if item is not None]
    if not present:
        return [None] * len(found)
    # One text for all of them: no value has a line feed in it before it is unescaped.
    joined = _decoded(_EOL.join(present))
    if "\\" not in joined:
        plain = joined.split("\n")
    elif _only_colons(joined):
        plain = joined.replace("\\c", ":").split("\n")
    else:
        plain = [unescape(item) for item in joined.split("\n")]
    if len(plain) == len(found):
        return [*plain]
    following = iter(plain)
    return [None if item is None else next(following) for item in found]


def as_text(value: str | None) -> str | None:
    """A header for a string column; bytes that are not text are shown with escapes."""
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def searchable(name: str) -> bool:
    """Return whether a header of this name is found by the bytes of the name."""
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return not _WRITTEN_OTHERWISE.search(name)


def unescape(text: str) -> str:
    """A name or a value in the form that applications see."""
    if "\\" not in text:
        return text
    if _only_colons(text):  # by far the most common: IDs with colons
        return text.replace("\\c", ":")
    return _ESCAPE.sub(lambda found: _MEANINGS[found[0]], text)


def _only_colons(text: str) -> bool:
    return text.count("\\") == text.count("\\c")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
