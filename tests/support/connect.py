"""A server of Spark Connect, in a JVM of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from testbed.ports import free_port, listens
from testbed.process import Command, Process, poll

__all__ = ["ADDRESS", "SPARK", "connect_server"]

#: Of the server on the pages.
ADDRESS = "sc://server:15002"
SPARK = Path(pyspark.__file__).parent
_START_TIMEOUT_S = 120
_END_TIMEOUT_S = 10


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start one with this package; its address.

    Args:
        folder: for its log, and for tables below `warehouse`.
    """
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [
        str(SPARK / "bin" / "spark-submit"), "--master", "local[2]", *given,
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK)}
    server = Process(Command(command, environment), log=folder / "log", folder=folder)
    try:
        assert poll(lambda: listens(port) or not server.running, _START_TIMEOUT_S)
        assert server.running, (folder / "log").read_text()
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate(_END_TIMEOUT_S)
        server.kill()
