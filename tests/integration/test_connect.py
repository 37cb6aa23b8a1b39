"""Spark Connect: the server has this package, the client gives options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from testbed.ports import free_port, listens
from testbed.process import Command, Process, poll
from testbed.rabbitmq_node import RabbitNode
from tests.integration.test_spark import full_api
from tests.support.checks import bodies, total
from tests.support.pages import block

pytestmark = [pytest.mark.whole, full_api]

CLIENT = Path(__file__).parents[1] / "support" / "connect_client.py"
SPARK = Path(pyspark.__file__).parent
#: The one of the page.
SERVER = "sc://server:15002"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a JVM of its own."""
    pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
    port, folder = free_port(), tmp_path_factory.mktemp("connect")
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
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
        assert poll(lambda: listens(port) or not server.running, 120)
        assert server.running, (folder / "log").read_text()
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate(10)
        server.kill()


@pytest.mark.parametrize("what", ["plain", "listener"])
def test_a_client_reads_a_queue(remote: str, rabbit: RabbitNode, tmp_path: Path, name: str, what: str) -> None:
    sent = rabbit.publish(name, bodies(30))
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": name, "maxMessagesPerTrigger": "10"}
    code = block("docs/deploying.md", "from pyspark.sql import SparkSession")
    assert SERVER in code
    code = code.replace(SERVER, remote)
    done = subprocess.run(
        [sys.executable, str(CLIENT), what, code, str(tmp_path), json.dumps(options), "30"],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert sorted(seen["ids"]) == sorted(map(str, sent))
    assert json.loads(seen["latest"])["reads"] == f"queue '{name}'"
    assert poll(lambda: total(rabbit, name) == 0, 30)
    if what == "listener":
        assert f"queue '{name}': " in done.stderr
        assert "30 received" in done.stderr or "settled" in done.stderr
        assert "ended" in done.stderr
