"""Exports the progress of queries as OpenTelemetry metrics and traces. Without OpenTelemetry's API it does nothing.

docs/monitor.md lists the names of the metrics and spans.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark_mq.ack.counters import GAUGES, Counters
from pyspark_mq.errors import ConfigurationError, MissingExtraError
from pyspark_mq.spark_source.progress import Reading

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["Metrics", "Spans", "serve"]

#: Spark's name for the duration of a step -> this package's name for the step. The steps are in the order in which a
#: trigger runs them (``MicroBatchExecution.scala``).
_STEPS: Mapping[str, str] = {
    "latestOffset": "receive and plan",
    "walCommit": "write offsets",
    "queryPlanning": "plan query",
    "getBatch": "get batch",
    "addBatch": "run",
    "commitOffsets": "write commit",
}
#: Bounds of the histogram's buckets. They cover a single step of a nearly idle query and a batch on a busy cluster.
_DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_PORT_MAX = 65_535
#: Maximum number of epochs whose traces wait for the confirmation of the acknowledgements.
_EPOCHS_KEPT = 16


def serve(address: str) -> MeterProvider:
    """Serve metrics at `host:port`, where Prometheus can scrape them, and return the meter provider for them."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= _PORT_MAX):
        form = f"of the form 'host:port', such as 'localhost:9464', with a port up to {_PORT_MAX}"
        raise ConfigurationError(f"prometheus={address!r} is not {form}")
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.metrics import MeterProvider as Provider  # noqa: PLC0415
        from prometheus_client import start_http_server  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            f"{missing.name} is not installed; run: {sys.executable} -m pip install 'pyspark-mq[otel]'"
        ) from missing
    try:
        start_http_server(int(port), host)
    except (OSError, ValueError) as failed:
        raise ConfigurationError(f"prometheus={address!r} cannot be served: {failed}") from failed
    return Provider([PrometheusMetricReader()])


class Metrics:
    """OpenTelemetry instruments for counters, gauges and durations. Without OpenTelemetry this class does nothing."""

    def __init__(self, provider: MeterProvider | None) -> None:
        self._installed = False
        try:
            from opentelemetry.metrics import get_meter  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            return
        self._installed = True
        meter = get_meter("pyspark_mq", meter_provider=provider)
        self._counters = {
            name: meter.create_counter(f"pyspark_mq.{_snake(name)}", "{message}", f"Counter '{name}' of the source")
            for name in Counters().report()
            if name not in GAUGES
        }
        self._gauges = {
            name: meter.create_gauge(f"pyspark_mq.{name}", "{message}", f"Reading '{name}' of the source")
            for name in GAUGES
        }
        self._durations = meter.create_histogram(
            "pyspark_mq.trigger.duration",
            "s",
            "Steps of a trigger with rows, by Spark's clock",
            explicit_bucket_boundaries_advisory=_DURATION_BUCKETS_S,
        )

    def add(self, label: str, now: Reading, grown: Mapping[str, int]) -> None:
        """Record a source's progress: by how much its counters have grown, and the current values of its gauges."""
        if not self._installed:
            return
        attributes = {"query": label, "source": str(now.source), "messaging.destination.name": now.reads}
        for name, count in grown.items():
            self._counters[name].add(count, attributes)
        for partition, count in (now.partitions or {}).items():
            self._gauges["backlog"].set(count, {**attributes, "messaging.destination.partition.id": partition})
        if now.partitions is not None:
            return
        for name, gauge in self._gauges.items():
            value = getattr(now.counters, name)
            if value is not None:
                gauge.set(value, attributes)

    def durations(self, label: str, duration_ms: Mapping[str, int]) -> None:
        """Record how long a trigger and each of its steps took, as Spark reports it."""
        if not self._installed:
            return
        for step, name in (*_STEPS.items(), ("triggerExecution", "trigger")):
            if step in duration_ms:
                self._durations.record(duration_ms[step] / 1000, {"query": label, "step": name})


class Spans:
    """Records a trace for each epoch: the steps of the epoch's trigger, and the wait for the epoch's confirmation.

    Without OpenTelemetry this class does nothing.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer: Any = None
        with suppress(ModuleNotFoundError):
            from opentelemetry import trace  # noqa: PLC0415 - an extra

            self._tracer = trace.get_tracer("pyspark_mq", tracer_provider=provider)
            self._in_context = trace.set_span_in_context

    def trigger(
        self, label: str, epochs: OrderedDict[tuple[int, int], Any], progress: Any, found: list[Reading]
    ) -> None:
        """Record a span for a trigger, and a span for each of its steps.

        Add the trace to `epochs`, where :meth:`confirmed` finds it.
        """
        if self._tracer is None:
            return
        at_ns = round(datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp() * 1e9)
        durations = progress.durationMs
        counts = {"pyspark_mq.rows": progress.numInputRows, "spark.batch.id": progress.batchId, "query": label}
        for now in found:
            if now.planned is not None:
                counts |= {f"pyspark_mq.{now.source}.{name}": value for name, value in now.planned.items()}
        root = self._tracer.start_span("epoch", start_time=at_ns, attributes=counts)
        context = self._in_context(root)
        end_ns = at_ns
        for name, start_ns, end_ns in _steps(at_ns, durations, found):
            self._tracer.start_span(name, context, start_time=start_ns).end(end_ns)
        root.end(max(end_ns, at_ns + durations.get("triggerExecution", 0) * 1_000_000))
        for now in found:
            if now.planned is not None:
                epochs[now.source, now.planned["epoch"]] = context
        while len(epochs) > _EPOCHS_KEPT:
            epochs.popitem(last=False)

    def confirmed(self, epochs: OrderedDict[tuple[int, int], Any], now: Reading) -> None:
        """Record how long an epoch's acknowledgements waited for confirmation, as a span of the epoch's trace."""
        if self._tracer is None or now.confirmed is None:
            return
        context = epochs.pop((now.source, now.confirmed["epoch"]), None)
        if context is not None:
            end_ns = now.confirmed["confirmedAtMs"] * 1_000_000
            start_ns = end_ns - now.confirmed["confirmMs"] * 1_000_000
            attributes = {"messaging.destination.name": now.reads, "pyspark_mq.epoch": now.confirmed["epoch"]}
            self._tracer.start_span("settle", context, start_time=start_ns, attributes=attributes).end(end_ns)


def _steps(at_ns: int, durations: Mapping[str, int], found: list[Reading]) -> Iterator[tuple[str, int, int]]:
    """Yield the name, start and end of each step of a trigger. Spark runs the steps one after the other.

    Spark's step `latestOffset` becomes two steps, `receive` and `plan`, if the query has only one source.
    """
    planned = found[0].planned if len(found) == 1 else None
    for step, name in _STEPS.items():
        end_ns = at_ns + durations.get(step, 0) * 1_000_000
        if step == "latestOffset" and planned is not None:
            cut_ns = min(end_ns, at_ns + planned["receiveMs"] * 1_000_000)
            yield "receive", at_ns, cut_ns
            yield "plan", cut_ns, end_ns
        elif step in durations:
            yield name, at_ns, end_ns
        at_ns = end_ns


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)
