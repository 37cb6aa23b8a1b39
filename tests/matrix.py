"""The compatibility matrix: ``make matrix``. Contract tests and failure matrix on every matrix entry, chaos tests, and
a page of it all.

What each matrix entry gave is kept beside the page, in `docs/matrix/<entry>.json`, with its date, so that matrix
entries can be run one by one, on any machine, and the page is written from all of them. Chaos tests of clusters are
run by themselves, by ``make soak`` with ``--cluster --report
docs/matrix/<cluster>[<version>]-<protocol>.cluster.json``, and are on the page too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.chaos.faults import FAULTS
from testbed.chaos.page import PROTOCOLS, TITLES
from testbed.clusters.factory import CLUSTERS
from testbed.process import NodeError
from tests.support.entries import ALL_ENTRIES, CHAOS_ENTRIES, MatrixEntry, entry_node

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "reports" / "compatibility.md"
_KEPT = _ROOT / "docs" / "matrix"
_WORK = _ROOT / "build" / "matrix"


@dataclass
class Result:
    """What one matrix entry gave.

    Attributes:
        matrix entry: which.
        version: of the broker; empty if it could not be started.
        date: when contract tests and failure matrix were run.
        obstacle: why the matrix entry could not run; empty if it could.
        tests: contract -> outcome -> reason -> how many tests.
        chaos test: counts of the chaos test; empty if there was none.
        problem: what did not end as it should, beside what tests and chaos test tell.
    """

    entry: MatrixEntry
    version: str = ""
    date: str = ""
    obstacle: str = ""
    tests: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
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
    for folder in (_WORK, _KEPT):
        folder.mkdir(parents=True, exist_ok=True)
    if not arguments.page_only:
        _run([entry for entry in ALL_ENTRIES if entry.name in arguments.entries], arguments)
    results = [_result(entry) for entry in ALL_ENTRIES]
    clusters = _clusters()
    _PAGE.write_text(page(results, clusters), "utf-8")
    print(f"written: {_PAGE.relative_to(_ROOT)}")
    broken = [result.entry.name for result in results if not result.holds]
    broken += [f"{chaos['cluster']} over {chaos['protocol']}" for chaos in clusters if not chaos["holds"]]
    if broken:
        print(f"failed: {', '.join(broken)}")
    return 1 if broken else 0


# -- running ----------------------------------------------------------------------------------


def _run(wanted: Sequence[MatrixEntry], arguments: argparse.Namespace) -> None:
    if arguments.contract:
        _add_contract(wanted, arguments)
        return
    entries = [entry for entry in wanted if _can_run(entry, chaos_only=arguments.chaos_only)]
    if not entries:
        return
    if not arguments.chaos_only:
        whole = _run_tests(entries, arguments)
        for entry in entries:
            _tell(entry, date=time.strftime("%Y-%m-%d", time.gmtime()), tests=_outcomes_of(entry))
            if not whole:
                _tell(entry, problem="the tests did not run to their end")
    for entry in entries:
        if arguments.faults and entry in CHAOS_ENTRIES:
            chaos = _run_chaos(entry, arguments)
            _tell(entry, **{"chaos": chaos} if chaos else {"problem": "the chaos test did not run to its end"})


def _add_contract(entries: Sequence[MatrixEntry], arguments: argparse.Namespace) -> None:
    """Run some files, and put what their contract tests gave beside what is kept of these matrix entries, whose date
    stays."""
    for entry in entries:
        _report(entry).unlink(missing_ok=True)
    _run_tests(entries, arguments, *arguments.contract)
    for entry in entries:
        _tell(entry, tests={**_kept(entry).get("tests", {}), **_outcomes_of(entry)})


def _can_run(entry: MatrixEntry, *, chaos_only: bool) -> bool:
    """Forget what is known of a matrix entry, or of its chaos test, and see whether its broker starts."""
    known = _kept(entry)
    keep = ("version", "date", "tests") if chaos_only else ()
    _file(entry).write_text(json.dumps({name: known[name] for name in keep if name in known}), "utf-8")
    for file in (_report(entry), _chaos_report(entry)):
        file.unlink(missing_ok=True)
    try:
        with entry_node(entry.broker, entry.version) as node:
            _tell(entry, **{} if chaos_only and "version" in known else {"version": node.version})
    except NodeError as absent:
        _tell(entry, obstacle=str(absent).splitlines()[0])
        print(f"{entry.name}: cannot run: {absent}", flush=True)
        return False
    return True


def _tell(entry: MatrixEntry, **facts: Any) -> None:
    _file(entry).write_text(json.dumps({**_kept(entry), **facts}, indent=1) + "\n", "utf-8")


def _kept(entry: MatrixEntry) -> dict[str, Any]:
    file = _file(entry)
    known: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return known


def _outcomes_of(entry: MatrixEntry) -> dict[str, dict[str, dict[str, int]]]:
    """Contract -> outcome -> reason -> tests, of the run that has just ended."""
    report = _report(entry)
    tests: dict[str, dict[str, dict[str, int]]] = {}
    for line in report.read_text("utf-8").splitlines() if report.exists() else ():
        told = json.loads(line)
        reason = "" if told["outcome"] == "passed" else " ".join((told["reason"] or told["test"]).split())
        reasons = tests.setdefault(told["contract"], {}).setdefault(told["outcome"], {})
        reasons[reason] = reasons.get(reason, 0) + 1
    return tests


def _run_tests(entries: Sequence[MatrixEntry], arguments: argparse.Namespace, *files: str) -> bool:
    """Contract tests and failure matrix, or some files of them; False if that broke off."""
    began = time.monotonic()
    which = ["--entries", ",".join(entry.name for entry in entries), "--thorough", "--matrix-report", str(_WORK)]
    side_by_side = ["--numprocesses", str(arguments.processes), "--dist", "loadgroup"]
    code = _program("pytest", "-q", *(files or ("tests/contract", "tests/faults")), *which, *side_by_side)
    print(
        f"contract tests and failure matrix of {len(entries)} matrix entries in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return code in (0, 1)  # 1: tests have failed, which the report tells


def _run_chaos(entry: MatrixEntry, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a chaos test counted; nothing if that broke off."""
    report = _chaos_report(entry)
    size = ["--messages", str(arguments.messages), "--rate", str(arguments.rate), "--faults", str(arguments.faults)]
    place = ["--broker", entry.broker, "--protocol", entry.protocol, "--version", entry.version]
    place += ["--quorum"] if entry.kind == "quorum" else []
    _program("testbed.chaos.soak", *place, *size, "--report", str(report))
    counted: dict[str, Any] = json.loads(report.read_text("utf-8")) if report.exists() else {}
    return counted


