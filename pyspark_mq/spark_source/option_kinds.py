"""Kinds of option values, such as a duration or a size. A kind parses a text, and says which values it accepts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["FLAG", "SIZE_BYTES", "Kind", "choice", "count", "duration_s", "member"]

_DURATION = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZE = re.compile(r"(\d{1,18})\s*([kmg]?)(?:i?b)?")
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_COUNT_MAX = 1_000_000_000
#: Longest accepted time. A wait of centuries would overflow clocks.
_DURATION_MAX_S = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of option value.

    Attributes:
        parse: takes the option's text in lower case, and returns the value; None if the text is not accepted.
        accepted: describes the accepted values in errors, after the word "use": "a whole number from 1 to 5".
    """

    parse: Callable[[str], Any]
    accepted: str


def choice(values: Mapping[str, Any]) -> Kind:
    """Return a kind that accepts one of several names."""
    return Kind(values.get, f"one of: {', '.join(values)}")


def member(kind: type[Enum]) -> Kind:
    """Return a kind that accepts the values of an enumeration's members, and parses them into these members."""
    return choice({one.value: one for one in kind})


def count(min_count: int, max_count: int = _COUNT_MAX) -> Kind:
    """Return a kind that accepts a whole number."""

    def parse(text: str) -> int | None:
        # Python refuses to convert thousands of digits.
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else -1
        return number if min_count <= number <= max_count else None

    return Kind(parse, f"a whole number from {min_count} to {max_count}")


def duration_s(min_s: float = 0.0, max_s: float = _DURATION_MAX_S) -> Kind:
    """Return a kind that accepts a time with a unit, and parses it into seconds."""

    def parse(text: str) -> float | None:
        found = _DURATION.fullmatch(text)
        seconds = float(found[1]) * _SECONDS[found[2]] if found else math.nan
        return seconds if min_s <= seconds <= max_s else None

    return Kind(parse, f"a time with its unit such as 500ms, 30s, 10m, 1h, from {min_s:g}s to {max_s:.0f}s")


def _size_bytes(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    return (int(found[1]) * _BYTES[found[2]] or None) if found else None


FLAG = choice({"true": True, "false": False})
SIZE_BYTES = Kind(_size_bytes, "a number of bytes above 0 such as 1048576, 512k, 64m, 1g")
