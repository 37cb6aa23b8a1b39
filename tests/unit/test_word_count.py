"""The documentation is short, and answers the questions that new users have where they look for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT

DOCS = ROOT / "docs"
#: In the README and the pages together. Reports, which only show what was measured, are not counted.
MOST_WORDS = 20_000
README_LINES = 80
#: Tables that tools write from the code.
GENERATED = re.compile(r"<!-- written by make docs: .+? -->\n.*?<!-- end -->", re.DOTALL)
#: What is asked -> the page and the section with the answer, and words that a reader may search for.
QUESTIONS = {
    "Databricks runtime": ("deploy.md", "Databricks Runtime", "databricks"),
    "lag": ("monitor.md", "Lag", "lag"),
    "secrets": ("operate.md", "Secrets", "secret"),
    "JSON": ("write.md", "Typed columns from JSON", "json"),
    "no message IDs": ("message-ids.md", "Messages without an ID", "no ID"),
    "stop": ("operate.md", "Stop", "stop"),
    "rewind": ("operate.md", "Rewind", "rewind"),
    "write to a queue": ("sink.md", "Write to queues", "publish"),
    "driver memory": ("tuning.md", "Driver memory", "driver's memory"),
    "slow": ("tuning.md", "Throughput", "rows a second"),
    "schema registry": ("formats.md", "Avro", "registry"),
    "Airflow": ("schedule.md", "Airflow", "airflow"),
    "MERGE": ("write.md", "Merge into Delta", "merge"),
    "dead letters": ("write.md", "Several tables and dead letters", "dead letter"),
}


def words(page: Path) -> int:
    return len(GENERATED.sub("", page.read_text("utf-8")).split())


def test_the_documentation_is_short() -> None:
    counted = {page.name: words(page) for page in [ROOT / "README.md", *DOCS.glob("*.md")]}
    assert sum(counted.values()) <= MOST_WORDS, sorted(counted.items(), key=lambda one: -one[1])


def test_the_first_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES


def test_the_glossary_has_twenty_words_a_line_each_and_is_linked() -> None:
    entries = re.findall(r"^- \*\*(.+?)\*\*: .+$", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(entries) == 20
    assert entries == sorted(entries, key=str.lower)
    users = [page.name for page in DOCS.glob("*.md") if "(glossary.md)" in page.read_text("utf-8")]
    assert {"design.md", "guarantees.md", "how-it-works.md", "options.md"} <= set(users)


def test_no_page_is_kept_from_the_count_but_by_the_folder_of_reports() -> None:
    assert {page.parent for page in DOCS.rglob("*.md")} == {DOCS, DOCS / "reports"}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_a_section_of_its_own_two_clicks_from_the_readme(question: str) -> None:
    page, heading, word = QUESTIONS[question]
    assert f"](docs/{page})" in (ROOT / "README.md").read_text("utf-8")
    text = (DOCS / page).read_text("utf-8")
    sections = {head: body for head, _, body in (part.partition("\n") for part in re.split(r"^#+ ", text, flags=re.M))}
    assert word.lower() in f"{heading}\n{sections[heading]}".lower()
