"""Fetches every broker that is not a package of the machine, and jars for Spark, so that tests need not:
``python -m testbed.fetch``.
"""

from __future__ import annotations

import sys
from functools import partial

from testbed.debian import RABBITMQ_SUITES, fetch_rabbitmq
from testbed.distributions import (
    ACTIVEMQ_VERSIONS,
    ARTEMIS_VERSIONS,
    DELTA_JARS,
    HADOOP,
    JOLOKIA,
    KAFKA,
    KAFKA_JARS,
    fetch,
)
from testbed.process import NodeError


def main() -> int:
    """Fetch everything; 1 if something could not be had."""
    brokers = (JOLOKIA, *ACTIVEMQ_VERSIONS.values(), *ARTEMIS_VERSIONS.values(), KAFKA)
    distributions = (*brokers, HADOOP, DELTA_JARS, KAFKA_JARS)
    wanted = [
        *(partial(fetch, one) for one in distributions),
        *(partial(fetch_rabbitmq, one) for one in RABBITMQ_SUITES),
    ]
    failed = 0
    for bring in wanted:
        try:
            print(bring(), flush=True)
        except NodeError as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
