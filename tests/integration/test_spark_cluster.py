"""A standalone cluster of Spark, a worker of which is killed while it reads."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from testbed.audit import output_marks, verdict
from testbed.process import NodeError, poll
from testbed.queues import PrivateBroker
from testbed.spark_cluster import SparkCluster
from testbed.storm import Job
from tests.conftest import missing

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
