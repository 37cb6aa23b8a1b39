"""The compatibility matrix: ``make matrix``. Contract tests, failure matrix and a chaos test on every matrix entry; the
same source with the oldest and the newest libraries; and a page of it all.

A run may be stopped at any moment and started again: what is done at this commit is in `build/matrix/<commit>`, and is
not done again, test by test; a chaos test goes on in its folder. So it can be run in pieces, entry by entry, on any
machine. A test that failed is run again with the same command; its last outcome counts, and the page says how many
tests needed that. What an entry gave is kept beside the page, in `docs/matrix/<entry>.json`, with its date, its commit
and the versions, and the page is written from all of them. Chaos tests of clusters are run by themselves, by ``make
soak`` with ``--cluster --report docs/matrix/<cluster>[<version>]-<protocol>.cluster.json``, and are on the page too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark_mq import __version__
from testbed.chaos.faults import FAULTS
from testbed.chaos.page import PROTOCOLS, TITLES
from testbed.clusters.factory import CLUSTERS
from testbed.commit import last_change, package_commit
from testbed.process import NodeError
from testbed.spark.versions import VERSIONS
from tests.support.entries import ALL_ENTRIES, CHAOS_ENTRIES, MatrixEntry, entry_node
from tools.release import interpreter

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "reports" / "compatibility.md"
_KEPT = _ROOT / "docs" / "matrix"
_WORK = _ROOT / "build" / "matrix"
#: Set of libraries -> Python, how uv resolves what pyproject.toml allows, and the Spark.
_LIBRARIES = {"oldest": ("3.10", "lowest-direct", "4.0.0"), "newest": ("3.13", "highest", VERSIONS[-1])}
#: What they are tried with: receiving and writing over each protocol, Redis, and Spark.
_LIBRARY_TESTS = (
    "tests/contract/test_session.py", "tests/contract/test_sink.py", "tests/integration/test_redis_store.py",
    "tests/integration/test_quick_start.py", "tests/integration/test_write.py",
)  # fmt: skip
_LIBRARY_ENTRIES = "rabbitmq-amqp-0-9-1-classic,rabbitmq-stomp,activemq-stomp,rabbitmq4.3-amqp-1.0-quorum"
#: What is named on the page, and what the tests need besides.
_NAMED = ("pyspark", "pyarrow", "numpy", "pika", "stomp-py", "python-qpid-proton", "redis")
_TOOLS = ("pytest>=8.2,<9", "pytest-timeout", "pytest-xdist", "pytest-rerunfailures", "hypothesis", "psutil", "rich")


@dataclass
class Result:
    """What one matrix entry gave.

    Attributes:
        matrix entry: which.
        version: of the broker; empty if it could not be started.
        package: version of this package that ran; empty in what was kept before it was noted, as `commit`.
        commit: that last changed the package.
        python, spark: their versions.
        date: when contract tests and failure matrix were run.
        obstacle: why the matrix entry could not run; empty if it could.
        tests: contract -> outcome -> reason -> how many tests.
        retried: how many tests passed only when they were run again.
        chaos test: counts of the chaos test; empty if there was none.
        problem: what did not end as it should, beside what tests and chaos test tell.
    """

    entry: MatrixEntry
    version: str = ""
    package: str = ""
    commit: str = ""
    python: str = ""
    spark: str = ""
    date: str = ""
    obstacle: str = ""
    tests: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    retried: int = 0
    chaos: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def holds(self) -> bool:
        """Did everything that ran pass?"""
        failed = any("failed" in outcomes for outcomes in self.tests.values())
        return not failed and not self.problem and bool(self.chaos.get("holds", True))


def main() -> int:
    """Run the chosen matrix entries and write the page; 0 if everything that ran passed."""
    arguments = _arguments()
    _KEPT.mkdir(parents=True, exist_ok=True)
    if not arguments.page_only:
        work = _work(anew=arguments.anew)
        _run([entry for entry in ALL_ENTRIES if entry.name in arguments.entries], arguments, work)
        for libraries in arguments.libraries:
            _run_libraries(libraries, work, arguments.processes)
    results = [_result(entry) for entry in ALL_ENTRIES]
    clusters, libraries = _clusters(), {name: _read(_libraries_file(name)) for name in _LIBRARIES}
    _PAGE.write_text(page(results, clusters, libraries, __version__), "utf-8")
    print(f"written: {_PAGE.relative_to(_ROOT)}")
    broken = [result.entry.name for result in results if not result.holds]
    broken += [f"{chaos['cluster']} over {chaos['protocol']}" for chaos in clusters if not chaos["holds"]]
    broken += [f"{name} libraries" for name, told in libraries.items() if told.get("failed") or told.get("obstacle")]
    if broken:
        print(f"failed: {', '.join(broken)}")
    return 1 if broken else 0


# -- running ----------------------------------------------------------------------------------


def _work(*, anew: bool) -> Path:
    """The folder with what was done at this commit, pages left aside. What changed files gave is not gone on with."""
    folder = _WORK / last_change(".", ":(exclude)docs")
    if anew or folder.name.endswith("-dirty"):
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(wanted: Sequence[MatrixEntry], arguments: argparse.Namespace, work: Path) -> None:
    entries = [entry for entry in wanted if _can_run(entry)]
    if entries and not arguments.chaos_only:
        _run_tests(entries, arguments, work)
    for entry in entries:
        if arguments.faults and entry in CHAOS_ENTRIES:
            _run_chaos(entry, arguments, work)


def _can_run(entry: MatrixEntry) -> bool:
    """Whether the broker of a matrix entry starts; notes its version, or why it does not."""
    try:
        with entry_node(entry.broker, entry.version) as node:
            _tell(entry, version=node.version, obstacle="")
    except NodeError as absent:
        _tell(entry, obstacle=str(absent).splitlines()[0])
        print(f"{entry.name}: cannot run: {absent}", flush=True)
        return False
    return True


def _tell(entry: MatrixEntry, **facts: Any) -> None:
    _write(_file(entry), {**_read(_file(entry)), **facts})


def _read(file: Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return known


def _write(file: Path, known: dict[str, Any]) -> None:
    file.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def _stamp() -> dict[str, str]:
    """What ran, and when."""
    return {"package": __version__, "commit": package_commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}


def _tries(report: Path) -> dict[str, list[dict[str, Any]]]:
    """Test -> what it wrote each time it was run; the last line of a run that was killed may be cut off."""
    tries: dict[str, list[dict[str, Any]]] = {}
    for line in report.read_text("utf-8").splitlines() if report.exists() else []:
        if line.endswith("}"):
            told = json.loads(line)
            tries.setdefault(told["id"], []).append(told)
    return tries


def _retried(tries: dict[str, list[dict[str, Any]]]) -> int:
    """How many tests passed only when they were run again."""
    return sum(len(told) > 1 and told[-1]["outcome"] == "passed" for told in tries.values())


def _outcomes(tries: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, dict[str, int]]]:
    """Contract -> outcome -> reason -> tests."""
    tests: dict[str, dict[str, dict[str, int]]] = {}
    for *_, told in tries.values():
        if told["contract"]:
            reason = "" if told["outcome"] == "passed" else " ".join((told["reason"] or told["test"]).split())
            reasons = tests.setdefault(told["contract"], {}).setdefault(told["outcome"], {})
            reasons[reason] = reasons.get(reason, 0) + 1
    return tests


def _run_tests(entries: Sequence[MatrixEntry], arguments: argparse.Namespace, work: Path) -> None:
    """Contract tests and failure matrix, or some files of them, without the tests that did not fail at this commit."""
    began = time.monotonic()
    tries = {test: told for entry in entries for test, told in _tries(_report(work, entry)).items()}
    done = [test for test, told in tries.items() if told[-1]["outcome"] != "failed"]
    (work / "done.json").write_text(json.dumps(done), "utf-8")
    which = ["--entries", ",".join(entry.name for entry in entries), "--thorough"]
    which += ["--matrix-report", str(work), "--matrix-done", str(work / "done.json")]
    side_by_side = ["--numprocesses", str(arguments.processes), "--dist", "loadgroup"]
    files = arguments.contract or ("tests/contract", "tests/faults")
    code = _program(sys.executable, "pytest", "-q", *files, *which, *side_by_side)
    # 1: tests have failed, which the report tells; 5: all had run before.
    whole = code in (0, 1, 5)
    for entry in entries:
        tries = _tries(_report(work, entry))
        tests = _outcomes(tries)
        if arguments.contract:  # put beside what is kept of the rest, whose date stays
            _tell(entry, tests={**_read(_file(entry)).get("tests", {}), **tests})
        elif whole:
            versions = {"python": platform.python_version(), "spark": version("pyspark")}
            _tell(entry, **_stamp(), **versions, tests=tests, retried=_retried(tries), problem="")
    seconds = round(time.monotonic() - began)
    print(f"contract tests and failure matrix of {len(entries)} matrix entries in {seconds} s", flush=True)
    if not whole:
        ran = sum(len(_tries(_report(work, entry))) for entry in entries)
        raise SystemExit(f"stopped after {ran} tests: go on with the same command")


def _run_chaos(entry: MatrixEntry, arguments: argparse.Namespace, work: Path) -> None:
    """A chaos test, gone on with where one at this commit was stopped."""
    report, folder = work / f"{entry.name}.chaos.json", work / f"{entry.name}.chaos"
    if not report.exists():
        size = ["--messages", str(arguments.messages), "--rate", str(arguments.rate), "--faults", str(arguments.faults)]
        place = ["--broker", entry.broker, "--protocol", entry.protocol, "--version", entry.version]
        place += ["--quorum"] if entry.kind == "quorum" else []
        where = ["--folder", str(folder), "--report", str(report)]
        code = _program(sys.executable, "testbed.chaos.soak", *place, *size, *where)
        if code not in (0, 1):
            raise SystemExit(f"stopped in the chaos test of {entry.name}: go on with the same command")
    counted = _read(report)
    told = {"chaos": {**_stamp(), **counted}} if counted else {"problem": "the chaos test did not run to its end"}
    _tell(entry, **told)
    shutil.rmtree(folder, ignore_errors=True)


def _run_libraries(name: str, work: Path, processes: int) -> None:
    """Try what pyproject.toml allows at an end of it, in an environment of its own."""
    done = work / f"libraries-{name}.json"
    if not done.exists():
        python, resolution, spark = _LIBRARIES[name]
        found = interpreter(python)
        told: dict[str, Any] = {**_stamp(), "python": python}
        if found is None:
            told["obstacle"] = f"Python {python} is not on this machine"
        else:
            environment = _environment(work / name, found, resolution, spark)
            told["versions"] = _versions_in(environment)
            told |= _tried(environment, work / f"libraries-{name}.xml", processes)
        _write(done, told)
    _write(_libraries_file(name), _read(done))


def _environment(folder: Path, python: Path, resolution: str, spark: str) -> Path:
    """The interpreter of an environment with the libraries of a resolution, made if it is not there."""
    inside, stamp = folder / "bin" / "python", folder / "made"
    if not stamp.exists():
        subprocess.run([str(python), "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "-q", "--python", str(inside)]
        package = f"{_ROOT}[spark,stomp,amqp10,redis]"
        subprocess.run([*uv, "--resolution", resolution, package, f"pyspark=={spark}"], check=True)
        subprocess.run([*uv, *_TOOLS], check=True)
        stamp.touch()
    return inside


def _versions_in(python: Path) -> dict[str, str]:
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {_NAMED!r}}}))"
    told = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout
    return dict(json.loads(told))


def _tried(python: Path, report: Path, processes: int) -> dict[str, Any]:
    """How many tests passed, and which did not."""
    side_by_side = ["--numprocesses", str(processes), "--dist", "loadgroup"]
    _program(
        python, "pytest", "-q", "--entries", _LIBRARY_ENTRIES, *side_by_side, f"--junitxml={report}", *_LIBRARY_TESTS
    )
    if not report.exists():
        return {"passed": 0, "failed": ["the tests did not run to their end"]}
    cases = list(ET.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {"passed": len(cases) - len(bad) - len(skipped), "failed": [str(case.get("name")) for case in bad]}


def _program(python: str | Path, module: str, *arguments: str) -> int:
    """Run a module to its end; Ctrl-C reaches it too, and its exit code says so."""
    environment = {**os.environ, "CI": "true", "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "dev")])}
    with subprocess.Popen([str(python), "-m", module, *arguments], cwd=_ROOT, env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def _file(entry: MatrixEntry) -> Path:
    return _KEPT / f"{entry.name}.json"


def _libraries_file(name: str) -> Path:
    return _KEPT / f"libraries-{name}.json"


def _report(work: Path, entry: MatrixEntry) -> Path:
    return work / f"{entry.name}.jsonl"


# -- reading and writing ----------------------------------------------------------------------


def _result(entry: MatrixEntry) -> Result:
    known = _read(_file(entry))
    return Result(entry, **known) if known else Result(entry, obstacle="not run")


def _clusters() -> list[dict[str, Any]]:
    """What the chaos tests of clusters counted, in the order of brokers and protocols."""
    names = [name for cluster in CLUSTERS for name in (cluster, *sorted(_versions(cluster)))]
    files = [_KEPT / f"{name}-{protocol}.cluster.json" for name in names for protocol in PROTOCOLS]
    return [json.loads(file.read_text("utf-8")) for file in files if file.exists()]


def _versions(cluster: str) -> set[str]:
    """`<cluster><version>` for the versions beside the default that there are reports of."""
    found = (file.name.removesuffix(".cluster.json") for file in _KEPT.glob(f"{cluster}[0-9]*.cluster.json"))
    return {name.partition("-")[0] for name in found}


def page(
    results: Sequence[Result], clusters: Sequence[dict[str, Any]], libraries: dict[str, dict[str, Any]], package: str
) -> str:
    """The page as Markdown.

    Args:
        results: of each matrix entry.
        clusters: of chaos tests.
        libraries: name of a set -> what it gave.
        package: version of this package: rows of another minor version are marked.
    """
    contracts = list(dict.fromkeys(contract for result in results for contract in result.tests))
    notes: list[str] = []
    ran = [result for result in results if not result.obstacle]
    lines = [
        "# Compatibility",
        "",
        "`make matrix` writes this page from its results. Every contract and every row of the failure matrix is a set",
        "of tests on a real broker (`tests/contract`, `tests/faults`), the same for all. A number says how many of",
        "these tests passed, and `-` marks tests of another protocol, or tests that are newer than the run. The notes",
        "say why a test does not apply. `of` is the last change of the package before the run; rows of another minor",
        "version of this package say so. `docs/matrix` has the results as JSON.",
        "",
        "## Matrix entries",
        "",
        *_table(
            ["entry", "broker", "protocol", "queue", "contract tests and faults", "on", "of", "Python, Spark", "chaos"],
            (_entry_row(result, package) for result in results),
        ),
        "",
        "Chaos tests run on one matrix entry of each broker and protocol.",
        "",
        *_libraries_section(libraries, package),
        "## Contract tests and failure matrix",
        "",
        *_table(
            ["", *(_short(result.entry) for result in ran)],
            ([contract, *_cells(contract, ran, notes)] for contract in contracts),
        ),
        "",
        *(f"{number}. {note}" for number, note in enumerate(notes, start=1)),
        "",
        "## Chaos tests",
        "",
        "A publisher sends messages, and a Spark job writes them into parquet files. A proxy between broker and job",
        "cuts connections, also in mid-frame, limits them to 100 kB/s, and falls silent. `kill -9` hits the driver,",
        "the JVM, the Python worker and the broker, and SIGSTOP stops worker and broker for 15 s. `make soak` runs",
        "this, and a separate checker reads its history.",
        "",
        *_table(_CHAOS_HEAD, (_chaos_row(result) for result in ran if result.chaos)),
        "",
        "Faults by kind:",
        "",
        *_table(["", *_chaos_names(ran)], _chaos_faults(ran)),
        "",
        *_clusters_section(clusters),
    ]
    return "\n".join(lines)


def _clusters_section(clusters: Sequence[dict[str, Any]]) -> list[str]:
    if not clusters:
        return []
    kinds: dict[str, dict[str, None]] = {}
    for chaos in clusters:
        kinds.setdefault(chaos["cluster"], {}).update(dict.fromkeys(map(str.strip, chaos["faults"])))
    return [
        "## Clusters",
        "",
        "`make soak ARGS=--cluster` runs several brokers on one machine, all of them candidates in `url`. A publisher",
        "sends to a broker that is up, and a Spark job writes parquet files. Each fault is healed before the next.",
        "",
        *_table(_CLUSTER_HEAD, map(_cluster_row, clusters)),
        "",
        "`dropped` counts redeliveries, and messages that the publisher sent again, that were recognised. The faults:",
        "",
        *(f"- {cluster}: {'; '.join(faults)}" for cluster, faults in kinds.items()),
        "",
    ]


_CLUSTER_HEAD = (
    "cluster", "protocol", "sent", "lost", "twice", "left", "faults", "reconnects", "dropped", "time", "on", "of",
)  # fmt: skip


def _cluster_row(chaos: dict[str, Any]) -> list[str]:
    sent, lost, twice, left = (chaos[name] for name in ("messages sent", "lost", "duplicated", "left in the queue"))
    dropped = chaos["duplicates recognised and dropped"]
    numbers = [sent, lost, twice + chaos["unexpected"], left, chaos["faults in all"], chaos["reconnects"], dropped]
    name, _, kind = chaos["cluster"].partition(", ")
    place = [f"{name} {chaos['version']}, {kind}", PROTOCOLS[chaos["protocol"]]]
    problem = f"**{chaos['problem']}**" if chaos["problem"] else f"{chaos['seconds']} s"
    ran = [chaos["date"], chaos.get("commit", "")]
    return [*place, *(f"{number:,}" for number in numbers), problem, *ran]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def _short(entry: MatrixEntry) -> str:
    return f"`{entry.name}`"


def _libraries_section(libraries: dict[str, dict[str, Any]], package: str) -> list[str]:
    return [
        "## Libraries",
        "",
        "These tests receive and write over each protocol, and run Redis, the quick start and a scheduled job, with",
        "the oldest and the newest versions that `pyproject.toml` allows.",
        "",
        *_table(
            ["", "Python", *_NAMED, "tests", "on", "of"],
            (_libraries_row(name, told, package) for name, told in libraries.items()),
        ),
        "",
    ]


def _libraries_row(name: str, told: dict[str, Any], package: str) -> list[str]:
    versions = [told.get("versions", {}).get(one, "") for one in _NAMED]
    if not told or told.get("obstacle"):
        return [name, told.get("python", ""), *versions, told.get("obstacle") or "not run", "", ""]
    wrong = [f"**{', '.join(told['failed'])} failed**"] * bool(told["failed"])
    return [name, told["python"], *versions, ", ".join([f"{told['passed']} passed", *wrong]), *_when(told, package)]


def _when(told: dict[str, Any], package: str) -> list[str]:
    """Date and commit; of another minor version of this package it is marked."""
    if not told["commit"]:
        return [told["date"], "**before commits were noted**"]
    other = _minor(told["package"]) != _minor(package)
    return [told["date"], told["commit"] + (f" **of {told['package']}**" if other else "")]


def _minor(package: str) -> str:
    return ".".join(package.split(".")[:2])


def _entry_row(result: Result, package: str) -> list[str]:
    entry = result.entry
    broker = f"{TITLES[entry.broker]} {result.version or entry.version}".strip()
    row = [_short(entry), broker, PROTOCOLS[entry.protocol], entry.kind or "default"]
    if result.obstacle:
        return [*row, result.obstacle if result.obstacle == "not run" else f"cannot run: {result.obstacle}", *[""] * 4]
    passed, failed = (
        sum(sum(outcomes.get(kind, {}).values()) for outcomes in result.tests.values()) for kind in ("passed", "failed")
    )
    chaos = "-" if not result.chaos else "holds" if result.chaos["holds"] else "**failed**"
    wrong = [f"{result.retried} when run again"] * bool(result.retried)
    wrong += [f"**{failed} failed**"] * bool(failed) + [f"**{result.problem}**"] * bool(result.problem)
    ran = [*_when(vars(result), package), ", ".join(filter(None, (result.python, result.spark)))]
    return [*row, ", ".join([f"{passed} passed", *wrong]), *ran, chaos]


def _cells(contract: str, results: Sequence[Result], notes: list[str]) -> list[str]:
    return [_outcome(result.tests.get(contract, {}), notes) for result in results]


def _outcome(outcomes: dict[str, dict[str, int]], notes: list[str]) -> str:
    passed = sum(outcomes.get("passed", {}).values())
    said = []
    for kind, sign in (("skipped", "no"), ("failed", "**failed**")):
        numbers = sorted({_note(reason, notes) for reason in outcomes.get(kind, ())})
        if numbers:
            said.append(f"{sign} ({', '.join(map(str, numbers))})")
    return ", ".join(([str(passed)] if passed else []) + said) or "-"


def _note(reason: str, notes: list[str]) -> int:
    if reason not in notes:
        notes.append(reason)
    return notes.index(reason) + 1


_CHAOS_HEAD = [
    "entry",
    "date",
    "broker",
    "Spark",
    "sent",
    "lost",
    "twice",
    "left",
    "faults",
    "came again, dropped",
    "time",
    "of",
]


def _chaos_row(result: Result) -> list[str]:
    chaos = result.chaos
    sent, lost, twice, left = (chaos[name] for name in ("messages sent", "lost", "duplicated", "left in the queue"))
    dropped = chaos["duplicates recognised and dropped"]
    numbers = [sent, lost, twice + chaos["unexpected"], left, chaos["faults in all"], dropped]
    ran = [chaos.get("date", ""), chaos["version"], chaos.get("spark", "")]
    ended = [f"{chaos['seconds']} s", chaos.get("commit", "")]
    return [_short(result.entry), *ran, *(f"{number:,}" for number in numbers), *ended]


def _chaos_names(results: Sequence[Result]) -> list[str]:
    return [_short(result.entry) for result in results if result.chaos]


def _chaos_faults(results: Sequence[Result]) -> Iterable[list[str]]:
    reports = [result.chaos for result in results if result.chaos]
    kinds = dict.fromkeys(kind for chaos in reports for kind in chaos if kind in FAULTS)
    return ([kind, *(str(chaos.get(kind, "-")) for chaos in reports)] for kind in kinds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    names = [entry.name for entry in ALL_ENTRIES]
    parser.add_argument("--entries", type=_names, default=None, help=f"of {','.join(names)}")
    sets = list(_LIBRARIES)
    parser.add_argument(
        "--libraries", type=_names, default=None, help=f"of {','.join(sets)}; all of them with all entries, else none"
    )
    parser.add_argument("--messages", type=int, default=30_000, help="of each chaos test")
    parser.add_argument("--faults", type=int, default=12, help="of each chaos test; 0 for no chaos test")
    parser.add_argument("--anew", action="store_true", help="forget what was done at this commit")
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second in the chaos tests")
    parser.add_argument("--chaos-only", action="store_true", help="leave the tests out")
    parser.add_argument("--processes", type=int, default=2, help="that run tests side by side")
    parser.add_argument("--contract", nargs="+", help="files of tests: only these, beside what earlier runs gave")
    parser.add_argument("--page-only", action="store_true", help="write the page from what earlier runs left")
    arguments = parser.parse_args()
    if arguments.libraries is None:
        arguments.libraries = sets if arguments.entries is None else []
    if arguments.entries is None:
        arguments.entries = names
    for option, wanted, known in (("entries", arguments.entries, names), ("libraries", arguments.libraries, sets)):
        if unknown := set(wanted) - set(known):
            parser.error(f"--{option}: there is no {', '.join(sorted(unknown))}")
    return arguments


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main())
