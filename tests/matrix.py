"""The compatibility matrix: ``make matrix``. Laws and failure matrix on every cell, storms, and a page of it all.

What each cell gave is kept beside the page, in `docs/matrix/<cell>.json`, with its date, so that cells can be run one
by one, on any machine, and the page is written from all of them. Storms of clusters are run by themselves, by ``make
soak`` with ``--cluster --report docs/matrix/<cluster>[<version>]-<protocol>.cluster.json``, and are on the page too.
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

from testbed.clusters.factory import CLUSTERS
from testbed.process import NodeError
from testbed.storm.faults import FAULTS
from testbed.storm.page import PROTOCOLS, TITLES
from tests.support.cells import ALL_CELLS, STORM_CELLS, Cell, cell_node

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "reports" / "compatibility.md"
_KEPT = _ROOT / "docs" / "matrix"
_WORK = _ROOT / "build" / "matrix"


@dataclass
class Result:
    """What one cell gave.

    Attributes:
        cell: which.
        version: of the broker; empty if it could not be started.
        date: when laws and failure matrix were run.
        obstacle: why the cell could not run; empty if it could.
        tests: law -> outcome -> reason -> how many tests.
        storm: counts of the storm; empty if there was none.
        problem: what did not end as it should, beside what tests and storm tell.
    """

    cell: Cell
    version: str = ""
    date: str = ""
    obstacle: str = ""
    tests: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    storm: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def holds(self) -> bool:
        """Did everything that ran pass?"""
        failed = any("failed" in outcomes for outcomes in self.tests.values())
        return not failed and not self.problem and bool(self.storm.get("holds", True))


def main() -> int:
    """Run the chosen cells and write the page; 0 if everything that ran passed."""
    arguments = _arguments()
    for folder in (_WORK, _KEPT):
        folder.mkdir(parents=True, exist_ok=True)
    if not arguments.page_only:
        _run([cell for cell in ALL_CELLS if cell.name in arguments.cells], arguments)
    results = [_result(cell) for cell in ALL_CELLS]
    clusters = _clusters()
    _PAGE.write_text(page(results, clusters), "utf-8")
    print(f"written: {_PAGE.relative_to(_ROOT)}")
    broken = [result.cell.name for result in results if not result.holds]
    broken += [f"{storm['cluster']} over {storm['protocol']}" for storm in clusters if not storm["holds"]]
    if broken:
        print(f"failed: {', '.join(broken)}")
    return 1 if broken else 0


# -- running ----------------------------------------------------------------------------------


def _run(wanted: Sequence[Cell], arguments: argparse.Namespace) -> None:
    if arguments.laws:
        _add_laws(wanted, arguments)
        return
    cells = [cell for cell in wanted if _can_run(cell, storm_only=arguments.storms_only)]
    if not cells:
        return
    if not arguments.storms_only:
        whole = _run_tests(cells, arguments)
        for cell in cells:
            _tell(cell, date=time.strftime("%Y-%m-%d", time.gmtime()), tests=_outcomes_of(cell))
            if not whole:
                _tell(cell, problem="the tests did not run to their end")
    for cell in cells:
        if arguments.faults and cell in STORM_CELLS:
            storm = _run_storm(cell, arguments)
            _tell(cell, **{"storm": storm} if storm else {"problem": "the storm did not run to its end"})


def _add_laws(cells: Sequence[Cell], arguments: argparse.Namespace) -> None:
    """Run some files, and put what their laws gave beside what is kept of these cells, whose date stays."""
    for cell in cells:
        _report(cell).unlink(missing_ok=True)
    _run_tests(cells, arguments, *arguments.laws)
    for cell in cells:
        _tell(cell, tests={**_kept(cell).get("tests", {}), **_outcomes_of(cell)})


def _can_run(cell: Cell, *, storm_only: bool) -> bool:
    """Forget what is known of a cell, or of its storm, and see whether its broker starts."""
    known = _kept(cell)
    keep = ("version", "date", "tests") if storm_only else ()
    _file(cell).write_text(json.dumps({name: known[name] for name in keep if name in known}), "utf-8")
    for file in (_report(cell), _storm_report(cell)):
        file.unlink(missing_ok=True)
    try:
        with cell_node(cell.broker, cell.version) as node:
            _tell(cell, **{} if storm_only and "version" in known else {"version": node.version})
    except NodeError as absent:
        _tell(cell, obstacle=str(absent).splitlines()[0])
        print(f"{cell.name}: cannot run: {absent}", flush=True)
        return False
    return True


def _tell(cell: Cell, **facts: Any) -> None:
    _file(cell).write_text(json.dumps({**_kept(cell), **facts}, indent=1) + "\n", "utf-8")


def _kept(cell: Cell) -> dict[str, Any]:
    file = _file(cell)
    known: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return known


def _outcomes_of(cell: Cell) -> dict[str, dict[str, dict[str, int]]]:
    """Law -> outcome -> reason -> tests, of the run that has just ended."""
    report = _report(cell)
    tests: dict[str, dict[str, dict[str, int]]] = {}
    for line in report.read_text("utf-8").splitlines() if report.exists() else ():
        told = json.loads(line)
        reason = "" if told["outcome"] == "passed" else " ".join((told["reason"] or told["test"]).split())
        reasons = tests.setdefault(told["law"], {}).setdefault(told["outcome"], {})
        reasons[reason] = reasons.get(reason, 0) + 1
    return tests


def _run_tests(cells: Sequence[Cell], arguments: argparse.Namespace, *files: str) -> bool:
    """Laws and failure matrix, or some files of them; False if that broke off."""
    began = time.monotonic()
    which = ["--cells", ",".join(cell.name for cell in cells), "--thorough", "--matrix-report", str(_WORK)]
    side_by_side = ["--numprocesses", str(arguments.processes), "--dist", "loadgroup"]
    code = _program("pytest", "-q", *(files or ("tests/laws", "tests/faults")), *which, *side_by_side)
    print(f"laws and failure matrix of {len(cells)} cells in {time.monotonic() - began:.0f} s", flush=True)
    return code in (0, 1)  # 1: tests have failed, which the report tells


def _run_storm(cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a storm counted; nothing if that broke off."""
    report = _storm_report(cell)
    size = ["--messages", str(arguments.messages), "--rate", str(arguments.rate), "--faults", str(arguments.faults)]
    place = ["--broker", cell.broker, "--protocol", cell.protocol, "--version", cell.version]
    place += ["--quorum"] if cell.kind == "quorum" else []
    _program("testbed.storm.soak", *place, *size, "--report", str(report))
    counted: dict[str, Any] = json.loads(report.read_text("utf-8")) if report.exists() else {}
    return counted


