"""What `make release-check` looks at, and the workflow that publishes."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from tools.release import (
    LOCK,
    PYTHONS,
    REPOSITORY,
    ROOT,
    audit_problems,
    changelog_problem,
    link_problems,
    wheel_problems,
)

WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("headings", "version", "tag", "words"),
    [
        ("## [1.2.0] - 2026-11-22\n\n## [1.1.0]\n", "1.2.0", "", ""),
        ("## [1.2.0] - 2026-11-22\n", "1.2.0", "v1.2.0", ""),
        ("## [Unreleased] - 1.3.0\n\n## [1.2.0]\n", "1.2.0", "", ""),
        ("## [Unreleased]\n\n## [1.2.0] - 2026-11-22\n", "1.2.0", "v1.2.0", "has unreleased changes"),
        ("## [1.2.0]\n", "1.2.0", "", "has no date"),
        ("## [1.2.0] - soon\n", "1.2.0", "", "has no date"),
        ("## [1.1.0] - 2026-11-22\n", "1.2.0", "", "newest heading is of '1.1.0'"),
        ("## [1.2.0] - 2026-11-22\n", "1.2.0", "v1.2.1", "the tag is v1.2.1, and the version 1.2.0"),
        ("", "1.2.0", "", "newest heading is of ''"),
    ],
)
def test_the_changelog_is_of_the_version(headings: str, version: str, tag: str, words: str) -> None:
    problem = changelog_problem(f"# Changelog\n\n{headings}", version, tag)
    assert words in problem
    assert bool(words) == bool(problem)


def test_links_that_do_not_work_on_pypi_are_found() -> None:
    inside = f"{REPOSITORY}/blob/v1.2.0"
    good = f"[a](#top) [b](https://example.org/x) [c]({inside}/README.md#demo) [d]({inside}/docs/options.md)"
    assert link_problems(good, "1.2.0") == []
    bad = f"[a](docs/options.md) [b]({inside}/gone.md) [c]({REPOSITORY}/blob/main/README.md) [d](../x)"
    assert link_problems(bad, "1.2.0") == [
        "docs/options.md is relative",
        f"{inside}/gone.md does not exist",
        f"{REPOSITORY}/blob/main/README.md is of another version",
        "../x is relative",
    ]


def test_the_pattern_in_the_project_makes_every_link_of_the_readme_absolute() -> None:
    (pattern,) = re.findall(r"^pattern = '(.+)'$", PROJECT, re.MULTILINE)
    (replacement,) = re.findall(r"^replacement = '(.+)'$", PROJECT, re.MULTILINE)
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = re.sub(pattern, replacement.replace("$HFPR_VERSION", "1.2.0"), readme)
    assert link_problems(shown, "1.2.0") == []
    assert shown.count(f"({REPOSITORY}/blob/v1.2.0/") > 20
    assert link_problems(readme, "1.2.0") != []


def test_a_wheel_has_the_modules_and_no_more(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    modules = [str(path.relative_to(ROOT)) for path in (ROOT / "pyspark_mq").rglob("*.py")]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in [*modules, "pyspark_mq/py.typed", "pyspark_mq-1.dist-info/licenses/LICENSE"]:
            archive.writestr(name, "")
    assert wheel_problems(wheel) == []
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in [*modules[1:], "pyspark_mq/py.typed", "tests/x.py"]:
            archive.writestr(name, "")
    assert wheel_problems(wheel) == [
        f"{modules[0]} is missing",
        "tests/x.py does not belong there",
        "the licence is missing",
    ]


def test_what_could_not_be_asked_about_is_no_good_word() -> None:
    good = {"name": "pika", "version": "1.4.4", "vulns": []}
    bad = {"name": "x", "version": "1.0", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]}
    assert audit_problems([good]) == []
    assert audit_problems([good, bad]) == ["x 1.0: CVE-1, CVE-2"]
    assert audit_problems([good, {"name": "y", "skip_reason": "not found"}]) == ["1 of 2 could not be asked about: y"]
    assert audit_problems([]) == ["nothing was looked at"]


def test_the_pythons_are_those_of_the_classifiers() -> None:
    assert tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)) == PYTHONS


def test_every_dependency_is_pinned() -> None:
    pinned = {name.lower() for name in re.findall(r"^([\w.-]+)==\S+", LOCK.read_text("utf-8"), re.MULTILINE)}
    optional = PROJECT.partition("\ndependencies = ")[2].partition("[project.urls]")[0]
    named = re.findall(r'"([\w.-]+)[><=]', optional)
    assert len(named) > 15
    assert [name for name in named if name.lower().replace(".", "-") not in pinned] == []
    text = "".join(line for line in LOCK.read_text("utf-8").splitlines(keepends=True) if not line.startswith("#"))
    hashed = re.compile(r"[\w.-]+==[\w.+!]+( ; .+)?( \\\n    --hash=sha256:[0-9a-f]{64})+")
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 100
    assert [entry for entry in entries if not hashed.fullmatch(entry)] == []


def test_the_workflow_pins_every_action_and_gives_no_more_than_is_needed() -> None:
    actions = re.findall(r"uses: (.+)", WORKFLOW)
    assert len(actions) == 4
    by_commit = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [action for action in actions if not by_commit.fullmatch(action)] == []
    build, publish = WORKFLOW.partition("\n  publish:\n")[::2]
    assert "\npermissions: {}\n" in build
    assert re.findall(r"^ {6}[\w-]+: (?:read|write)$", build, re.MULTILINE) == ["      contents: read"]
    assert re.findall(r"^ {6}[\w-]+: (?:read|write)$", publish, re.MULTILINE) == ["      id-token: write"]
    assert "attestations: true" in publish
    assert "password" not in WORKFLOW
    assert "secrets." not in WORKFLOW
