"""Progress as types, and the listener's arguments."""

from __future__ import annotations

import json
import re
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult, MetricsData
from prometheus_client import generate_latest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

import pyspark_mq
from pyspark_mq import QueueListener, readings
from pyspark_mq.ack.counters import ALARMS, GAUGES, Counters
from pyspark_mq.errors import ConfigurationError, MissingExtraError
from pyspark_mq.spark_source.listener import _growth
from pyspark_mq.spark_source.metrics import Metrics
from pyspark_mq.spark_source.progress import Reading
from tests.support.pages import block

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "pyspark-mq.json"
REPORT = {"reads": "queue 'orders'", **Counters(received=7, backlog=None).report(), "lastPlanned": {"epoch": 3}}


def progress(*latest: Any) -> dict[str, Any]:
    return {"sources": [{"latestOffset": one} for one in latest]}


def test_sources_of_this_kind_are_found_by_their_place() -> None:
    (reading,) = readings(progress('{"orders":{"0":5}}', None, json.dumps(REPORT)))
    assert (reading.source, reading.reads, reading.counters.received) == (2, "queue 'orders'", 7)
    assert reading.counters.backlog is None
    assert reading.planned == {"epoch": 3}
    assert reading.confirmed is None


@pytest.mark.parametrize("latest", [None, "", "{", "7", '"text"', '{"v":1,"planned":""}', "null"])
def test_what_is_no_report_is_passed_over(latest: Any) -> None:
    assert readings(progress(latest)) == []
    assert readings(None) == []  # `lastProgress` before there is any


class Query:
    """One run of a query, and what Spark hands a listener of it."""

    def __init__(self, query: uuid.UUID, listener: QueueListener) -> None:
        self.id, self.runId = query, uuid.uuid4()
        self.listener = listener
        self.lastProgress: dict[str, Any] = {}

    def reached(self, batch: int, rows: int = 0, **counters: int) -> StreamingQueryProgress:
        """A progress; its query has it at once, and the listener when it is handed over."""
        report = {"reads": "queue 'orders'", **Counters(**counters).report()}
        self.lastProgress = StreamingQueryProgress.fromJson(
            {
                "id": str(self.id), "runId": str(self.runId), "name": "x", "timestamp": "2026-01-01T00:00:00.000Z",
                "batchId": batch, "batchDuration": 5, "durationMs": {"triggerExecution": 5}, "eventTime": {},
                "stateOperators": [], "observedMetrics": {}, "sink": {"description": "", "numOutputRows": rows},
                "numInputRows": rows, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0,
                "sources": [{
                    "description": "", "startOffset": "", "endOffset": "", "latestOffset": json.dumps(report),
                    "numInputRows": rows, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "metrics": {},
                }],
            }
        )  # fmt: skip
        return self.lastProgress

    def hand_over(self, progress: StreamingQueryProgress) -> None:
        self.listener.onQueryProgress(QueryProgressEvent(progress))

    def idle(self) -> None:
        self.listener.onQueryIdle(QueryIdleEvent(self.id, self.runId, "2026-01-01T00:00:00.000Z"))


@pytest.fixture
def counted() -> Iterator[tuple[QueueListener, Callable[[str], float]]]:
    """A listener, and what it has exported of a counter."""
    reader = InMemoryMetricReader()

    def count(name: str) -> float:
        data = reader.get_metrics_data()
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return sum(point.value for one in metrics if one.name == name for point in one.data.data_points)

    yield QueueListener(0, meter_provider=MeterProvider([reader])), count
    reader.shutdown()


Counted = tuple[QueueListener, Callable[[str], float]]


def test_progress_that_is_handed_over_late_is_not_counted_again(
    counted: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    listener, count = counted
    query = Query(uuid.uuid4(), listener)
    listener._session = SimpleNamespace(streams={str(query.id): query})
    late = [query.reached(batch, 100, received=100 * batch, lost=5 * (batch > 2)) for batch in range(1, 9)]
    with caplog.at_level("WARNING", "pyspark_mq.listener"):
        query.hand_over(late[0])
        query.reached(8, received=820, settled=800, lost=5)
        query.idle()
        for one in late[1:]:
            query.hand_over(one)
            query.idle()
        query.hand_over(query.reached(9, 30, received=850, settled=820, lost=5))
    assert (count("pyspark_mq.received"), count("pyspark_mq.settled"), count("pyspark_mq.lost")) == (850, 820, 5)
    assert caplog.messages == ["query 'x': 5 lost of queue 'orders' message(s)"]


def test_readings_may_fall_and_counters_go_on(counted: Counted) -> None:
    listener, count = counted
    query = Query(uuid.uuid4(), listener)
    query.hand_over(query.reached(1, 10, received=10, **dict.fromkeys(GAUGES, 9)))
    query.hand_over(query.reached(2, 10, received=20, **dict.fromkeys(GAUGES, 3)))
    assert count("pyspark_mq.received") == 20
    assert {name: count(f"pyspark_mq.{name}") for name in GAUGES} == dict.fromkeys(GAUGES, 3)


def test_counters_of_a_later_run_begin_again_and_are_its_own(counted: Counted) -> None:
    listener, count = counted
    first = Query(uuid.uuid4(), listener)
    second = Query(first.id, listener)
    listener._session = SimpleNamespace(streams={str(first.id): second})
    first.hand_over(first.reached(1, 10, received=10))
    progress = second.reached(2, 40, received=40)
    first.idle()
    assert count("pyspark_mq.received") == 10
    second.hand_over(progress)
    assert count("pyspark_mq.received") == 50


@pytest.mark.parametrize(
    "address",
    ["9464", "localhost:", ":9464", "localhost:http", "localhost:99999", "localhost:-1", "h:٣", "h:" + "9" * 5000],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="'host:port'"):
        QueueListener(None, prometheus=address)


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"prometheus='127.0.0.1:{port}' cannot be served"):
            QueueListener(None, prometheus=f"127.0.0.1:{port}")


