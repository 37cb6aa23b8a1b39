"""Fetches every broker that is not a package of the machine, and jars for Spark, so that tests need not:
``python -m testbed.fetch``. For a demo the broker it names: ``python -m testbed.fetch artemis``.

Needs no more than the interpreter: set-up runs it while the environment is still being made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from testbed.debian import RABBITMQ_SUITES, fetch_rabbitmq
from testbed.distributions import (
    ACTIVEMQ_VERSIONS,
    ARTEMIS_VERSIONS,
    DELTA_JARS,
    HADOOP,
    JDBC_JARS,
    JOLOKIA,
    KAFKA,
    KAFKA_JARS,
    TLA_TOOLS,
    fetch,
    newest,
)
from testbed.process import NodeError

__all__: list[str] = []

_DISTRIBUTIONS = (
    JOLOKIA,
    *ACTIVEMQ_VERSIONS.values(),
    *ARTEMIS_VERSIONS.values(),
    KAFKA,
    HADOOP,
    JDBC_JARS,
    DELTA_JARS,
    KAFKA_JARS,
    TLA_TOOLS,
)
#: What a broker is made of, in the version that a node has by default.
_BROKERS = {
    "activemq": (JOLOKIA, ACTIVEMQ_VERSIONS[newest(ACTIVEMQ_VERSIONS, "6")]),
    "artemis": (JOLOKIA, ARTEMIS_VERSIONS[newest(ARTEMIS_VERSIONS, "2")]),
}


def main() -> int:
    """Fetch what is named, the newest version of each, or everything; 1 if something could not be had."""
    parser = argparse.ArgumentParser(prog="python -m testbed.fetch", description=__doc__)
    parser.add_argument("brokers", nargs="*", help=f"of {', '.join(_BROKERS)}; by default everything")
    arguments = parser.parse_args()
    if set(arguments.brokers) - set(_BROKERS):
        parser.error(f"known are {', '.join(_BROKERS)}")
    chosen = {one.name: one for name in arguments.brokers for one in _BROKERS[name]}
    by_maven = [partial(fetch, one) for one in (chosen.values() if chosen else _DISTRIBUTIONS)]
    by_apt = [] if chosen else [partial(fetch_rabbitmq, one) for one in RABBITMQ_SUITES]
    # Side by side, as much of it is waiting. Those of Maven are not: nothing locks its local repository.
    with ThreadPoolExecutor(2) as side_by_side:
        return max(side_by_side.map(_bring, (by_maven, by_apt)))


def _bring(wanted: Sequence[Callable[[], Path]]) -> int:
    """Bring one after the other; 1 if something could not be had."""
    failed = 0
    for bring in wanted:
        try:
            print(bring(), flush=True)
        except NodeError as error:
            print(error, file=sys.stderr, flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
