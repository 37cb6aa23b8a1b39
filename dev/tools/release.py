"""Is this checkout fit to be released? ``make release-check``, or a part of it.

Version and changelog; a source distribution and a wheel, looked into and checked by twine; the wheel in an empty
environment of each supported Python that is there, and beside each Spark, where the quick start is run as its page has
it; and the pinned dependencies asked about by pip-audit. Everything is done, and what is wrong is listed at the end. It
all happens in ``build/release``.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

from testbed import quick_start
from testbed.brokers.rabbitmq import RabbitNode
from testbed.spark.versions import VERSIONS

__all__ = [
    "LOCK",
    "PYTHONS",
    "REPOSITORY",
    "ROOT",
    "audit_problems",
    "changelog_problem",
    "link_problems",
    "run",
    "tools",
    "wheel_problems",
]

ROOT = Path(__file__).resolve().parents[2]
#: Those of the classifiers in pyproject.toml.
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
REPOSITORY = "https://github.com/pyspark-mq/pyspark-mq"

_WORK = ROOT / "build" / "release"
LOCK = ROOT / "requirements-dev.txt"
_P = ParamSpec("_P")
#: Reports of pip-audit that are no reason to wait: the ID, and why.
_ACCEPTED: Mapping[str, str] = {}


class FailedError(Exception):
    """A command failed, with what it printed."""


@dataclass
class Check:
    """What was looked at, and what is wrong."""

    problems: list[str] = field(default_factory=list)

    def of(self, what: str, look: Callable[_P, Sequence[str]], *args: _P.args, **named: _P.kwargs) -> None:
        """Look at something, and say at once what came of it."""
        try:
            found = list(look(*args, **named))
        except (FailedError, AssertionError, OSError, subprocess.TimeoutExpired) as failed:
            found = [str(failed)]
        print(f"{what}: {'; '.join(found) or 'good'}", flush=True)
        self.problems += [f"{what}: {problem}" for problem in found]


def main() -> int:
    """Check it; 0 if nothing is wrong."""
    given = _arguments()
    # The checkout must not be what is found in the environments.
    os.environ.pop("PYTHONPATH", None)
    shutil.rmtree(_WORK / "dist", ignore_errors=True)
    check = Check()
    version = _version()
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    check.of(f"version {version} in the changelog", _changelog, changelog, version, given.tag)
    python = tools()
    check.of("source distribution and wheel", _build, python)
    wheel = next(iter((_WORK / "dist").glob(f"*-{version}-*.whl")), None)
    if wheel is None:
        print("no wheel: nothing else can be looked at")
        return 1
    check.of("what is in the wheel", wheel_problems, wheel)
    check.of("links of the page on PyPI", link_problems, _description(wheel), version)
    _check_environments(check, wheel, given)
    if not given.without_audit:
        check.of("pip-audit of the pinned dependencies", _audit, python)
    print("\n".join(["", "not fit to be released:", *check.problems]) if check.problems else "\nfit to be released")
    return 1 if check.problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make release-check", description=__doc__)
    parser.add_argument("--pythons", type=_names, help=f"of {','.join(PYTHONS)}; by default those that are there")
    parser.add_argument("--sparks", type=_names, default=list(VERSIONS), help=f"of {','.join(VERSIONS)}; '' for none")
    parser.add_argument("--tag", default="", help="such as v0.1.0: version and changelog have to be of it")
    parser.add_argument("--without-audit", action="store_true", help="where pip-audit reaches no database")
    given = parser.parse_args()
    for name, wanted, known in (("pythons", given.pythons or [], PYTHONS), ("sparks", given.sparks, VERSIONS)):
        if set(wanted) - set(known):
            parser.error(f"--{name}: there is no {', '.join(sorted(set(wanted) - set(known)))}")
    return given


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


# -- version, changelog -----------------------------------------------------------------------


def _version() -> str:
    """The one place that has it; pyproject.toml reads it there."""
    text = (ROOT / "pyspark_mq" / "__init__.py").read_text("utf-8")
    return str(re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0])


def _changelog(changelog: str, version: str, tag: str) -> list[str]:
    return _some(changelog_problem(changelog, version, tag))


def changelog_problem(changelog: str, version: str, tag: str = "") -> str:
    """What is wrong with the headings of the changelog; empty if nothing is.

    Args:
        changelog: its text.
        version: of the package.
        tag: of the release, if this is to be one: then there may be nothing unreleased.
    """
    newest = next(iter(re.findall(r"^## \[(.+?)\](.*)$", changelog, re.MULTILINE)), ("", ""))
    dated = re.fullmatch(r" - \d{4}-\d\d-\d\d", newest[1]) is not None
    if tag and tag != f"v{version}":
        return f"the tag is {tag}, and the version {version}"
    if newest[0] == version:
        return "" if dated else f"the heading '## [{version}]' has no date, ' - YYYY-MM-DD'"
    if newest[0].lower() == "unreleased":
        return f"it has unreleased changes, and none of {version} with a date" if tag else ""
    return f"its newest heading is of '{newest[0]}', neither of {version} nor of what is unreleased"


# -- distributions ----------------------------------------------------------------------------


def tools() -> Path:
    """The interpreter of an environment with what is in the extra `release`."""
    python, stamp = _WORK / "tools" / "bin" / "python", _WORK / "tools" / "stamp"
    wanted = (ROOT / "pyproject.toml").read_text("utf-8") + LOCK.read_text("utf-8")
    if not stamp.exists() or stamp.read_text("utf-8") != wanted:
        run(sys.executable, "-m", "venv", "--clear", python.parent.parent)
        # pip accepts no hashes where a folder is installed.
        versions = python.parent.parent / "versions.txt"
        versions.write_text(re.sub(r" \\\n *--hash=\S+", "", LOCK.read_text("utf-8")), "utf-8")
        run(python, "-m", "pip", "install", "-q", "--constraint", versions, f"{ROOT}[release]")
        stamp.write_text(wanted, "utf-8")
    return python


def _build(python: Path) -> list[str]:
    run(python, "-m", "build", "--outdir", _WORK / "dist", ROOT)
    files = sorted(map(str, (_WORK / "dist").iterdir()))
    kinds = sorted(Path(file).suffix for file in files)
    run(python, "-m", "twine", "check", "--strict", *files)
    return [] if kinds == [".gz", ".whl"] else [f"built were {', '.join(files)}"]


def wheel_problems(wheel: Path) -> list[str]:
    """What is in the wheel and should not be, or the other way round."""
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "pyspark_mq").rglob("*.py")} | {"pyspark_mq/py.typed"}
    packed = {name for name in names if ".dist-info/" not in name}
    return [
        *(f"{name} is missing" for name in sorted(modules - packed)),
        *(f"{name} does not belong there" for name in sorted(packed - modules)),
        *_some("" if any(name.endswith("/licenses/LICENSE") for name in names) else "the licence is missing"),
    ]


def _description(wheel: Path) -> str:
    """The README as PyPI will show it."""
    archive = zipfile.ZipFile(wheel)
    metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return str(email.message_from_bytes(archive.read(metadata)).get_payload(decode=True), "utf-8")  # type: ignore[arg-type]


def link_problems(description: str, version: str) -> list[str]:
    """Links that do not work outside of the repository, or lead to what this version has not."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", description):
        place = target.partition("#")[0]
        inside = f"{REPOSITORY}/blob/v{version}/"
        if not target.startswith(("https://", "#")):
            found.append(f"{target} is relative")
        elif place.startswith(inside) and not (ROOT / place.removeprefix(inside)).exists():
            found.append(f"{target} does not exist")
        elif place.startswith(f"{REPOSITORY}/blob/") and not place.startswith(inside):
            found.append(f"{target} is of another version")
    return found


