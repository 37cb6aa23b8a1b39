"""Checks the specification in ``dev/spec/`` with TLC, and writes docs/reports/specification.md:
``python -m tools.spec``, which ``make spec`` runs.

By default everything but what takes hours. ``--long`` is that, ``--rules`` only what fails without each rule,
``--model`` the models whose name has these words.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence

from tools.spec_models import LONG, MODELS, QUICK, RULES, SAFEGUARDS, without
from tools.tlc import SPEC, Model, Outcome, check

__all__ = [
    "MODULE", "PAGE", "RULES_PAGE", "lines_of_rules", "linked", "model_row", "rule_row",
]  # fmt: skip

_DOCS = SPEC.parents[1] / "docs"
PAGE = _DOCS / "reports" / "specification.md"
RULES_PAGE = _DOCS / "design.md"
MODULE = SPEC / "Journal.tla"

_MARKED = re.compile(r"(<!-- written by make spec: (.+?) -->)\n.*?(<!-- end -->\n)", re.DOTALL)
_RULE = re.compile(r"\brule (\d+):")


def lines_of_rules() -> dict[str, int]:
    """Rule -> the line of the specification that keeps it."""
    lines = enumerate(MODULE.read_text("utf-8").splitlines(), start=1)
    return {found: number for number, line in lines for found in _RULE.findall(line)}


def linked(page: str) -> str:
    """The page of the rules, each with a link to its line."""
    lines = lines_of_rules()
    for rule, line in lines.items():
        pattern = rf'(<a id="rule-{rule}"></a>(?:(?!<a id=).)*?\.tla#L)\d+'
        page = re.sub(pattern, rf"\g<1>{line}", page, count=1, flags=re.DOTALL)
    return page


def rule_row(rule: str, outcome: Outcome) -> str:
    """A row of the table: what happens without a rule."""
    model = without(rule)
    name = f"[{rule}](../design.md#rule-{rule})" if rule in RULES else _DASH
    return f"| {name} | {model.name} | `{outcome.violated}` | {outcome.length} |"


def model_row(model: Model, outcome: Outcome) -> str:
    """A row of the table: a model that holds."""
    faults = ", ".join(f"{_FAULTS[kind]}: {count}" for kind, count in model.faults.items() if count)
    where = "" if model in QUICK else " (`make spec` alone)" if model in MODELS else " (by hand)"
    size = ", ".join(_SIZES[str(model.constants[name])] for name in ("Copies", "Slots"))
    return f"| {model.name}{where} | {size} | {faults} | {outcome.distinct:,} |"


_DASH = "\N{EN DASH}"
_FAULTS = {
    "crash": "crash", "cut": "end", "silence": "unnoticed end", "broker": "kill of the broker",
    "forget": "forgotten", "away": "taken by others", "still": "stop", "release": "release",
    "lower": "lower guarantee",
}  # fmt: skip
_SIZES = {
    "One": "1 message", "OneQueue": "2 messages", "Three": "3 messages", "Four": "4 messages", "Five": "5 messages",
    "OneEach": "2 messages of 2 queues",
    "TwoQueues": "3 messages of 2 queues", "Repeated": "3 messages, 2 with one ID",
    "OneSlot": "1 session", "SlotEach": "2 sessions", "TwoSlots": "2 sessions",
}  # fmt: skip


def _write(
    models: Mapping[str, Outcome],
    rules: Mapping[str, Outcome],
) -> None:
    """Put what was found into the page, where the rows of others stay, and the lines of the rules into theirs."""
    before = PAGE.read_text("utf-8")
    rows = before.splitlines()

    def kept(name: str) -> list[str]:
        return [row for row in rows if row.startswith((f"| {name} |", f"| {name} ("))]

    of_models = [
        row
        for one in (*MODELS, *LONG)
        for row in ([model_row(one, models[one.name])] if one.name in models else kept(one.name))
    ]
    of_rules = [rule_row(rule, outcome) for rule, outcome in rules.items()]
    tables = {
        "models": [*_head("model", "size", "faults, at most", "distinct states"), *of_models, _together(of_models)],
        "rules": [*_head("rule", "without it", "breaks", "states"), *of_rules] if rules else None,
    }

    def written(found: re.Match[str]) -> str:
        table = tables[found[2]]
        return found[0] if table is None else "\n".join([found[1], *table, "", found[3]])

    after = _MARKED.sub(written, before)
    for page, text in ((PAGE, after), (RULES_PAGE, linked(RULES_PAGE.read_text("utf-8")))):
        if text != page.read_text("utf-8"):
            page.write_text(text, "utf-8")
            print(f"written: {page.name}")


def _together(rows: Sequence[str]) -> str:
    """The sum of what `make spec` checks."""
    counts = [row.split("|")[-2].strip() for row in rows if "(by hand)" not in row]
    return f"| together | | | {sum(int(count.replace(',', '')) for count in counts):,} |"


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|" + "---|" * (len(names) - 1) + "---:|"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.spec", description=__doc__)
    parser.add_argument("--long", action="store_true", help="what takes hours, and nothing else")
    parser.add_argument("--rules", action="store_true", help="only what fails without each rule")
    parser.add_argument("--links", action="store_true", help="check nothing: only write the lines of the rules anew")
    parser.add_argument("--model", help="only models whose name has these words")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="threads (default: one a core)")
    parser.add_argument("--heap", default="3g", help="of the JVM (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    """Check, and write the page; 1 if something is not as it should be."""
    arguments = _arguments()
    if arguments.links:
        _write({}, {})
        return 0
    chosen: Sequence[Model] = LONG if arguments.long else () if arguments.rules else MODELS
    began_s, models, failed = time.monotonic(), {}, False
    for model in [one for one in chosen if (arguments.model or "") in one.name]:
        begun_s = time.monotonic()
        outcome = check(model, workers=arguments.workers, heap=arguments.heap)
        print(f"{time.monotonic() - begun_s:5.0f} s  {outcome.distinct:>11,}  {model.name}", flush=True)
        if outcome.violated is not None:
            print(outcome.told)
            failed = True
        models[model.name] = outcome
    distinct = sum(outcome.distinct for outcome in models.values())
    print(f"{time.monotonic() - began_s:5.0f} s  {distinct:>11,}  distinct states")
    if arguments.long or arguments.model:
        _write(models, {})
        return int(failed)
    rules = _without_each()
    failed |= any(outcome.violated is None for outcome in rules.values())
    if failed:
        return 1
    _write(models, rules)
    return 0


def _without_each() -> dict[str, Outcome]:
    found = {}
    for rule in (*RULES, *SAFEGUARDS):
        found[rule] = outcome = check(without(rule))
        print(f"without {rule:12} {outcome.violated} after {outcome.length} states", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
