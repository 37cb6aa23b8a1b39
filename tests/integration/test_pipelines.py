"""The pipeline of the page: run, run again, refreshed in full."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.quick_start import URL
from tests.plugin import missing
from tests.support.checks import bodies, total
from tests.support.connect import ADDRESS, SPARK, ConnectServer
from tests.support.pages import block

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900)]

PAGE = "docs/pipelines.md"
KEPT = '@dp.table(table_properties={"pipelines.reset.allowed": "false"})'
_RUN_TIMEOUT_S = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    if importlib.util.find_spec("pyspark.pipelines.cli") is None:
        pytest.skip("this Spark has no pipelines in a form of use: they came with 4.1")
    if importlib.util.find_spec("yaml") is None:
        missing("pip install 'pyspark[pipelines]'")
    folder = tmp_path / "server"
    folder.mkdir()
    with ConnectServer(folder) as server:
        yield server.address


def test_a_table_of_a_pipeline_has_each_message_once_and_outlives_a_full_refresh(
    server: str, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    (tmp_path / "transformations").mkdir()
    code = tmp_path / "transformations" / "orders.py"
    spec = block(PAGE, "# spark-pipeline.yml")
    (tmp_path / "spark-pipeline.yml").write_text(spec.replace("file:///data", tmp_path.as_uri()), "utf-8")
    text = block(PAGE, "# transformations/orders.py").replace(URL, rabbit.url()).replace('"orders")', f'"{name}")', 1)
    text = text.replace("/data/pipelines", str(tmp_path))
    code.write_text(text, "utf-8")
    assert name in text
    assert rabbit.url() in text
    assert KEPT in text

    def run(*more: str) -> str:
        command = block(PAGE, f"spark-pipelines --remote {ADDRESS} run").strip().replace(ADDRESS, server)
        path = os.pathsep.join([str(SPARK / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["sh", "-e", "-c", " ".join([command, *more])], cwd=tmp_path,
            env={**os.environ, "PATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=_RUN_TIMEOUT_S,
        )  # fmt: skip
        return done.stdout if done.returncode else f"{done.stdout}\nended well"

    def table(of: str) -> list[str]:
        """IDs of its rows."""
        files = (tmp_path / "server" / "warehouse" / of).glob("*.parquet")
        return sorted(one for file in files for one in pq.read_table(file, columns=["messageId"])[0].to_pylist())

    sent = [str(one) for one in rabbit.publish(name, bodies(10))]
    assert run().endswith("ended well")
    assert table("orders") == table("texts") == sorted(sent)
    sent += [str(one) for one in rabbit.publish(name, bodies(5))]
    assert run().endswith("ended well")
    assert table("orders") == table("texts") == sorted(sent)
    assert total(rabbit, name) == 0

    # What was read is in the table that is kept, and what is built on it is built again.
    assert run("--full-refresh-all").endswith("ended well")
    assert table("orders") == table("texts") == sorted(sent)
    said = run("--full-refresh orders")
    assert "TABLE_NOT_RESETTABLE" in said, said
    assert table("orders") == sorted(sent)

    # Without the property it is all gone: the queue has nothing to read it from again.
    code.write_text(text.replace(KEPT, "@dp.table"), "utf-8")
    assert run("--full-refresh-all").endswith("ended well")
    assert table("orders") == table("texts") == []
