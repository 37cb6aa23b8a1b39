"""The command ``make power``: cuts of the power below a query or a broker, and their page, docs/reports/power.md.

It needs Linux, root, and the right to mount a disk of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.power.brokers import ENTRIES, BrokerCuts, run_broker_cuts
from testbed.power.cuts import Cuts, run_cuts
from testbed.power.streams import run_stream_cuts

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "reports" / "power.md"
_MODES = ("committed", "synced")


def main() -> int:
    """Run it; 1 if something is not as it is promised."""
    arguments = _arguments()
    good = True
    for mode in arguments.settle_after:
        cuts = run_cuts(mode, arguments.cuts, arguments.seed, _say)
        good &= mode == "committed" or cuts.verdict.holds
        _show(arguments, "checkpoint", _cuts_row(cuts))
    for name in arguments.brokers:
        for restarted in (False, True):
            told = run_broker_cuts(
                ENTRIES[name], arguments.cuts, arguments.seed, _say, restarted=restarted,
                options=dict(option.split("=", 1) for option in arguments.option),
            )  # fmt: skip
            good &= restarted or told.verdict.duplicated == 0
            _show(arguments, "brokers", _broker_row(told, arguments.option))
    if arguments.stream:
        below = run_stream_cuts(arguments.cuts, arguments.seed, _say)
        good &= below.verdict.lost == below.verdict.twice == below.verdict.invented == 0
        _say(str(below))
    return int(not good)


def _show(arguments: argparse.Namespace, table: str, row: str) -> None:
    _say(row)
    if arguments.page:
        _PAGE.write_text(_with_row(_PAGE.read_text("utf-8"), table, row), "utf-8")


def _cuts_row(cuts: Cuts) -> str:
    told = cuts.verdict
    found = f"{told.sent:,} | **{told.lost:,}** | **{told.duplicated:,}**"
    files = f"{cuts.empty} | {cuts.taken_back} | {cuts.refused} | {cuts.unreadable}"
    return f"| `{cuts.settle_after}` | {cuts.cuts} | {found} | {files} | {cuts.seconds} s |"


def _broker_row(cuts: BrokerCuts, options: Sequence[str]) -> str:
    told = cuts.verdict
    source = "is restarted" if cuts.restarted else "continues"
    kind = ", quorum" if cuts.entry.quorum else ", classic" if cuts.entry.broker == "rabbitmq" else ""
    given = "".join(f", `{option}`" for option in options)
    found = f"{told.sent:,} | **{told.lost:,}** | {cuts.came_again:,} | **{told.duplicated:,}**"
    return f"| {cuts.title}{kind} | {source}{given} | {cuts.cuts} | {found} |"


def _with_row(page: str, table: str, row: str) -> str:
    """The page with a row in place of the one that begins with the same cells, or behind the others."""
    begin, end = f"<!-- begin: written by make power: {table} -->\n", "<!-- end: written by make power -->"
    before, mark, rest = page.partition(begin)
    if not mark:
        raise ValueError(f"the page needs the line {begin!r}")
    inside, mark, after = rest.partition(end)
    cells = 2 if table == "brokers" else 1
    key = re.match(rf"(\|[^|]*){{{cells}}}\|", row)
    assert key is not None
    rows = [line for line in inside.splitlines() if not line.startswith(key[0])]
    return f"{before}{begin}{chr(10).join([*rows, row])}\n{mark}{after}"


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testbed.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=100, help="in each run (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--settle-after", type=_words(_MODES), default=[], help=f"below a query: of {', '.join(_MODES)}"
    )
    parser.add_argument(
        "--brokers", type=_words(tuple(ENTRIES)), default=[], help=f"below a broker: {', '.join(ENTRIES)}"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the source, with --brokers"
    )
    parser.add_argument("--stream", action="store_true", help="below the one node of a stream")
    parser.add_argument("--page", action="store_true", help=f"write the rows to {_PAGE.name}")
    arguments = parser.parse_args()
    if not (arguments.settle_after or arguments.brokers or arguments.stream):
        arguments.settle_after, arguments.brokers = list(_MODES), list(ENTRIES)
    return arguments


def _words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if not set(chosen) <= set(known):
            raise argparse.ArgumentTypeError(f"of {', '.join(known)}")
        return chosen

    return parse


if __name__ == "__main__":
    sys.exit(main())