def _program(module: str, *arguments: str) -> int:
    environment = {**os.environ, "CI": "true"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=_ROOT, env=environment, check=False
    ).returncode


def _file(entry: MatrixEntry) -> Path:
    return _KEPT / f"{entry.name}.json"


def _report(entry: MatrixEntry) -> Path:
    return _WORK / f"{entry.name}.jsonl"


def _chaos_report(entry: MatrixEntry) -> Path:
    return _WORK / f"{entry.name}.chaos.json"


# -- reading and writing ----------------------------------------------------------------------


def _result(entry: MatrixEntry) -> Result:
    known = _kept(entry)
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


def page(results: Sequence[Result], clusters: Sequence[dict[str, Any]]) -> str:
    """The page as Markdown."""
    contracts = list(dict.fromkeys(contract for result in results for contract in result.tests))
    notes: list[str] = []
    ran = [result for result in results if not result.obstacle]
    lines = [
        "# Compatibility",
        "",
        "Written by `make matrix` from what it saw; not by hand. Every contract and every row of the failure matrix is",
        "a set of tests against a real broker (`tests/contract`, `tests/faults`), the same for all. A number is how",
        "many",
        "of them passed; `-` is for those of another protocol, or newer than the run, and why there is a no is in the",
        "notes. `on` is the date. All of it is in `docs/matrix` as",
        "JSON.",
        "",
        "## Matrix entries",
        "",
        *_table(
            ["entry", "broker", "protocol", "queue", "contract tests and faults", "on", "chaos"],
            map(_entry_row, results),
        ),
        "",
        "Chaos tests are for one matrix entry of each broker and protocol.",
        "",
        "## Contract tests and failure matrix",
        "",
        *_table(
            ["", *(_short(result.entry) for result in ran)],
            ([contract, *_outcomes(contract, ran, notes)] for contract in contracts),
        ),
        "",
        *(f"{number}. {note}" for number, note in enumerate(notes, start=1)),
        "",
        "## Chaos tests",
        "",
        "A publisher, a Spark job that writes parquet, a proxy in between that cuts, cuts in mid-frame, narrows the",
        "link to 100 kB/s and goes silent, `kill -9` for the driver, the JVM, the Python worker and the broker, and",
        "SIGSTOP for 15 s for worker and broker, in turn. `make soak`, with an outside checker over the history of it.",
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
        "By `make soak ARGS=--cluster`: several brokers on one machine, all of them candidates in `url`, a publisher",
        "that sends to whichever is up, a Spark job that writes parquet, and faults, each healed before the next.",
        "",
        *_table(
            ["cluster", "protocol", "sent", "lost", "twice", "left", "faults", "reconnects", "dropped", "time", "on"],
            map(_cluster_row, clusters),
        ),
        "",
        "`dropped` is what came again, from the broker or from the publisher, and was recognised. The faults:",
        "",
        *(f"- {cluster}: {'; '.join(faults)}" for cluster, faults in kinds.items()),
        "",
    ]


