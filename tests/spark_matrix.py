"""What holds on each Spark: ``make spark-matrix``. The same tests in real Sparks of several versions, and a page of it.

Each version gets a virtual environment in ``build/spark`` with that Spark, from PyPI; everything else it finds in the
environment of set-up, behind its own on the path. What was run leaves ``docs/matrix/spark-<version>.json``, so versions
and parts can be run one by one, on any machine, and the page be written from all.
Tests ask a Spark what it can do, and never read that from its number.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from testbed.brokers.rabbitmq import RabbitNode
from testbed.commit import package_commit
from testbed.distributions import find_java
from testbed.process import NodeError
from testbed.spark.versions import VERSIONS
from tests.support.spark_driver import POINTS, DriverMatrix

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "reports" / "spark.md"
_WORK = _ROOT / "build" / "spark"
#: That of set-up.
_UV = Path(sys.executable).with_name("uv")
_KEPT = _ROOT / "docs" / "matrix"
_TESTS = ("tests/integration/test_spark.py", "tests/integration/test_sink.py")
_CHAOS = ("--messages", "50000", "--faults", "30")
#: One cell of broker and protocol for each protocol.
_STORMS = {"amqp-0-9-1": "rabbitmq", "stomp": "activemq", "amqp-1.0": "artemis"}
_BEGIN, _END = "<!-- written by make spark-matrix -->", "<!-- end -->"


def main() -> int:
    """Run the chosen versions and write the page; 0 if everything passed."""
    arguments = _arguments()
    _WORK.mkdir(parents=True, exist_ok=True)
    for version in arguments.versions if not arguments.page_only else ():
        try:
            python = spark_python(version)
        except NodeError as absent:
            _tell(version, obstacle=str(absent))
            print(f"Spark {version}: {absent}", flush=True)
            continue
        _tell(version, obstacle="", java=_java_version(), python=platform.python_version())
        for part in arguments.parts:
            began = time.monotonic()
            outcome = _PARTS[part](version, python)
            seconds = round(time.monotonic() - began)
            outcome |= {"date": _today(), "commit": package_commit(), "seconds": seconds}
            _tell(version, **{part: outcome})
            print(f"Spark {version}: {part}: {outcome}", flush=True)
    known = {version: _known(version) for version in VERSIONS}
    _write_page(known)
    broken = [version for version, told in known.items() if not _holds(told)]
    if broken:
        print(f"failed: {', '.join(broken)}")
    return 1 if broken else 0


# -- an environment for each ------------------------------------------------------------------


def spark_python(version: str) -> Path:
    """The interpreter of an environment with that Spark, made if it is not there.

    Args:
        version: in full, or the beginning of one of :data:`VERSIONS`.

    Raises:
        NodeError: it cannot be made, for example as PyPI cannot be reached.
    """
    version = next((known for known in VERSIONS if f"{known}.".startswith(f"{version}.")), version)
    _WORK.mkdir(parents=True, exist_ok=True)
    # Another run of this checkout, or another test of this run, may be making it.
    with (_WORK / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(_WORK / version, f"pyspark=={version}")


def _made(folder: Path, spark: str) -> Path:
    python = folder / "bin" / "python"
    # Written last, so it says as well that the rest is there.
    others = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}), "others.pth")
    wanted = "\n".join([sysconfig.get_path("purelib"), str(_ROOT), str(_ROOT / "dev")])
    if others.exists() and others.read_text("utf-8") == wanted:
        return python
    _install(sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder))
    try:
        # As set-up does, and for its reasons.
        given = ("--compile-bytecode", "--config-settings-package", "pyspark:--build-option=--compression=stored")
        with tempfile.TemporaryDirectory(prefix="uv-", dir=_WORK) as cache:
            _install(str(_UV), "pip", "install", "-q", "--cache-dir", cache, "--python", str(python), *given, spark)
    except (NodeError, FileNotFoundError):
        _install(sys.executable, "-m", "pip", "--python", str(python), "install", "-q", spark)
    others.write_text(wanted, "utf-8")
    return python


def _install(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NodeError(f"{' '.join(command[1:4])} failed: {(done.stdout + done.stderr).strip()[-800:]}")


# -- what is run ------------------------------------------------------------------------------


def run_tests(version: str, python: Path) -> dict[str, Any]:
    """The tests with a real Spark; what passed, and why others were left out."""
    report = _WORK / f"{version}.xml"
    report.unlink(missing_ok=True)
    _program(python, "pytest", "-q", "-p", "no:cacheprovider", "--all", *_TESTS, f"--junitxml={report}")
    if not report.exists():
        return {"passed": 0, "failed": ["they did not run to their end"], "skipped": {}}
    passed, failed, skipped = 0, [], dict[str, int]()
    for case in ET.parse(report).getroot().iter("testcase"):
        skip = case.find("skipped")
        if skip is not None:
            reason = str(skip.get("message"))
            skipped[reason] = skipped.get(reason, 0) + 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(str(case.get("name")))
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": skipped}


def run_driver(_version: str, python: Path) -> dict[str, Any]:
    """The driver's rows of the failure matrix."""
    with RabbitNode() as node, tempfile.TemporaryDirectory(prefix="pyspark-mq-spark-") as folder:
        queue = f"driver-{uuid.uuid4().hex[:8]}"
        node.declare(queue)
        options = {"broker": "rabbitmq", "url": node.url(), "queue": queue}
        matrix = DriverMatrix(python, node, queue, Path(folder), options)
        try:
            matrix.run()
        except AssertionError as wrong:
            return {"passed": matrix.passed, "problem": str(wrong) or repr(wrong)}
    return {"passed": matrix.passed, "problem": ""}


