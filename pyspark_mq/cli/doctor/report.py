"""Formats the findings of `pyspark-mq doctor`, as lines for people and as JSON for machines."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pyspark_mq.admin.checks import Finding, Level

__all__ = ["Section", "as_json", "summary", "worst", "written"]

_WIDTH = 110
_INDENT = 10


@dataclass(frozen=True, slots=True)
class Section:
    """Findings about one subject.

    Attributes:
        about: the subject as it is printed: this machine, a URL without credentials, or a queue.
    """

    about: str
    findings: Sequence[Finding]


def worst(sections: Sequence[Section]) -> Level:
    """Return the worst level among all findings of these sections."""
    return max((one.level for section in sections for one in section.findings), default=Level.OK)


def written(section: Section) -> Iterator[str]:
    """Yield the lines that show a section to people. Problems come first; unknown facts are grouped by their remedy."""
    yield section.about
    for finding in sorted(section.findings, key=attrgetter("level"), reverse=True):
        if finding.level is not Level.UNKNOWN:
            yield from _lines(finding.level.word, f"{finding.check}: {finding.what}", finding.remedy)
    unknown = [one for one in section.findings if one.level is Level.UNKNOWN]
    for remedy in dict.fromkeys(one.remedy for one in unknown):
        same = [one for one in unknown if one.remedy == remedy]
        yield from _lines(Level.UNKNOWN.word, "; ".join(_short(one) for one in same), remedy)
    yield ""


def _short(finding: Finding) -> str:
    return finding.check if finding.what == "not known" else f"{finding.check}: {finding.what}"


def _lines(word: str, text: str, remedy: str) -> Iterator[str]:
    room, margin = _WIDTH - _INDENT, " " * _INDENT
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    yield f"  {word:<{_INDENT - 2}}{lines[0]}"
    yield from (f"{margin}{line}" for line in lines[1:])
    advice = textwrap.wrap(remedy, room - 3, break_long_words=False, break_on_hyphens=False)
    yield from (f"{margin}{'-> ' if not at else '   '}{line}" for at, line in enumerate(advice))


def summary(sections: Sequence[Section]) -> str:
    """Return a line for people with the number of findings of each level."""
    counts = Counter(finding.level for section in sections for finding in section.findings)
    return (
        f"{counts[Level.PROBLEM]} problem(s), {counts[Level.WARNING]} warning(s), {counts[Level.UNKNOWN]} not known, "
        f"{counts[Level.OK]} ok"
    )


def as_json(sections: Sequence[Section]) -> dict[str, Any]:
    """Return the findings of all sections as a mapping that can be printed as JSON."""
    findings = [
        {
            "about": section.about,
            "check": one.check,
            "level": one.level.word,
            "found": one.what,
            "remedy": one.remedy or None,
        }
        for section in sections
        for one in section.findings
    ]
    return {"level": worst(sections).word, "findings": findings}