def _program(module: str, *arguments: str) -> int:
    environment = {**os.environ, "CI": "true"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=_ROOT, env=environment, check=False
    ).returncode


def _file(cell: Cell) -> Path:
    return _KEPT / f"{cell.name}.json"


def _report(cell: Cell) -> Path:
    return _WORK / f"{cell.name}.jsonl"


def _storm_report(cell: Cell) -> Path:
    return _WORK / f"{cell.name}.storm.json"


# -- reading and writing ----------------------------------------------------------------------


def _result(cell: Cell) -> Result:
    known = _kept(cell)
    return Result(cell, **known) if known else Result(cell, obstacle="not run")


def _clusters() -> list[dict[str, Any]]:
    """What the storms of clusters counted, in the order of brokers and protocols."""
    names = [name for cluster in CLUSTERS for name in (cluster, *sorted(_versions(cluster)))]
    files = [_KEPT / f"{name}-{protocol}.cluster.json" for name in names for protocol in PROTOCOLS]
    return [json.loads(file.read_text("utf-8")) for file in files if file.exists()]


def _versions(cluster: str) -> set[str]:
    """`<cluster><version>` for the versions beside the default that there are reports of."""
    found = (file.name.removesuffix(".cluster.json") for file in _KEPT.glob(f"{cluster}[0-9]*.cluster.json"))
    return {name.partition("-")[0] for name in found}


def page(results: Sequence[Result], clusters: Sequence[dict[str, Any]]) -> str:
    """The page as Markdown."""
    laws = list(dict.fromkeys(law for result in results for law in result.tests))
    notes: list[str] = []
    ran = [result for result in results if not result.obstacle]
    lines = [
        "# Compatibility",
        "",
        "Written by `make matrix` from what it saw; not by hand. Every law and every row of the failure matrix is",
        "a set of tests against a real broker (`tests/laws`, `tests/faults`), the same for all. A number is how many",
        "of them passed; `-` is for those of another protocol, or newer than the run, and why there is a no is in the",
        "notes. `on` is the date. All of it is in `docs/matrix` as",
        "JSON.",
        "",
        "## Cells",
        "",
        *_table(["cell", "broker", "protocol", "queue", "laws and faults", "on", "storm"], map(_cell_row, results)),
        "",
        "Storms are for one cell of each broker and protocol.",
        "",
        "## Laws and failure matrix",
        "",
        *_table(["", *(_short(result.cell) for result in ran)], ([law, *_outcomes(law, ran, notes)] for law in laws)),
        "",
        *(f"{number}. {note}" for number, note in enumerate(notes, start=1)),
        "",
        "## Storms",
        "",
        "A publisher, a Spark job that writes parquet, a proxy in between that cuts, cuts in mid-frame, narrows the",
        "link to 100 kB/s and goes silent, `kill -9` for the driver, the JVM, the Python worker and the broker, and",
        "SIGSTOP for 15 s for worker and broker, in turn. `make soak`, with an outside judge over the history of it.",
        "",
        *_table(_STORM_HEAD, (_storm_row(result) for result in ran if result.storm)),
        "",
        "Faults by kind:",
        "",
        *_table(["", *_storm_names(ran)], _storm_faults(ran)),
        "",
        *_clusters_section(clusters),
    ]
    return "\n".join(lines)