# -- environments -----------------------------------------------------------------------------


def _check_environments(check: Check, wheel: Path, given: argparse.Namespace) -> None:
    pythons = {name: found for name in given.pythons or PYTHONS if (found := interpreter(name)) is not None}
    wanted = set(given.pythons or pythons) or {"of any supported version"}
    check.of("interpreters", lambda: [f"Python {name} is not there" for name in sorted(wanted - set(pythons))])
    if not given.sparks:
        for name, python in pythons.items():
            check.of(f"the wheel in Python {name}", _try, python, wheel, None, None)
        return
    with RabbitNode() as node:
        for name, python in pythons.items():
            # Beside the newest Spark that this Python can have, which pip knows.
            check.of(f"the wheel and the quick start in Python {name}", _try, python, wheel, "", node)
        name = next((name for name in ("3.11", *pythons) if name in pythons), "")
        for spark in given.sparks if name else ():
            what = f"the wheel and the quick start with Spark {spark} in Python {name}"
            check.of(what, _try, pythons[name], wheel, f"=={spark}", node)


def _try(python: Path, wheel: Path, spark: str | None, node: RabbitNode | None) -> list[str]:
    """Use it in an environment of its own.

    Args:
        python: the interpreter.
        wheel: to install.
        spark: how to choose the version of pyspark; None for the wheel alone.
        node: the broker of the quick start.
    """
    with tempfile.TemporaryDirectory(prefix="environment-", dir=_WORK) as folder:
        problems = _install(Path(folder), python, wheel)
        if problems or spark is None or node is None:
            return problems
        return _quick_start(Path(folder) / "bin" / "python", wheel, spark, node)


