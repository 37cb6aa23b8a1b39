"""Headers of many messages, column by column. Pure.

Messages of one producer have the same headers in the same order. So the lines of a thousand are turned about: the
third lines of all are one column, joined to one text, and one count shows whether all of them name the same header.
What is left to do for a message is done in C. Where messages differ, each header is searched for in each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TypeAlias

from pyspark_mq.sources.stomp.headers import as_text, as_texts, parse, searchable, unescape, values

__all__ = ["HeaderTable"]

#: Messages turned about together: as many as fit into the caches of a processor.
_CHUNK = 500
_EOL = b"\n"

#: For each message, names and values.
Pairs: TypeAlias = "list[list[tuple[str, str | None]]]"


class HeaderTable:
    """The headers of messages, in order.

    Args:
        blocks: see :mod:`pyspark_mq.sources.stomp.headers`.
        last: the header of which the last entry counts; empty for none.
        turned: is it worth turning the lines about? For one or two headers it is not.
    """

    def __init__(self, blocks: Sequence[bytes], last: str, *, turned: bool) -> None:
        self._blocks = blocks
        self._last = last
        self._turned = turned

    @cached_property
    def _chunks(self) -> list[_Chunk]:
        size = _CHUNK if self._turned else len(self._blocks)
        return [
            _Chunk(self._blocks[at : at + size], self._last, turned=self._turned)
            for at in range(0, len(self._blocks), size)
        ]

    def values(self, name: str) -> list[bytes | None]:
        """One header as it is written, for each message; None where there is none.

        Args:
            name: without any of the characters that are escaped.
        """
        return [found for chunk in self._chunks for found in chunk.values(name)]

    def texts(self, name: str) -> list[str | None]:
        """One header as text, for each message; None where there is none.

        Args:
            name: any text.
        """
        if not searchable(name):
            return [parse(block, self._last).get(name) for block in self._blocks]
        return as_texts(self.values(name))

    def others(self, hidden: Collection[str], prefixes: tuple[str, ...]) -> Pairs:
        """Return all headers but some, for each message: name and value, bytes that are not text with escapes.

        Args:
            hidden: names to leave out.
            prefixes: how further names begin that are left out.
        """
        rows: Pairs = []
        for chunk in self._chunks:
            rows += chunk.others(hidden, prefixes)
        return rows


class _Chunk:
    """Some messages in a row.

    Attributes:
        lines: of each line, the name in all of them and all of the lines; None if they differ.
    """

    def __init__(self, blocks: Sequence[bytes], last: str, *, turned: bool) -> None:
        self._blocks = blocks
        self._last = last
        self.lines = _turn_about(blocks) if turned else None

    def values(self, name: str) -> list[bytes | None]:
        if self.lines is None:
            return values(self._blocks, name, self._last)
        wanted = name.encode("utf-8", "surrogateescape")
        # Of a repeated header the first counts, or the last.
        lines = reversed(self.lines) if name == self._last else self.lines
        for key, joined in lines:
            if key == wanted:
                return [*_split(key, joined)]
        return [None] * len(self._blocks)

    def others(self, hidden: Collection[str], prefixes: tuple[str, ...]) -> Pairs:
        if self.lines is None:
            return [_others(block, self._last, hidden, prefixes) for block in self._blocks]
        # In the order of `parse`, and of those with the same name the first, or the last.
        counting = dict(reversed(self.lines))
        if self._last:
            counting |= {key: joined for key, joined in self.lines if key == self._last.encode()}
        columns: dict[str, list[str | None]] = {}
        for key, joined in counting.items():
            name = key.decode("utf-8", "surrogateescape")
            if name not in hidden and not name.startswith(prefixes):
                columns[unescape(name)] = as_texts(_split(key, joined))
        if not columns:
            return [[] for _ in self._blocks]
        names = [str(as_text(name)) for name in columns]
        shown = [[as_text(value) for value in column] for column in columns.values()]
        return [[*zip(names, row, strict=True)] for row in zip(*shown, strict=True)]


def _turn_about(blocks: Sequence[bytes]) -> list[tuple[bytes, bytes]] | None:
    """Return each line's name and the lines of all messages in one; None if their headers differ."""
    rows = [block.split(_EOL) for block in blocks]
    width = len(rows[0])
    if width < 3 or any(len(row) != width for row in rows):
        return None
    lines = []
    for column in list(zip(*rows, strict=True))[1:-1]:  # before the first and behind the last line feed is nothing
        name, colon, _ = column[0].partition(b":")
        joined = _EOL + _EOL.join(column)
        if not colon or joined.count(_EOL + name + colon) != len(rows):
            return None
        lines.append((name, joined))
    return lines


def _split(name: bytes, joined: bytes) -> list[bytes | None]:
    return [*joined.split(_EOL + name + b":")[1:]]


def _others(
    block: bytes, last: str, hidden: Collection[str], prefixes: tuple[str, ...]
) -> list[tuple[str, str | None]]:
    return [
        (str(as_text(name)), as_text(value))
        for name, value in parse(block, last).items()
        if name not in hidden and not name.startswith(prefixes)
    ]