def _clusters_section(clusters: Sequence[dict[str, Any]]) -> list[str]:
    if not clusters:
        return []
    kinds: dict[str, dict[str, None]] = {}
    for storm in clusters:
        kinds.setdefault(storm["cluster"], {}).update(dict.fromkeys(map(str.strip, storm["faults"])))
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


def _cluster_row(storm: dict[str, Any]) -> list[str]:
    sent, lost, twice, left = (storm[name] for name in ("messages sent", "lost", "duplicated", "left in the queue"))
    dropped = storm["duplicates recognised and dropped"]
    numbers = [sent, lost, twice + storm["unexpected"], left, storm["faults in all"], storm["reconnects"], dropped]
    name, _, kind = storm["cluster"].partition(", ")
    place = [f"{name} {storm['version']}, {kind}", PROTOCOLS[storm["protocol"]]]
    problem = f"**{storm['problem']}**" if storm["problem"] else f"{storm['seconds']} s"
    return [*place, *(f"{number:,}" for number in numbers), problem, storm["date"]]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def _short(cell: Cell) -> str:
    return f"`{cell.name}`"


def _cell_row(result: Result) -> list[str]:
    cell = result.cell
    broker = f"{TITLES[cell.broker]} {result.version or cell.version}".strip()
    row = [_short(cell), broker, PROTOCOLS[cell.protocol], cell.kind or "default"]
    if result.obstacle:
        return [*row, result.obstacle if result.obstacle == "not run" else f"cannot run: {result.obstacle}", "", ""]
    passed, failed = (
        sum(sum(outcomes.get(kind, {}).values()) for outcomes in result.tests.values()) for kind in ("passed", "failed")
    )
    storm = "-" if not result.storm else "holds" if result.storm["holds"] else "**failed**"
    wrong = [f"**{failed} failed**"] * bool(failed) + [f"**{result.problem}**"] * bool(result.problem)
    return [*row, ", ".join([f"{passed} passed", *wrong]), result.date, storm]


def _outcomes(law: str, results: Sequence[Result], notes: list[str]) -> list[str]:
    return [_outcome(result.tests.get(law, {}), notes) for result in results]


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


_STORM_HEAD = [
    "cell",
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


def _storm_row(result: Result) -> list[str]:
    storm = result.storm
    sent, lost, twice, left = (storm[name] for name in ("messages sent", "lost", "duplicated", "left in the queue"))
    dropped = storm["duplicates recognised and dropped"]
    numbers = [sent, lost, twice + storm["unexpected"], left, storm["faults in all"], dropped]
    ran = [storm.get("date", ""), storm["version"], storm.get("spark", "")]
    return [_short(result.cell), *ran, *(f"{number:,}" for number in numbers), f"{storm['seconds']} s"]


def _storm_names(results: Sequence[Result]) -> list[str]:
    return [_short(result.cell) for result in results if result.storm]


def _storm_faults(results: Sequence[Result]) -> Iterable[list[str]]:
    storms = [result.storm for result in results if result.storm]
    kinds = dict.fromkeys(kind for storm in storms for kind in storm if kind in FAULTS)
    return ([kind, *(str(storm.get(kind, "-")) for storm in storms)] for kind in kinds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    names = [cell.name for cell in ALL_CELLS]
    parser.add_argument("--cells", type=lambda text: text.split(","), default=names, help=f"of {','.join(names)}")
    parser.add_argument("--messages", type=int, default=200_000, help="of each storm")
    parser.add_argument("--faults", type=int, default=30, help="of each storm; 0 for no storm")
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second in the storms")
    parser.add_argument("--storms-only", action="store_true", help="keep what laws and failure matrix gave before")
    parser.add_argument("--processes", type=int, default=2, help="that run tests side by side")
    parser.add_argument("--laws", nargs="+", help="files of tests: only these, beside what earlier runs gave")
    parser.add_argument("--page-only", action="store_true", help="write the page from what earlier runs left")
    arguments = parser.parse_args()
    unknown = set(arguments.cells) - set(names)
    if unknown:
        parser.error(f"--cells: there is no {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
