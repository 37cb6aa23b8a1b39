"""Writes tables of pages from the code's own, as ``make docs`` has it: ``python -m tools.reference``.

A table stands between two marks of a page, ``<!-- written by make docs: columns -->`` and ``<!-- end -->``. What is
around them is written by hand. dev/tools/tests/test_reference.py fails while the page and the code differ.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeAlias

from pyspark_mq.ack import TRANSITIONS, Action, State
from pyspark_mq.ack.counters import Counters
from pyspark_mq.decode.columns import COLUMNS
from pyspark_mq.sink.columns import COLUMNS as SINK_COLUMNS
from pyspark_mq.spark_source.option_table import OPTIONS, Option
from pyspark_mq.spark_source.schema import ALL_COLUMNS
from pyspark_mq.spark_source.sink_options import SINK_OPTIONS
from pyspark_mq.spark_source.stream_options import STREAM_OPTIONS

__all__ = ["DOCS", "PAGES", "written"]

DOCS = Path(__file__).resolve().parents[2] / "docs"

_MARKED = re.compile(r"(<!-- written by make docs: (.+?) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_NOTHING = "\N{EN DASH}"


def options(section: str) -> list[str]:
    """Rows of one section of the options."""
    return _options([option for option in OPTIONS.values() if option.section == section])


def stream_options() -> list[str]:
    """Options that streams have of their own."""
    return _options([option for name, option in STREAM_OPTIONS.items() if OPTIONS.get(name) is not option])


def sink_options() -> list[str]:
    """Options that a write has of its own."""
    return _options([option for name, option in SINK_OPTIONS.items() if OPTIONS.get(name) is not option])


def sink_columns() -> list[str]:
    """The columns of a write with their types."""
    rows = [(f"`{name}`", ", ".join(column.kinds), column.text) for name, column in SINK_COLUMNS.items()]
    return _table(("column", "type", ""), rows)


def columns() -> list[str]:
    """The columns with their types."""
    rows = [(f"`{field.name}`", field.dataType.simpleString(), COLUMNS[field.name].text) for field in ALL_COLUMNS]
    return _table(("column", "type", ""), rows)


def counters() -> list[str]:
    """The counters, by the docstring of their class."""
    told = dict(re.findall(r"^ +(\w+): (.+)$", str(Counters.__doc__), re.MULTILINE))
    texts = [told[field.name].removesuffix(".") for field in fields(Counters)]
    return _table(
        ("name", "meaning"), [(f"`{name}`", text) for name, text in zip(Counters().report(), texts, strict=True)]
    )


def transitions() -> list[str]:
    """The life of a delivery, a row for each state and the next one."""
    cells: dict[tuple[State, State], list[str]] = {}
    for (state, event), (target, action) in TRANSITIONS.items():
        mark = " (ack)" if action is Action.ACKNOWLEDGE else ""
        cells.setdefault((state, target), []).append(f"{event.value}{mark}")
    rows = [(state.name, ", ".join(events), target.name) for (state, target), events in cells.items()]
    return _table(("from", "event", "to"), rows)


Tables: TypeAlias = Mapping[str, Callable[[], list[str]]]
#: By page, what is between its marks, by what stands in the first of them.
PAGES: Mapping[str, Tables] = {
    "options.md": {
        **{
            f"options, {section}": lambda section=section: options(section)  # type: ignore[misc]
            for section in dict.fromkeys(option.section for option in OPTIONS.values())
        },
        "columns": columns,
        "counters": counters,
    },
    "streams.md": {"options of streams": stream_options},
    "write-to-queues.md": {"columns of a write": sink_columns, "options of a write": sink_options},
    "design.md": {"transitions": transitions},
}


def written(page: str, tables: Tables) -> str:
    """Return the page with its tables as the code has them.

    Args:
        page: its text.
        tables: what belongs on it.

    Raises:
        ValueError: a table has no place on the page, or a place no table.
    """
    marked = [name for _, name, _ in _MARKED.findall(page)]
    if sorted(marked) != sorted(tables):
        raise ValueError(f"the page has marks for {sorted(marked)}, and there are tables for {sorted(tables)}")
    return _MARKED.sub(lambda found: "\n".join([found[1], *tables[found[2]](), "", found[3]]), page)


def _options(chosen: Iterable[Option]) -> list[str]:
    return _table(("option", "default", "meaning"), [(f"`{one.name}`", _default(one), one.text) for one in chosen])


def _default(option: Option) -> str:
    return option.unset or _NOTHING if option.default is None else f"`{option.default}`"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [_row(heads), "|" + "---|" * len(heads), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in (_cell(cell) for cell in cells))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the pages."""
    for name, tables in PAGES.items():
        page = DOCS / name
        before = page.read_text("utf-8")
        after = written(before, tables)
        if after != before:
            page.write_text(after, "utf-8")
            print(f"written: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
