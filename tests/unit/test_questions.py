"""The documentation answers the questions that new users have where they look for them."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT

DOCS = ROOT / "docs"
#: What is asked -> the page and the section with the answer, and words that a reader may search for.
QUESTIONS = {
    "Databricks runtime": ("deploy.md", "Databricks", "cluster library"),
    "lag": ("monitor.md", "Lag", "lag"),
    "secrets": ("operate.md", "Secrets", "secret"),
    "JSON": ("sinks.md", "Typed columns from JSON", "json"),
    "no message IDs": ("message-ids.md", "Message IDs", "without an ID"),
    "stop": ("operate.md", "Stop", "stop"),
    "rewind": ("operate.md", "Rewind", "rewind"),
    "write to a queue": ("write-to-queues.md", "Write to queues", "publish"),
    "driver memory": ("tuning.md", "Driver memory", "driver's memory"),
    "slow": ("tuning.md", "Throughput", "rows a second"),
    "schema registry": ("formats.md", "Avro", "registry"),
    "Airflow": ("operate.md", "Airflow", "airflow"),
    "MERGE": ("sinks.md", "Merge into Delta", "merge"),
    "dead letters": ("sinks.md", "Dead letters", "dead letter"),
}


def test_the_glossary_has_a_line_for_each_word_in_order_and_is_linked() -> None:
    text = (DOCS / "glossary.md").read_text("utf-8")
    entries = re.findall(r"^- \*\*(.+?)\*\*: .+$", text, re.MULTILINE)
    assert len(entries) == text.count("\n- ")
    assert entries == sorted(entries, key=str.lower)
    users = [page.name for page in DOCS.glob("*.md") if "(glossary.md)" in page.read_text("utf-8")]
    assert {"design.md", "guarantees.md", "how-it-works.md", "options.md"} <= set(users)


def test_pages_are_in_one_folder_and_reports_in_another() -> None:
    assert {page.parent for page in DOCS.rglob("*.md")} == {DOCS, DOCS / "reports"}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_a_section_of_its_own_two_clicks_from_the_readme(question: str) -> None:
    page, heading, word = QUESTIONS[question]
    assert f"](docs/{page})" in (ROOT / "README.md").read_text("utf-8")
    text = (DOCS / page).read_text("utf-8")
    sections = {head: body for head, _, body in (part.partition("\n") for part in re.split(r"^#+ ", text, flags=re.M))}
    assert word.lower() in f"{heading}\n{sections[heading]}".lower()
