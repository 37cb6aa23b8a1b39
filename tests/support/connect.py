"""A server of Spark Connect, in a JVM of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

from testbed.ports import LOOPBACK, listens
from testbed.process import Command
from testbed.server import LocalServer

__all__ = ["ADDRESS", "SPARK", "ConnectServer"]

#: Of the server on the pages.
ADDRESS = "sc://server:15002"
SPARK = Path(pyspark.__file__).parent
_START_TIMEOUT_S = 120.0


class ConnectServer(LocalServer):
    """A server with this package.

    Args:
        folder: for its log, and for tables below `warehouse`.
    """

    title = "Spark-Connect"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder=folder, start_timeout_s=_START_TIMEOUT_S)
        self._port = self._reserve_port()

    @property
    def address(self) -> str:
        """For clients."""
        return f"sc://{LOOPBACK}:{self._port}"

    def _command(self) -> Command:
        settings = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }
        given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command = [
            str(SPARK / "bin" / "spark-submit"), "--master", "local[2]", *given,
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        ]  # fmt: skip
        return Command(command, {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK)})

    def _ready(self) -> bool:
        return listens(self._port)