def _cluster_row(chaos: dict[str, Any]) -> list[str]:
    sent, lost, twice, left = (chaos[name] for name in ("messages sent", "lost", "duplicated", "left in the queue"))
    dropped = chaos["duplicates recognised and dropped"]
    numbers = [sent, lost, twice + chaos["unexpected"], left, chaos["faults in all"], chaos["reconnects"], dropped]
    name, _, kind = chaos["cluster"].partition(", ")
    place = [f"{name} {chaos['version']}, {kind}", PROTOCOLS[chaos["protocol"]]]
    problem = f"**{chaos['problem']}**" if chaos["problem"] else f"{chaos['seconds']} s"
    return [*place, *(f"{number:,}" for number in numbers), problem, chaos["date"]]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def _short(entry: MatrixEntry) -> str:
    return f"`{entry.name}`"


def _entry_row(result: Result) -> list[str]:
    entry = result.entry
    broker = f"{TITLES[entry.broker]} {result.version or entry.version}".strip()
    row = [_short(entry), broker, PROTOCOLS[entry.protocol], entry.kind or "default"]
    if result.obstacle:
        return [*row, result.obstacle if result.obstacle == "not run" else f"cannot run: {result.obstacle}", "", ""]
    passed, failed = (
        sum(sum(outcomes.get(kind, {}).values()) for outcomes in result.tests.values()) for kind in ("passed", "failed")
    )
    chaos = "-" if not result.chaos else "holds" if result.chaos["holds"] else "**failed**"
    wrong = [f"**{failed} failed**"] * bool(failed) + [f"**{result.problem}**"] * bool(result.problem)
    return [*row, ", ".join([f"{passed} passed", *wrong]), result.date, chaos]


def _outcomes(contract: str, results: Sequence[Result], notes: list[str]) -> list[str]:
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
]


def _chaos_row(result: Result) -> list[str]:
    chaos = result.chaos
    sent, lost, twice, left = (chaos[name] for name in ("messages sent", "lost", "duplicated", "left in the queue"))
    dropped = chaos["duplicates recognised and dropped"]
    numbers = [sent, lost, twice + chaos["unexpected"], left, chaos["faults in all"], dropped]
    ran = [chaos.get("date", ""), chaos["version"], chaos.get("spark", "")]
    return [_short(result.entry), *ran, *(f"{number:,}" for number in numbers), f"{chaos['seconds']} s"]


def _chaos_names(results: Sequence[Result]) -> list[str]:
    return [_short(result.entry) for result in results if result.chaos]


def _chaos_faults(results: Sequence[Result]) -> Iterable[list[str]]:
    reports = [result.chaos for result in results if result.chaos]
    kinds = dict.fromkeys(kind for chaos in reports for kind in chaos if kind in FAULTS)
    return ([kind, *(str(chaos.get(kind, "-")) for chaos in reports)] for kind in kinds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    names = [entry.name for entry in ALL_ENTRIES]
    parser.add_argument("--entries", type=lambda text: text.split(","), default=names, help=f"of {','.join(names)}")
    parser.add_argument("--messages", type=int, default=200_000, help="of each chaos test")
    parser.add_argument("--faults", type=int, default=30, help="of each chaos test; 0 for no chaos test")
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second in the chaos tests")
    parser.add_argument("--chaos-only", action="store_true", help="keep what earlier tests gave")
    parser.add_argument("--processes", type=int, default=2, help="that run tests side by side")
    parser.add_argument("--contract", nargs="+", help="files of tests: only these, beside what earlier runs gave")
    parser.add_argument("--page-only", action="store_true", help="write the page from what earlier runs left")
    arguments = parser.parse_args()
    unknown = set(arguments.entries) - set(names)
    if unknown:
        parser.error(f"--matrix entries: there is no {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
