"""A disk that loses power, below a query and below a broker: two cuts of what `make power` does a hundred times."""

from __future__ import annotations

import os

import pytest

from testbed.power.brokers import ENTRIES, run_broker_cuts
from testbed.power.cuts import run_cuts
from testbed.power.streams import run_stream_cuts

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(os.geteuid() != 0, reason="to mount a disk takes root"),
    pytest.mark.timeout(900),
]


def test_a_query_loses_and_doubles_nothing() -> None:
    told = run_cuts("synced", 2, 11, print)
    assert told.verdict.holds, told
    assert told.refused == told.unreadable == 0


def test_a_quorum_queue_keeps_what_it_has_confirmed() -> None:
    told = run_broker_cuts(ENTRIES["rabbitmq-quorum"], 2, 11, print, restarted=False, options={})
    assert told.verdict.holds, told


def test_a_stream_gives_the_rows_it_has_or_says_that_its_end_was_rewritten() -> None:
    told = run_stream_cuts(4, 5, print)
    # Every other cut takes nothing that was read.
    assert (told.went_on, told.said) == (2, 2), told
    rows = told.verdict
    # What the broker has lost of what it confirmed is in `missing`; the query has what there is, once.
    assert rows.lost == rows.twice == rows.invented == 0 < rows.records, told
