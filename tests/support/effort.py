"""How much a test tries: all of it with `--thorough`, a third with `--all`, and a tenth in `make test`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["LONG", "PART", "each_of", "part_of", "with_all"]

#: A parameter of a test that is left to `--all`.
with_all = partial(pytest.param, marks=pytest.mark.whole)

_PROFILE = settings.get_current_profile_name()
#: One of this many drawn examples is tried.
PART = {"thorough": 1, "all": 3}.get(_PROFILE, 10)
#: Whether histories are as long as they get.
LONG = _PROFILE in {"thorough", "all"}


def part_of(examples: int) -> int:
    """Return how many examples of so many are tried."""
    return max(1, examples // PART)


def each_of(values: Sequence[Any], every: int = 4) -> list[Any]:
    """Return values of a parameter, or tuples of several: one of so many as it is, and the others for `--all`."""
    every_one = [value if isinstance(value, tuple) else (value,) for value in values]
    return [(pytest.param if place % every == 0 else with_all)(*one) for place, one in enumerate(every_one)]
