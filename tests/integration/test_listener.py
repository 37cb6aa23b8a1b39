"""What QueueListener says of a query that runs."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pyspark_mq import QueueListener, readings
from pyspark_mq.decode.batch import ROW_BYTES
from testbed.brokers.rabbitmq import RabbitNode
from testbed.ports import free_port
from testbed.process import poll
from tests.integration.test_spark import Job, full_api
from tests.support.checks import bodies
from tests.support.engine import full_epochs

pytestmark = full_api


@pytest.fixture
def listen(spark: Any) -> Iterator[Any]:
    """Adds a listener, and takes it away again."""
    added = []

    def add(listener: QueueListener) -> None:
        spark.streams.addListener(listener)
        added.append(listener)

    yield add
    for listener in added:
        spark.streams.removeListener(listener)


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Points of each metric."""
    data = reader.get_metrics_data()
    metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
    return {one.name: one.data.data_points for one in metrics}


def settled(reader: InMemoryMetricReader) -> int:
    points = exported(reader).get("pyspark_mq.settled")
    return int(points[0].value) if points else 0


@pytest.mark.whole
def test_lines_metrics_and_spans(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, listen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    sent = rabbit.publish(name, bodies(40))
    rabbit.publish(name, bodies(3), ids=sent[:3])
    job = Job(spark, tmp_path, rabbit, name, **full_epochs(20))
    with caplog.at_level(logging.INFO, "pyspark_mq.listener"):
        listen(QueueListener(0, meter_provider=MeterProvider([reader]), tracer_provider=tracing))
        # By default Spark reports every ten seconds while nothing comes.
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200ms")
        query = job.start()
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        assert poll(lambda: settled(reader) == 43, 90)
        query.stop()
        assert poll(lambda: "ended" in caplog.text, 30)
    measured = exported(reader)
    assert {measured[f"pyspark_mq.{one}"][0].value for one in ("received", "settled")} == {43}
    assert measured["pyspark_mq.duplicates_dropped"][0].value == 3
    assert measured["pyspark_mq.backlog"][0].value == 0
    assert measured["pyspark_mq.received"][0].attributes["messaging.destination.name"] == f"queue '{name}'"
    assert {point.attributes["step"] for point in measured["pyspark_mq.trigger.duration"]} > {"trigger", "run"}

    assert "20 rows in 1 triggers" in caplog.text
    assert f"queue '{name}': " in caplog.text
    assert "3 duplicates dropped" in caplog.text
    assert "backlog" in caplog.text

    roots = [span for span in spans.get_finished_spans() if span.name == "epoch"]
    assert [span.attributes["pyspark_mq.rows"] for span in roots] == [20, 20]
    for root in roots:
        steps = [
            span for span in spans.get_finished_spans() if span.parent and span.parent.span_id == root.context.span_id
        ]
        assert {"receive", "plan", "write offsets", "run", "write commit"} <= {span.name for span in steps}
        assert all(span.end_time >= span.start_time >= root.start_time for span in steps)
        # Of two that are confirmed between two reports the later one is reported.
        assert root is not roots[-1] or "settle" in {span.name for span in steps}
        assert root.attributes["pyspark_mq.0.messages"] == 20
    # With what is kept beside the bodies.
    assert sum(root.attributes["pyspark_mq.0.bytes"] for root in roots) > sum(map(len, bodies(40))) + 40 * ROW_BYTES


def test_a_failure_is_said_in_short(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, listen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rabbit.publish(name, bodies(20))
    job = Job(spark, tmp_path, rabbit, name, onMissingMessageId="fail", messageIdFrom="property:nothing")
    with caplog.at_level(logging.INFO, "pyspark_mq.listener"):
        listen(QueueListener())
        job.fail()
        assert poll(lambda: "failed: " in caplog.text, 30)
    assert all(len(record.getMessage()) < 400 for record in caplog.records)


@pytest.mark.whole
def test_prometheus_fetches_it(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, listen: Any) -> None:
    rabbit.publish(name, bodies(10))
    port = free_port()
    listen(QueueListener(None, prometheus=f"127.0.0.1:{port}"))
    job = Job(spark, tmp_path, rabbit, name, **full_epochs(10))
    last = job.run(10)
    (reading,) = readings(last) or [None]
    if reading is not None:
        assert reading.reads == f"queue '{name}'"
        assert reading.counters.received == 10

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    assert poll(lambda: f"queue '{name}'" in page(), 30)
    assert "pyspark_mq_received" in page()
