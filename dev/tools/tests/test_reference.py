"""The tables of pages are those of the code."""

from __future__ import annotations

import pytest

from pyspark_mq.spark_source.option_table import OPTIONS
from tools.reference import DOCS, PAGES, written

OPTIONS_PAGE = "options.md"
TABLES = PAGES[OPTIONS_PAGE]


@pytest.fixture
def page() -> str:
    return (DOCS / OPTIONS_PAGE).read_text("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_has_it(name: str) -> None:
    page = (DOCS / name).read_text("utf-8")
    assert written(page, PAGES[name]) == page, "the page is older than the code: run `make docs`"


def test_no_page_has_marks_that_nothing_writes() -> None:
    assert {page.name for page in DOCS.glob("*.md") if "written by make docs" in page.read_text("utf-8")} == {*PAGES}


def test_a_row_that_was_changed_by_hand_is_written_again(page: str) -> None:
    changed = page.replace("| `settleGrace` | `5s` |", "| `settleGrace` | `9s` |")
    assert changed != page
    assert written(changed, TABLES) == page


def test_what_is_around_the_tables_stays(page: str) -> None:
    changed = page.replace("# Options, columns, counters", "# By hand")
    assert written(changed, TABLES).startswith("# By hand\n")


def test_a_table_without_a_place_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="the page has marks for"):
        written(page.replace("<!-- written by make docs: counters -->", ""), TABLES)


def test_every_option_is_in_one_table_with_a_text_and_no_more_than_one_default() -> None:
    rows = [row for name, table in TABLES.items() if name.startswith("options, ") for row in table()[2:]]
    assert len(rows) == len(OPTIONS)
    for option in OPTIONS.values():
        assert [row for row in rows if row.startswith(f"| `{option.name}` |")], option.name
        assert option.text, option.name
        assert option.default is None or not option.unset, option.name
