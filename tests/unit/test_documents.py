"""The documents as GitHub shows them: every link leads somewhere. `make docs` checks those of the site."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import pyspark_mq

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for name in ("docs", "tests", "dev") for path in (ROOT / name).rglob("*.md"))]
)
REPOSITORY = "https://github.com/pyspark-mq/pyspark-mq"
#: A picture or a link, with its target; none of them has blanks or a title.
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@cache
def text_of(document: Path) -> str:
    """Without blocks of code."""
    return FENCE.sub("", document.read_text("utf-8"))


@cache
def anchors_of(document: Path) -> set[str]:
    """Of its headings as GitHub makes them, and those written as HTML."""
    found = re.findall(r'<a id="([\w-]+)">', text_of(document))
    for heading in re.findall(r"^#+ (.+)$", text_of(document), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return set(found)


@cache
def lines_of(file: Path) -> set[str]:
    """The anchors that GitHub gives to the lines of a file."""
    return {f"L{number}" for number, _ in enumerate(file.read_text("utf-8").splitlines(), start=1)}


def broken(document: Path, text: str) -> list[str]:
    """The targets of the text's links within the repository that are not there."""
    found = []
    for target in LINK.findall(text):
        place, _, anchor = target.partition("#")
        if place.startswith(REPOSITORY):
            path = ROOT / place.removeprefix(REPOSITORY).removeprefix("/").partition("/main/")[2]
        elif re.match(r"\w+:", place):
            continue
        else:
            path = (document.parent / place).resolve() if place else document
        anchors = anchors_of if path.suffix == ".md" else lines_of
        known = path.exists() and (not anchor or anchor in anchors(path))
        found += [] if known else [target]
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken(document, text_of(document)) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "[a](guarantees.md) [b](gone.md) [c](guarantees.md#limits) [d](#gone) ![e](images/gone.svg) [f](https://x/y)"
    assert broken(ROOT / "docs" / "index.md", text) == ["gone.md", "#gone", "images/gone.svg"]


def test_every_page_is_in_the_list_of_pages() -> None:
    document = ROOT / "docs" / "index.md"
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")} - {"index"}
    linked = {target.removesuffix(".md") for target in LINK.findall(document.read_text("utf-8"))}
    listed = set(document.read_text("utf-8").splitlines())
    assert pages - linked - listed == set()


def test_the_page_of_the_api_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert [name for name in pyspark_mq.__all__ if f"pyspark_mq.{name}" not in page] == []
    assert ".. automodule:: pyspark_mq.errors" in page
