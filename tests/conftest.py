"""Real brokers for tests. Locally a missing broker is a skip; in CI it is a failure."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.brokers.process import NodeError
from pyspark_mq.brokers.rabbitmq_node import RabbitNode


def missing(reason: str) -> None:
    """Skip, or fail where everything has to be there."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitNode]:
    """One RabbitMQ for the whole run. A test that kills it starts it again."""
    try:
        node = RabbitNode()
    except NodeError as absent:
        missing(str(absent))
        raise
    with node:
        yield node


@pytest.fixture(params=["classic", "quorum"])
def queue(rabbit: RabbitNode, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty durable queue of each kind, of its own for each test."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    if not rabbit.running:
        rabbit.start()
    rabbit.declare(name, quorum=request.param == "quorum")
    yield name
    if not rabbit.running:
        rabbit.start()
    rabbit.delete(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for all tests that need one."""
    import sys

    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
