"""The fuzzers of the decoders, each for a few seconds; `make fuzz` runs them for as long as one likes."""

from __future__ import annotations

import time

import pytest

from tests.fuzz.__main__ import names, turn
from tests.support.effort import part_of

_SEED = 1
_SECONDS = part_of(20) / 4


@pytest.mark.parametrize("name", names())
def test_what_a_fuzzer_makes_is_read_rightly(name: str) -> None:
    cases = turn(name, _SEED, 0, time.monotonic() + _SECONDS)
    assert cases.total() > 0
