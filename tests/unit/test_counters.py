"""The counters and their documentation name the same."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from pyspark_mq.ack import InFlightTable
from pyspark_mq.ack.counters import ALARMS, GAUGES, SAID, Counters
from pyspark_mq.dedup import NoMemory

OPTIONS_PAGE = Path(__file__).parents[2] / "docs" / "options.md"
NAMES = [field.name for field in fields(Counters)]


def documented() -> list[str]:
    section = OPTIONS_PAGE.read_text("utf-8").partition("\n## Counters\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_the_report_has_the_documented_counters_in_their_order() -> None:
    report = Counters(*range(len(NAMES))).report()
    assert list(report) == documented()
    assert list(report.values()) == list(range(len(NAMES)))


def test_a_report_is_read_back() -> None:
    counters = Counters(*range(len(NAMES)))
    assert Counters.of({"reads": "queue 'q'", **counters.report()}) == counters
    assert Counters.of({"backlog": None}).backlog is None
    assert Counters.of({}).received == 0


def test_every_counter_has_a_line_in_the_docstring() -> None:
    assert re.findall(r"^ +(\w+): \w", str(Counters.__doc__), re.MULTILINE) == NAMES


def test_what_the_docstring_calls_of_now_is_a_reading() -> None:
    assert tuple(re.findall(r"^ +(\w+): now: ", str(Counters.__doc__), re.MULTILINE)) == GAUGES


def test_what_a_counter_is_stands_beside_it() -> None:
    counters = Counters(**{name: 2**place for place, name in enumerate(NAMES)})
    finished = ("planned", "rebound", "duplicates_dropped", "rejected")
    assert counters.done == sum(getattr(counters, name) for name in finished)
    assert set(ALARMS) == {"lost", "rejected"}
    assert set(ALARMS) <= set(SAID) <= set(counters.report())
    assert not set(GAUGES) & set(SAID)


def test_the_in_flight_counts_under_the_same_names() -> None:
    in_flight: InFlightTable[str] = InFlightTable(grace_s=None, memory=NoMemory("orders"))
    in_flight.open_session(1)
    in_flight.deliver(1, [1, 2], ["a", "a"], ["", ""])
    in_flight.plan(1, 1)
    assert in_flight.counters == Counters(received=2, duplicates_dropped=1, planned=1)


def test_counters_cannot_be_changed() -> None:
    counters = Counters(*range(len(NAMES)))
    with pytest.raises(FrozenInstanceError):
        counters.lost = 0  # type: ignore[misc]