def test_the_end_of_a_query_that_ran_before_is_said(caplog: pytest.LogCaptureFixture) -> None:
    query = uuid.uuid4()
    listener = QueueListener()
    with caplog.at_level("INFO", "pyspark_mq.listener"):
        listener.onQueryTerminated(QueryTerminatedEvent(query, uuid.uuid4(), None, None))
        listener.onQueryTerminated(QueryTerminatedEvent(query, uuid.uuid4(), "the sink broke", None))
        QueueListener(None).onQueryTerminated(QueryTerminatedEvent(query, uuid.uuid4(), "not said", None))
    label = f"query {str(query)[:8]}"
    assert caplog.messages == [f"{label}: ended", f"{label}: failed: the sink broke"]


def test_two_ways_for_metrics_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        QueueListener(None, prometheus="localhost:9464", meter_provider=MeterProvider())


class Sent(MetricExporter):
    """Stands for the exporter of the page, which needs a package of its own and a collector."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.names = url, set[str]()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: Any) -> MetricExportResult:
        found = json.loads(metrics_data.to_json())["resource_metrics"]
        self.names |= {one["name"] for each in found for scope in each["scope_metrics"] for one in scope["metrics"]}
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        pass


def test_the_listener_of_the_page_pushes_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = "from opentelemetry.exporter.otlp.proto.http.metric_exporter import ("
    module = begin.split()[1]
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(OTLPMetricExporter=Sent))
    added: list[QueueListener] = []
    names: dict[str, Any] = {"spark": SimpleNamespace(streams=SimpleNamespace(addListener=added.append))}
    exec(block("docs/monitor.md", begin), names)
    (listener,) = added
    reading = Reading(0, "queue 'q'", Counters(backlog=3))
    listener._metrics.add("query 'x'", reading, _growth(None, reading))
    names["provider"].shutdown()
    assert names["exporter"].url.endswith("/v1/metrics")
    assert "pyspark_mq.backlog" in names["exporter"].names


def test_a_missing_exporter_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyspark-mq\[otel\]'"):
        QueueListener(None, prometheus="localhost:9464")


def test_without_opentelemetry_there_are_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry", "opentelemetry.metrics", "opentelemetry.trace"):
        monkeypatch.setitem(sys.modules, name, None)
    QueueListener()


def test_the_package_names_what_it_has() -> None:
    assert {name for name in pyspark_mq.__all__ if hasattr(pyspark_mq, name)} == set(pyspark_mq.__all__)
    with pytest.raises(AttributeError, match="no attribute 'QueueListner'"):
        _ = pyspark_mq.QueueListner  # type: ignore[attr-defined]


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() -> None:
    provider = MeterProvider([PrometheusMetricReader()])
    metrics = Metrics(provider)
    reading = Reading(0, "queue 'q'", Counters())
    metrics.add("query 'x'", reading, _growth(None, reading))
    metrics.durations("query 'x'", {"triggerExecution": 5})
    page = generate_latest().decode()
    provider.shutdown()
    alerts = set(re.findall(r"pyspark_mq_[a-z_]+", block("docs/monitor.md", "# alerts.yml")))
    asked = set(re.findall(r"pyspark_mq_[a-z_]+", DASHBOARD.read_text("utf-8"))) | alerts
    assert (len(alerts), len(asked) > 10) == (4, True)
    assert {f"pyspark_mq_{name}_total" for name in ALARMS} <= alerts & asked
    assert {name for name in asked if f"\n{name}{{" not in page} == set()
    assert 'le="0.025"' in page, "the buckets are of seconds"
    for label in ("query=", "messaging_destination_name=", "step=", "le="):
        assert label in page


def test_the_dashboard_is_what_grafana_takes() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    assert board["uid"] == "pyspark-mq"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    boxes = [panel["gridPos"] for panel in board["panels"]]
    entries = [(x, y) for box in boxes for x in range(box["x"], box["x"] + box["w"])
             for y in range(box["y"], box["y"] + box["h"])]  # fmt: skip
    assert len(entries) == len(set(entries))
    assert all(x < 24 for x, _ in entries)


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".b", "no such host"])
def test_a_host_that_cannot_be_listened_on_is_said(host: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be served"):
        QueueListener(None, prometheus=f"{host}:9464")
