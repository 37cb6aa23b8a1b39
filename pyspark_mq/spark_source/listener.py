"""A listener for queries that read queues and streams. It logs a line each minute, and exports metrics and traces.

.. code-block:: python

    from pyspark_mq import QueueListener

    spark.streams.addListener(QueueListener())

The listener runs in the program that added it, even if the program uses Spark Connect. It evaluates the progress that
Spark reports (:class:`pyspark.sql.streaming.StreamingQueryListener`), and does not talk to the source or the broker.
Spark 4.2 and later report the source's counters. Spark 4.0 and 4.1 report only rows and durations.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_mq.ack.counters import ALARMS, GAUGES, SAID
from pyspark_mq.errors import ConfigurationError
from pyspark_mq.spark_source.metrics import Metrics, Spans, serve
from pyspark_mq.spark_source.progress import Reading, readings

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["QueueListener"]

_LOG = logging.getLogger("pyspark_mq.listener")

_ERROR_SHOWN = 300


@dataclass(slots=True)
class _Watched:
    """The listener's record of a run of a query."""

    label: str
    said_s: float
    rows: int = 0
    triggers: int = 0
    #: Source -> number of the batch whose progress had the newest reading of this source, and that reading.
    last: dict[int, tuple[int, Reading]] = field(default_factory=dict)
    #: Source -> counts since the last log line.
    sums: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: (source, epoch) -> the trace of an epoch whose acknowledgements are not confirmed yet.
    epochs: OrderedDict[tuple[int, int], Any] = field(default_factory=OrderedDict)


