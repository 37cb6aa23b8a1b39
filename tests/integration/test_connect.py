"""Spark Connect: the server has this package, the client gives options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.integration.test_spark import full_api
from tests.support.checks import bodies, total
from tests.support.connect import ADDRESS, ConnectServer
from tests.support.pages import block

pytestmark = [pytest.mark.whole, full_api]

CLIENT = Path(__file__).parents[1] / "support" / "connect_client.py"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server.address


@pytest.mark.parametrize("what", ["plain", "listener"])
def test_a_client_reads_a_queue(remote: str, rabbit: RabbitNode, tmp_path: Path, name: str, what: str) -> None:
    sent = rabbit.publish(name, bodies(30))
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": name, "maxMessagesPerTrigger": "10"}
    options["checkpointLocation"] = str(tmp_path / "checkpoint")
    code = block("docs/deploy.md", "from pyspark.sql import SparkSession")
    assert ADDRESS in code
    code = code.replace(ADDRESS, remote)
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
