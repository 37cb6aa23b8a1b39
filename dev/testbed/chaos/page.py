"""The long chaos tests on docs/reports/audits.md: a row of each table for each report in docs/chaos tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["PROTOCOLS", "TITLES", "keep", "page"]

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_PAGE = _DOCS / "reports" / "audits.md"
_REPORTS = _DOCS / "chaos"
_MARKED = re.compile(r"(<!-- written by make soak: (\w+) -->)\n.*?(<!-- end -->\n)", re.DOTALL)
TITLES = {"rabbitmq": "RabbitMQ", "activemq": "ActiveMQ Classic", "artemis": "ActiveMQ Artemis"}
PROTOCOLS = {"amqp-0-9-1": "AMQP 0-9-1", "amqp-1.0": "AMQP 1.0", "stomp": "STOMP"}
_COUNTED = {
    "messages": "messages sent",
    "faults": "faults in all",
    "lost": "lost",
    "twice": "twice",
    "left": "left in the queue",
    "redelivered": "redelivered by the broker",
    "dropped": "duplicates recognised and dropped",
    "replays": "epochs replayed",
}
_USED = {
    "source": ("source: MiB", "source: threads", "source: descriptors"),
    "JVM": ("JVM: MiB", "JVM: threads", "JVM: descriptors"),
    "IDs": ("offset: bytes", "files of IDs", "files of IDs: KiB"),
}


def keep(name: str, report: dict[str, Any]) -> None:
    """Keep the report of a chaos test, and write the page anew.

    Args:
        name: of the chaos test, in place of an earlier one of the same name.
        report: what :mod:`testbed.chaos.soak` tells of it.
    """
    _REPORTS.mkdir(exist_ok=True)
    (_REPORTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    reports = [json.loads(file.read_text("utf-8")) for file in sorted(_REPORTS.glob("*.json"))]
    _PAGE.write_text(page(_PAGE.read_text("utf-8"), reports), "utf-8")


def page(text: str, reports: Sequence[dict[str, Any]]) -> str:
    """The page with tables of these chaos tests in place of those it has."""
    reports = sorted(reports, key=lambda one: (one["periodic"], one["cluster"], -one["messages sent"], _title(one)))
    tables = {
        "counted": [
            ["chaos", *_COUNTED, "time", "on"],
            *(_counted(one) for one in reports),
        ],
        "used": [
            ["chaos", "source: MiB, threads, descriptors", "JVM: the same", "offset in bytes; files of IDs, KiB"],
            *([_title(one), *(_used(one, names) for names in _USED.values())] for one in reports),
        ],
        "runs": [
            ["chaos", "seed", "Spark, Python", "SHA-256 of `history.jsonl`"],
            *(
                [_title(one), str(one["seed"]), f"{one['spark']}, {one['python']}", f"`{one['history']}`"]
                for one in reports
            ),
        ],
    }
    return _MARKED.sub(lambda found: "\n".join([found[1], *_table(tables[found[2]]), found[3]]), text)


def _title(report: dict[str, Any]) -> str:
    kind = ", cluster" if report["cluster"] else ", quorum" if report["quorum"] else ""
    several = f", {report['queues']} queues" if report["queues"] > 1 else ""
    several += f", a link of {report['link'] / 1e6:g} MB/s" if report.get("link") else ""
    options = "".join(f", `{option}`" for option in report["option"])
    periodic = ", periodic jobs" if report["periodic"] else ""
    where = f"{TITLES[report['broker']]} {report['version']}{kind}, {PROTOCOLS[report['protocol']]}"
    return f"{where}{several}{periodic}{options}"


def _counted(report: dict[str, Any]) -> list[str]:
    counts = {**report, "twice": report["duplicated"] + report["unexpected"]}
    ended = f"{report['seconds']:,} s" if report["holds"] else "**does not hold**"
    return [_title(report), *(f"{counts[name]:,}" for name in _COUNTED.values()), ended, report["date"]]


def _used(report: dict[str, Any], names: Iterable[str]) -> str:
    used = report["used"]
    told = (" → ".join(f"{value:,.0f}" for value in used[name]) for name in names if name in used)
    return "; ".join(told) or "-"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = rows
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rest)]
