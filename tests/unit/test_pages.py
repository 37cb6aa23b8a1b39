"""Every block of code on a page is run by a test, or it is said why none can run it."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.plugin import missing
from tests.support.pages import CANNOT, LANGUAGES, NO_CODE, PAGES, ROOT, RUN_BY, Block, blocks

TESTS = ROOT / "tests"
#: What a window of 1,280 pixels shows of a line of code.
COLUMNS = 76


def unknown(found: list[Block], *tables: dict[str, dict[str, str]]) -> list[str]:
    """Blocks that are in no table."""
    listed = {(page, begin) for table in tables for page, entries in table.items() for begin in entries}
    return [f"{one.page}: {one.begin}" for one in found if (one.page, one.begin) not in listed]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_by_a_test_or_said_to_be_not(page: str) -> None:
    of_code = [one for one in blocks(page) if one.language not in NO_CODE]
    assert {one.language for one in of_code} <= LANGUAGES
    assert unknown(of_code, RUN_BY, CANNOT) == []
    begins = [one.begin for one in of_code]
    assert sorted(set(begins)) == sorted(begins), "two blocks of the page begin with the same line"


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/reports/")])
def test_no_line_of_a_block_is_cut_on_the_site(page: str) -> None:
    assert too_long(blocks(page)) == []


def too_long(found: list[Block]) -> list[str]:
    return [line for one in found for line in one.text.splitlines() if len(line) > COLUMNS]


def test_a_line_that_is_cut_is_found() -> None:
    assert too_long([Block("README.md", "", f"{'x' * 76}\n{'y' * 77}\n")]) == ["y" * 77]


def test_what_is_listed_is_on_the_pages_and_listed_once() -> None:
    there = {(page, one.begin) for page in PAGES for one in blocks(page)}
    listed = [(page, begin) for table in (RUN_BY, CANNOT) for page, entries in table.items() for begin in entries]
    assert [one for one in listed if one not in there] == []
    assert sorted(set(listed)) == sorted(listed)


def test_a_block_in_neither_table_is_found() -> None:
    found = [Block("README.md", "sh", "pip install pyspark-mq    # watch\n"), Block("README.md", "sh", "rm -rf /\n")]
    assert unknown(found, RUN_BY, CANNOT) == ["README.md: rm -rf /"]


def test_no_command_hides_in_a_block_without_a_language() -> None:
    hidden = re.compile(r"^(\$ |pip |make |python |spark-submit |pyspark-mq )", re.MULTILINE)
    assert [one for page in PAGES for one in blocks(page, "") if hidden.search(one.text)] == []


@pytest.mark.parametrize("test", sorted({test for entries in RUN_BY.values() for test in entries.values()}))
def test_the_test_is_there_and_reads_the_page(test: str) -> None:
    file, _, function = test.partition("::")
    source = (TESTS / file).read_text("utf-8")
    assert function in {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    # The quick start is run by the release check, too, so it has a module of its own.
    source += (ROOT / "dev" / "testbed" / "quick_start.py").read_text("utf-8") if "quick_start" in file else ""
    for page in [page for page, entries in RUN_BY.items() if test in entries.values()]:
        assert Path(page).name in source, f"{file} does not name {page}"


# -- make --------------------------------------------------------------------------------------

COMMANDS = [
    line.partition("  #")[0].strip()
    for page in PAGES
    for one in blocks(page, "sh")
    for line in one.text.splitlines()
    if line.startswith("make ")
]


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_every_make_command_is_one(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("make") is None:
        missing("make is not installed")
    # Of a reader: what this run was called with by make is not for it.
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*shlex.split(command), "--dry-run", "--no-print-directory"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The line before it is the set-up.
    python, _, module, *arguments = shlex.split(done.stdout.splitlines()[-1])
    assert python.endswith("/python")
    parse(module, arguments, monkeypatch)


def parse(module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the program read its arguments, and go no further."""
    if module == "pytest":
        return None
    monkeypatch.setattr("sys.argv", [module, *arguments])
    if module == "benchmarks":
        program: Any = importlib.import_module("benchmarks.__main__")
        name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else ""
        return name in program._PARTS or program._arguments(name, arguments)
    program = importlib.import_module(module)
    if hasattr(program, "__path__"):
        program = importlib.import_module(f"{module}.__main__")
    return program._arguments()
