"""Writes the tables of docs/options.md from the code's own: ``python -m tools.reference``, which ``make docs`` runs.

A table stands between two marks of the page, ``<!-- written by make docs: columns -->`` and ``<!-- end -->``. What is
around them is written by hand. tests/unit/test_reference.py fails while the page and the code differ.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from pyspark_mq.ack.counters import Counters
from pyspark_mq.spark_source.option_table import OPTIONS, Option
from pyspark_mq.spark_source.schema import ALL_COLUMNS, COLUMN_TEXTS

__all__ = ["PAGE", "TABLES", "written"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"

_MARKED = re.compile(r"(<!-- written by make docs: (.+?) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_NOTHING = "\N{EN DASH}"


def options(section: str) -> list[str]:
    """The rows of one section of the options."""
    chosen = [option for option in OPTIONS.values() if option.section == section]
    return _table(("option", "default", "meaning"), [(f"`{one.name}`", _default(one), one.text) for one in chosen])


def columns() -> list[str]:
    """The columns with their types."""
    rows = [(f"`{field.name}`", field.dataType.simpleString(), COLUMN_TEXTS[field.name]) for field in ALL_COLUMNS]
    return _table(("column", "type", ""), rows)


def counters() -> list[str]:
    """The counters, by the docstring of their class."""
    told = dict(re.findall(r"^ +(\w+): (.+)$", str(Counters.__doc__), re.MULTILINE))
    texts = [told[field.name].removesuffix(".") for field in fields(Counters)]
    return _table(
        ("name", "meaning"), [(f"`{name}`", text) for name, text in zip(Counters().report(), texts, strict=True)]
    )


#: What is between the marks, by what stands in the first of them.
TABLES: dict[str, Callable[[], list[str]]] = {
    **{
        f"options, {section}": lambda section=section: options(section)  # type: ignore[misc]
        for section in dict.fromkeys(option.section for option in OPTIONS.values())
    },
    "columns": columns,
    "counters": counters,
}


def written(page: str) -> str:
    """The page with its tables as the code has them.

    Raises:
        ValueError: a table has no place on the page, or a place no table.
    """
    marked = [name for _, name, _ in _MARKED.findall(page)]
    if sorted(marked) != sorted(TABLES):
        raise ValueError(f"the page has marks for {sorted(marked)}, and there are tables for {sorted(TABLES)}")
    return _MARKED.sub(lambda found: "\n".join([found[1], *TABLES[found[2]](), "", found[3]]), page)


def _default(option: Option) -> str:
    return option.unset or _NOTHING if option.default is None else f"`{option.default}`"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [_row(heads), "|" + "---|" * len(heads), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in (_cell(cell) for cell in cells))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page."""
    before = PAGE.read_text("utf-8")
    after = written(before)
    if after != before:
        PAGE.write_text(after, "utf-8")
        print(f"written: {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