class QueueListener(StreamingQueryListener):
    """Logs what queries on queues and streams do, and exports metrics and traces if OpenTelemetry is installed.

    Log lines go to the logger ``pyspark_mq.listener`` at level INFO, or WARNING if a message was lost or rejected. If
    the program has not set up logging, the lines go to standard error.

    Metrics and spans go to the given providers, or else to OpenTelemetry's global providers. If the program has not set
    global providers either, OpenTelemetry drops the metrics and spans. The page "Monitor" lists their names.

    Args:
        log_every_s: seconds between log lines of a query; 0 for a line after each trigger, None for no lines.
        prometheus: ``host:port`` to serve Prometheus metrics on. Needs ``pip install 'pyspark-mq[otel]'``.
        meter_provider: OpenTelemetry provider for the metrics. Cannot be set together with `prometheus`.
        tracer_provider: OpenTelemetry provider for the spans.

    Raises:
        MissingExtraError: `prometheus` is given, and its exporter is not installed.
        ConfigurationError: `prometheus` is not ``host:port``, cannot be served, or is set together with
            `meter_provider`.
    """

    def __init__(
        self,
        log_every_s: float | None = 60.0,
        *,
        prometheus: str | None = None,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        if prometheus is not None:
            if meter_provider is not None:
                raise ConfigurationError("set 'prometheus' or 'meter_provider', not both")
            meter_provider = serve(prometheus)
        self._log_every_s = log_every_s
        self._metrics = Metrics(meter_provider)
        self._spans = Spans(tracer_provider)
        self._runs: dict[str, _Watched] = {}
        #: Needed because classic Spark, unlike Spark Connect, does not give a listener its session.
        self._session = SparkSession.getActiveSession()
        if log_every_s is not None and not _LOG.hasHandlers():
            _LOG.addHandler(logging.StreamHandler(sys.stderr))
            _LOG.setLevel(logging.INFO)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._runs[str(event.runId)] = _Watched(_label(event.name, event.id), time.monotonic())

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        run = self._runs.setdefault(str(progress.runId), _Watched(_label(progress.name, progress.id), time.monotonic()))
        found = readings(progress)
        run.rows += progress.numInputRows
        run.triggers += progress.numInputRows > 0
        if progress.numInputRows:
            self._metrics.durations(run.label, progress.durationMs)
            self._spans.trigger(run.label, run.epochs, progress, found)
        self._take(run, progress.batchId, found)
        self._say(run)

    def _take(self, run: _Watched, batch: int, found: Sequence[Reading]) -> None:
        """Add readings to the run's counts, except readings that are older than those added before.

        A reading may be older because Spark delivers progress to listeners late, while `onQueryIdle` takes the newest
        progress from the query itself.
        """
        alarms = []
        for now in found:
            last_batch, last = run.last.get(now.source, (-1, None))
            grown = _growth(last, now)
            if batch < last_batch or min(grown.values()) < 0:
                continue
            run.last[now.source] = batch, now
            run.sums[now.source].update(grown)
            self._metrics.add(run.label, now, grown)
            self._spans.confirmed(run.epochs, now)
            alarms += [f"{grown[name]} {name} of {now.reads}" for name in ALARMS if grown[name]]
        if alarms and self._log_every_s is not None:
            _LOG.warning("%s: %s message(s)", run.label, ", ".join(alarms))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        run = self._runs.get(str(event.runId))
        if run is None:
            return
        # Spark sends progress without rows to no listener. But the last messages are settled after the last batch, so
        # only such a progress has the final counters. Take it from the query.
        session = self.spark or self._session
        query = None if session is None else session.streams.get(str(event.id))
        # If the query was restarted meanwhile, its progress has the counters of another run.
        progress = None if query is None or str(query.runId) != str(event.runId) else query.lastProgress
        if progress is not None:
            self._take(run, progress["batchId"], readings(progress))
        self._say(run)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        run = self._runs.pop(str(event.runId), None)
        if self._log_every_s is None:
            return
        # If a query started before the listener was added, and has been idle since then, this is its first event.
        label = _label(None, event.id) if run is None else run.label
        if run is not None:
            self._say(run, at_once=True)
        if event.exception is None:
            _LOG.info("%s: ended", label)
        else:
            # Spark's text may be long, for example because it repeats offsets.
            text = " ".join(event.exception.split())
            _LOG.warning("%s: failed: %s", label, text if len(text) <= _ERROR_SHOWN else f"{text[:_ERROR_SHOWN]}...")

    def _say(self, run: _Watched, *, at_once: bool = False) -> None:
        if self._log_every_s is None:
            return
        now_s = time.monotonic()
        seconds = now_s - run.said_s
        if seconds < self._log_every_s and not at_once:
            return
        _LOG.info("%s: %s rows in %d triggers, %.0f s (%s a second)", run.label, f"{run.rows:,}", run.triggers,
                  seconds, f"{run.rows / max(seconds, 0.001):,.0f}")  # fmt: skip
        for source, (_, reading) in sorted(run.last.items()):
            _LOG.info("%s: %s: %s", run.label, reading.reads, _line(run.sums[source], reading))
        run.said_s, run.rows, run.triggers = now_s, 0, 0
        run.sums.clear()


def _label(name: str | None, query_id: Any) -> str:
    return f"query '{name}'" if name else f"query {str(query_id)[:8]}"


def _growth(before: Reading | None, now: Reading) -> dict[str, int]:
    """Return by how much each counter has grown from `before` to `now`.

    Counters never decrease within a run, so a negative value shows that `now` is the older reading.
    """
    earlier = {} if before is None else before.counters.report()
    counts = {name: value for name, value in now.counters.report().items() if name not in GAUGES and value is not None}
    return {name: value - (earlier.get(name) or 0) for name, value in counts.items()}


def _line(sums: Counter[str], reading: Reading) -> str:
    counters = reading.counters
    if reading.partitions is not None:
        most = max(reading.partitions, key=reading.partitions.__getitem__, default="")
        of = f", of which {reading.partitions[most]:,} in '{most}'" if counters.backlog else ""
        return f"{sums['planned']:,} offsets planned, backlog {counters.backlog:,}{of}"
    backlog = "unknown" if counters.backlog is None else f"{counters.backlog:,}"
    parts = [f"{sums['received']:,} received", f"{sums['settled']:,} settled"]
    parts += [f"{sums[name]:,} {words}" for name, words in SAID.items() if sums[name]]
    return ", ".join(
        [*parts, f"{counters.unacked:,} unacknowledged, {counters.buffered:,} buffered, backlog {backlog}"]
    )
