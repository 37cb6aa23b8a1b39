"""The driver's rows of the failure matrix in the real Sparks that managed platforms run: a JVM, killed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError
from testbed.spark.versions import settles_at_once
from tests.plugin import missing
from tests.spark_matrix import spark_python
from tests.support.spark_driver import POINTS, DriverMatrix
from tests.support.stream_driver import StreamDriver
from tests.support.streams import stream_node


@pytest.mark.whole
@pytest.mark.timeout(900)  # the first time it is installed
@pytest.mark.parametrize("version", ["4.0", "4.1"])
def test_a_driver_killed_at_any_point_of_a_real_spark(rabbit: RabbitNode, tmp_path: Path, version: str) -> None:
    try:
        python = spark_python(version)
    except NodeError as absent:
        missing(str(absent))
    queue = f"driver-{uuid.uuid4().hex[:8]}"
    rabbit.declare(queue)
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": queue}
    matrix = DriverMatrix(python, rabbit, queue, tmp_path, options, settles_at_once=settles_at_once(python))
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
@pytest.mark.parametrize("version", ["4.0", "4.1"])
def test_a_driver_of_a_stream_killed_inside_a_batch_of_a_real_spark(
    streams: RabbitNode, tmp_path: Path, version: str
) -> None:
    try:
        python = spark_python(version)
    except NodeError as absent:
        missing(str(absent))
    StreamDriver(python, streams, f"driver-{uuid.uuid4().hex[:8]}", tmp_path).run()
