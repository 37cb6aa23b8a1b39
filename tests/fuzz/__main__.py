"""Runs the fuzzers: `make fuzz ARGS="--minutes 60"`, `ARGS="amqp10 --seed 7"`.

A fuzzer is a module of this folder with a function ``run(rng: random.Random, deadline: float) -> Counter[str]``. It
makes cases until `time.monotonic()` has passed the deadline, at least one of each kind, and counts them by kind. It
raises an AssertionError that names the bytes of the first case that is read wrongly.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import random
import sys
import time
from collections import Counter

import tests.fuzz

#: How long one fuzzer runs before the next one has its turn, seconds. Each turn has a seed of its own.
TURN_S = 30.0


def names() -> list[str]:
    """The fuzzers there are."""
    return [found.name for found in pkgutil.iter_modules(tests.fuzz.__path__) if not found.name.startswith("_")]


def turn(name: str, seed: int, number: int, deadline: float) -> Counter[str]:
    """One turn of a fuzzer: the cases it made, by kind.

    Args:
        number: of the turn. The same seed and number give the same cases, as far as the time allows.

    Raises:
        AssertionError: a case was read wrongly.
    """
    run = importlib.import_module(f"tests.fuzz.{name}").run
    cases: Counter[str] = run(random.Random(f"{name}-{seed}-{number}"), deadline)
    return cases


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the decoders.")
    parser.add_argument("names", nargs="*", metavar="name", choices=[[], *names()], help=f"of {', '.join(names())}")
    parser.add_argument("--minutes", type=float, default=1.0, help="in all, by default 1")
    parser.add_argument("--seed", type=int, default=None, help="by default another each time")
    return parser.parse_args()


def main() -> int:
    """Runs the fuzzers in turns; returns the exit status."""
    arguments = _arguments()
    chosen = arguments.names or names()
    seed = random.SystemRandom().randrange(10**9) if arguments.seed is None else arguments.seed
    print(f"seed {seed}; {', '.join(chosen)}")
    begun, totals, number = time.monotonic(), {name: Counter[str]() for name in chosen}, 0
    end = begun + arguments.minutes * 60
    turn_s = min(TURN_S, arguments.minutes * 60 / len(chosen))
    while time.monotonic() < end:
        for name in chosen:
            try:
                totals[name] += turn(name, seed, number, min(end, time.monotonic() + turn_s))
            except AssertionError as wrong:
                print(f"{name}, seed {seed}, turn {number}: {wrong}", file=sys.stderr)
                return 1
        number += 1
    for name, cases in totals.items():
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(cases.items()))
        print(f"{name}: {cases.total():,} cases ({kinds})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