def run_chaos(version: str, python: Path, protocol: str) -> dict[str, Any]:
    """A short soak over one protocol."""
    report = _WORK / f"{version}.chaos.json"
    report.unlink(missing_ok=True)
    cell = ("--broker", _STORMS[protocol], "--protocol", protocol)
    _program(python, "testbed.chaos.soak", *_CHAOS, *cell, "--report", str(report))
    return json.loads(report.read_text("utf-8")) if report.exists() else {"holds": False, "faults in all": 0}


_PARTS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "tests": run_tests,
    "driver": run_driver,
    **{f"chaos-{protocol}": partial(run_chaos, protocol=protocol) for protocol in _STORMS},
}


def _program(python: Path, module: str, *arguments: str) -> None:
    environment = {**os.environ, "CI": "true", "PYTHONPATH": str(_ROOT)}
    subprocess.run([str(python), "-m", module, *arguments], cwd=_ROOT, env=environment, check=False)


def _java_version() -> str:
    told = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'"([\d.]+)', told)
    return found[1] if found else "?"


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


# -- what is known ----------------------------------------------------------------------------


def _known(version: str) -> dict[str, Any]:
    file = _KEPT / f"spark-{version}.json"
    return dict(json.loads(file.read_text("utf-8"))) if file.exists() else {}


def _tell(version: str, **facts: Any) -> None:
    file = _KEPT / f"spark-{version}.json"
    file.write_text(json.dumps({**_known(version), **facts}, indent=1) + "\n", "utf-8")


def _holds(told: dict[str, Any]) -> bool:
    tests, driver, *storms = (told.get(part) for part in _PARTS)
    return (
        (tests is None or not tests["failed"])
        and (driver is None or not driver["problem"])
        and all(chaos is None or bool(chaos["holds"]) for chaos in storms)
    )


def _write_page(known: dict[str, dict[str, Any]]) -> None:
    """Put what was run between the marks of the page; what is around them is written by hand."""
    text = _PAGE.read_text("utf-8")
    before, after = text[: text.index(_BEGIN) + len(_BEGIN)], text[text.index(_END) :]
    _PAGE.write_text("\n".join([before, "", *table(known), "", after]), "utf-8")
    print(f"written: {_PAGE.relative_to(_ROOT)}")


def table(known: dict[str, dict[str, Any]]) -> list[str]:
    """What was run on each version, as Markdown."""
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("Python, Java", lambda told: f"{told['python']}, {told['java']}" if told.get("python") else "not run"),
        ("tests with a real Spark", lambda told: _said(told, "tests", _tests_entry)),
        ("driver killed at five points", lambda told: _said(told, "driver", _driver_entry)),
        *(
            (f"{broker}, {protocol}: faults; sent, lost, twice, left", partial(_said_of_storm, protocol))
            for protocol, broker in _STORMS.items()
        ),
    ]
    return [
        "| | " + " | ".join(f"Spark {version}" for version in known) + " |",
        "|---|" + "---|" * len(known),
        *(f"| {name} | " + " | ".join(entry(told) for told in known.values()) + " |" for name, entry in rows),
    ]


def _said(told: dict[str, Any], part: str, entry: Callable[[dict[str, Any]], str]) -> str:
    if told.get("obstacle"):
        return f"cannot run: {told['obstacle'].splitlines()[0]}"
    if part not in told:
        return "not run"
    return "; ".join(filter(None, (entry(told[part]), told[part]["date"], told[part].get("commit"))))


def _said_of_storm(protocol: str, told: dict[str, Any]) -> str:
    return _said(told, f"chaos-{protocol}", _chaos_entry)


def _tests_entry(tests: dict[str, Any]) -> str:
    skipped = sum(tests["skipped"].values())
    failed = f", **{len(tests['failed'])} failed**" if tests["failed"] else ""
    apply = "does not apply" if skipped == 1 else "do not apply"
    return f"{tests['passed']} passed{failed}" + (f", {skipped} {apply}" if skipped else "")


def _driver_entry(driver: dict[str, Any]) -> str:
    return f"**failed** after {len(driver['passed'])}" if driver["problem"] else f"{len(POINTS)} held"


def _chaos_entry(chaos: dict[str, Any]) -> str:
    if "messages sent" not in chaos:
        return "**failed**"
    names = ("messages sent", "lost", "duplicated", "left in the queue")
    counts = ", ".join(f"{chaos[name]:,}" for name in names)
    return ("" if chaos["holds"] else "**failed** ") + f"{chaos['faults in all']}; {counts}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make spark-matrix", description=__doc__)
    given = {"type": lambda text: text.split(",")}
    parser.add_argument("--versions", **given, default=list(VERSIONS), help=f"of PyPI; {','.join(VERSIONS)}")
    parser.add_argument("--parts", **given, default=list(_PARTS), help=f"of {','.join(_PARTS)}")
    parser.add_argument("--page-only", action="store_true", help="write the page from what earlier runs left")
    arguments = parser.parse_args()
    for name, wanted, there in (("versions", arguments.versions, VERSIONS), ("parts", arguments.parts, _PARTS)):
        if set(wanted) - set(there):
            parser.error(f"--{name}: there is no {', '.join(sorted(set(wanted) - set(there)))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
