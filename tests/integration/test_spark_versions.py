"""The driver's rows of the failure matrix in the real Sparks that managed platforms run: a JVM, killed.

Spark 4.0 and 4.1 call a source alike, so each test runs on one of them. ``make spark-matrix`` runs all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.brokers.rabbitmq import RabbitNode
from tests.support.real_spark import real_spark
from tests.support.spark_driver import POINTS, DriverMatrix
from tests.support.stream_driver import StreamDriver
from tests.support.streams import stream_node


@pytest.mark.whole
@pytest.mark.timeout(900)  # the first time it is installed
def test_a_driver_killed_at_any_point_of_a_real_spark_40(rabbit: RabbitNode, tmp_path: Path) -> None:
    python = real_spark("4.0")
    queue = f"driver-{uuid.uuid4().hex[:8]}"
    rabbit.declare(queue)
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": queue}
    matrix = DriverMatrix(python, rabbit, queue, tmp_path, options)
    try:
        matrix.run()
    finally:
        rabbit.delete(queue)
    assert tuple(matrix.passed) == POINTS


@pytest.fixture(scope="module")
def streams() -> Iterator[RabbitNode]:
    with stream_node() as node:
        yield node


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_driver_of_a_stream_killed_inside_a_batch_of_a_real_spark_41(streams: RabbitNode, tmp_path: Path) -> None:
    StreamDriver(real_spark("4.1"), streams, f"driver-{uuid.uuid4().hex[:8]}", tmp_path).run()
