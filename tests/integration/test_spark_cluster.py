"""A standalone cluster of Spark: a worker of it is killed while it reads, and the command of the page is run."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from pathlib import Path

import psutil
import pyspark
import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.audit import output_marks, verdict
from testbed.chaos.chaos import Job
from testbed.chaos.queues import PrivateBroker
from testbed.process import Command, NodeError, Process, poll
from testbed.quick_start import URL
from testbed.spark.standalone import SparkCluster
from tests.plugin import missing
from tests.support.pages import ROOT, block

pytestmark = pytest.mark.whole


def test_a_worker_that_dies_takes_nothing_with_it(tmp_path: Path) -> None:
    queue = f"cluster-{uuid.uuid4().hex[:8]}"
    try:
        broker = PrivateBroker("rabbitmq", queue, None)
    except NodeError as absent:
        missing(str(absent))
        raise
    with broker, SparkCluster() as cluster:
        options = {**broker.options, "maxMessagesPerTrigger": "200", "numPartitions": "2"}
        job = Job(broker.name, broker.url, queue, tmp_path, options, cluster.url, cluster.settings)
        sent: list[str] = []

        def send(count: int) -> None:
            ids = [str(uuid.uuid4()) for _ in range(count)]
            broker.send([one.encode() for one in ids], ids)
            sent.extend(ids)

        def arrived() -> int:
            assert job.running, job.log.read_text("utf-8", "replace")[-3000:]
            return len(output_marks(job.output)) if job.output.exists() else 0

        send(4_000)
        job.keep_alive()
        try:
            assert poll(lambda: arrived() > 0, 120), job.log.read_text("utf-8", "replace")[-3000:]
            for _ in range(2):
                assert cluster.kill_worker()
                send(1_000)
            assert poll(lambda: arrived() >= len(sent), 180)
            assert poll(lambda: broker.left() == 0, 30)
        finally:
            job.stop()
        assert job.starts == 1
        result = verdict(sent, output_marks(job.output), broker.left())
        assert result.holds, result.rows()


def test_headers_count_where_rows_travel_inside_tasks(rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    """30 kB of headers on a body of one byte, a thousand times: 4 tasks of that would be over the limit of 8 MiB."""
    ids = [str(uuid.uuid4()) for _ in range(1_000)]
    rabbit.publish(name, [one.encode() for one in ids], ids=ids, headers={"large": "a" * 30_000})
    with SparkCluster() as cluster:
        settings = {**cluster.settings, "spark.rpc.message.maxSize": "8"}
        options = {"numPartitions": "2", "maxPartitionBytes": "7m", "maxMessagesPerTrigger": "500"}
        job = Job("rabbitmq", rabbit.url(), name, tmp_path, options, cluster.url, settings)
        job.keep_alive()
        try:
            assert poll(lambda: job.output.exists() and len(output_marks(job.output)) == 1_000, 120), job.log.read_text(
                "utf-8", "replace"
            )[-3000:]
        finally:
            job.stop()
        assert job.starts == 1
    assert sorted(output_marks(job.output)) == sorted(ids)


def test_the_command_of_the_page_reads_a_queue(rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    ids = [str(uuid.uuid4()) for _ in range(100)]
    rabbit.publish(name, [one.encode() for one in ids], ids=ids)
    shutil.copy(ROOT / "examples" / "job.py", tmp_path)
    output, log = tmp_path / "data" / "orders", tmp_path / "log"
    with SparkCluster() as cluster:
        command = block("docs/deploy.md", "export PYSPARK_PYTHON=/opt/venv/bin/python")
        given = "".join(f" --conf {key}={value}" for key, value in cluster.settings.items())
        for old, new in {
            "/opt/venv/bin/python": sys.executable,
            "spark://master:7077": f"{cluster.url}{given}",
            URL: rabbit.url(),
            "--queue orders": f"--queue {name}",
            "/data/": f"{tmp_path}/data/",
        }.items():
            assert old in command
            command = command.replace(old, new)
        spark = Path(pyspark.__file__).parent
        path = os.pathsep.join([str(spark / "bin"), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "SPARK_HOME": str(spark), "PYTHONPATH": str(ROOT)}
        job = Process(Command(["sh", "-e", "-c", command], environment), log=log, folder=tmp_path)
        try:
            assert poll(lambda: (output.exists() and len(output_marks(output)) == 100) or not job.running, 120)
            assert job.running, log.read_text("utf-8")[-3000:]
            assert poll(lambda: rabbit.counts(name).total == 0, 30)
            (program,) = [one for one in psutil.Process(job.pid).children(recursive=True) if _runs_job(one)]
            program.terminate()
            assert poll(lambda: not job.running, 60)
            assert job.exit_code == 0, log.read_text("utf-8")[-3000:]
        finally:
            job.kill()
    assert sorted(output_marks(output)) == sorted(ids)


def _runs_job(process: psutil.Process) -> bool:
    return bool(process.name().startswith("python")) and any("job.py" in part for part in process.cmdline())