def interpreter(version: str) -> Path | None:
    """Return where a Python is; a shim of pyenv on the PATH has to be told which is meant."""
    command = shutil.which(f"python{version}")
    if command is None:
        return None
    said = "import sys; print(sys.executable)"
    for told in ({}, {"PYENV_VERSION": version}):
        done = subprocess.run(
            [command, "-c", said], env={**os.environ, **told}, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return Path(done.stdout.strip())
    return None


def _install(environment: Path, python: Path, wheel: Path) -> list[str]:
    """The wheel alone, as on a cluster: it can be imported without Spark, and says what is missing."""
    run(python, "-m", "venv", environment)
    inside = environment / "bin" / "python"
    run(inside, "-m", "pip", "install", "-q", wheel)
    run(inside, "-m", "pip", "check")
    found = run(inside, "-I", "-c", "import pyspark_mq; print(pyspark_mq.__version__, pyspark_mq.__file__)").split()
    expected = wheel.name.split("-")[1]
    return [] if found[0] == expected and str(environment) in found[1] else [f"imported is {' from '.join(found)}"]


def _quick_start(python: Path, wheel: Path, spark: str, node: RabbitNode) -> list[str]:
    run(python, "-m", "pip", "install", "-q", f"{wheel}[spark]", f"pyspark{spark}")
    with tempfile.TemporaryDirectory(prefix="pyspark-mq-release-") as folder:
        try:
            done = quick_start.run(python, node.url(), Path(folder))
        finally:
            node.delete("orders")
    return _some(done.problem())


# -- audit ------------------------------------------------------------------------------------


def _audit(python: Path) -> list[str]:
    """Every pinned dependency, of users and of development."""
    report = _WORK / "audit.json"
    report.unlink(missing_ok=True)
    accepted = [argument for name in _ACCEPTED for argument in ("--ignore-vuln", name)]
    asked = ["--requirement", str(LOCK), "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    done = subprocess.run(
        [str(python), "-m", "pip_audit", *asked, *accepted, "--format", "json", "--output", str(report)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not report.exists():
        return [f"it could not ask: {done.stderr.strip()[-300:]}"]
    return audit_problems(json.loads(report.read_text("utf-8"))["dependencies"])


def audit_problems(dependencies: Sequence[Mapping[str, object]]) -> list[str]:
    """What pip-audit found, and what it could not ask about: silence is no good word."""
    unknown = [str(one["name"]) for one in dependencies if "skip_reason" in one]
    found = [
        f"{one['name']} {one['version']}: {', '.join(str(each['id']) for each in vulnerable)}"
        for one in dependencies
        if isinstance(vulnerable := one.get("vulns"), list) and vulnerable
    ]
    if not dependencies:
        return ["nothing was looked at"]
    shown = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
    return [
        *found,
        *_some(f"{len(unknown)} of {len(dependencies)} could not be asked about: {shown}" if unknown else ""),
    ]


# -- processes --------------------------------------------------------------------------------


def run(*command: object) -> str:
    """What it prints.

    Raises:
        FailedError: it failed.
    """
    # Elsewhere than in the checkout, which `python -m` would look into first.
    _WORK.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=_WORK)
    if done.returncode != 0:
        told = (done.stdout + done.stderr).strip()[-1500:]
        raise FailedError(f"{' '.join(map(str, command[1:4]))} failed: {told}")
    return done.stdout


def _some(problem: str) -> list[str]:
    return [problem] if problem else []


if __name__ == "__main__":
    sys.exit(main())
