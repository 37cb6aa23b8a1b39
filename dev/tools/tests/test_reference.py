"""The tables of docs/options.md, docs/streams.md and docs/sink.md are those of the code."""

from __future__ import annotations

import pytest

from pyspark_mq.spark_source.option_table import OPTIONS
from tools.reference import PAGE, SINK_PAGE, SINK_TABLES, STREAM_TABLES, STREAMS_PAGE, TABLES, written


def test_the_page_is_as_the_code_has_it() -> None:
    page = PAGE.read_text("utf-8")
    assert written(page) == page, "the page is older than the code: run `make docs`"
    for other, tables in ((STREAMS_PAGE, STREAM_TABLES), (SINK_PAGE, SINK_TABLES)):
        page = other.read_text("utf-8")
        assert written(page, tables) == page, "the page is older than the code: run `make docs`"


def test_a_row_that_was_changed_by_hand_is_written_again() -> None:
    page = PAGE.read_text("utf-8")
    changed = page.replace("| `settleGrace` | `5s` |", "| `settleGrace` | `9s` |")
    assert changed != page
    assert written(changed) == page


def test_what_is_around_the_tables_stays() -> None:
    page = PAGE.read_text("utf-8")
    assert written(page.replace("# Options, columns, counters", "# By hand")).startswith("# By hand\n")


def test_a_table_without_a_place_is_an_error() -> None:
    page = PAGE.read_text("utf-8")
    with pytest.raises(ValueError, match="the page has marks for"):
        written(page.replace("<!-- written by make docs: counters -->", ""))


def test_every_option_is_in_one_table_with_a_text_and_no_more_than_one_default() -> None:
    rows = [row for name, table in TABLES.items() if name.startswith("options, ") for row in table()[2:]]
    assert len(rows) == len(OPTIONS)
    for option in OPTIONS.values():
        assert [row for row in rows if row.startswith(f"| `{option.name}` |")], option.name
        assert option.text, option.name
        assert option.default is None or not option.unset, option.name
