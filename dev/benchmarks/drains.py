"""How each kind of contender empties a queue: started, waited for, looked at, ended."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from benchmarks.contenders import EXACTLY_ONCE, Contender, family
from benchmarks.cpu import Usage, has_source, spark_usage, tree_usage
from benchmarks.figures import Epoch, epoch_of, steady_rate
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.brokers.java import PASSWORD, USER, JavaNode
from testbed.brokers.node import Node
from testbed.comparison.readers import FLINK_OPTIONS, FLINK_PROJECT, HAZELCAST_OPTIONS, build_project
from testbed.distributions import Distribution, fetch, find_java
from testbed.process import poll

__all__ = ["BareDrain", "Drain", "DrainError", "Member", "MemberDrain", "OurDrain", "PerfTestDrain",
           "QueryDrain", "RateDrain", "check_child", "close_child", "interval_rates", "make_session",
           "protocol_of_url", "spawn"]  # fmt: skip

_ROOT = Path(__file__).resolve().parents[2]
_HAZELCAST_PROJECT = Path(__file__).resolve().parent / "hazelcast"
_ERRORS_ONLY = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
_STOP_TIMEOUT_S = 30.0
_PROGRESS_POLL_S = 0.05
_RATE_EPOCH_ROWS = 50_000

PERF_TEST = Distribution(
    "perf-test-2.22.1",
    ("com.rabbitmq:perf-test:2.22.1",),
    "8c12e2287354ca75d55fb270d176f356603c74f0f2377ac92371b92e756ee115",
    transitive=True,
)
_PERF_TEST_ACK_EVERY, _PERF_TEST_PREFETCH = 1_000, 10_000
_PERF_TEST_RATE = re.compile(r"received: ([\d,.]+) msg/s")


class DrainError(Exception):
    """A contender gave up; the text has what it said."""


class Drain(ABC):
    """One turn of one contender.

    It is started, and waited for once the broker has handed out the first message; when the broker says that all
    is settled, it is ended.
    """

    #: Do the messages come from the queue? Else the turn runs from :meth:`begun` until :meth:`wait` returns.
    reads_queue = True
    #: Is what comes behind :meth:`wait` a wait for its own clock? Then the rate until there is the steady one.
    waits_to_settle = False

    def begun(self) -> bool:
        """Has it begun to read? Asked of those that do not read the queue."""
        return True

    @abstractmethod
    def check(self) -> None:
        """Raises a DrainError if it has ended by itself."""

    @abstractmethod
    def start(self) -> None:
        """Begin to read; returns before the first message."""

    @abstractmethod
    def wait(self) -> None:
        """Until it has all messages; it need not have settled them.

        Raises:
            DrainError: it never will.
        """

    @abstractmethod
    def usage(self) -> Usage:
        """CPU time so far, without the broker's."""

    @abstractmethod
    def end(self) -> tuple[int | None, float | None]:
        """End it; number of epochs and steady rate, as :class:`benchmarks.figures.Turn` has them."""


# -- the bare client --------------------------------------------------------------------------


class BareDrain(Drain):
    """A process of :mod:`benchmarks.bare`, or of :mod:`benchmarks.ceiling`."""

    def __init__(self, contender: Contender, url: str, queue: str, messages: int) -> None:
        self._name = contender.name
        words = ["bare", contender.protocol, contender.broker, url, queue, str(messages)]
        if contender.unacknowledged:
            window = contender.unacknowledged
            words = ["ceiling", url, queue, str(messages), str(window), str(window // 2)]
        self._command = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]

    def start(self) -> None:
        self._child = spawn(self._command)

    def check(self) -> None:
        check_child(self._child, self._name)

    def wait(self) -> None:
        assert self._child.stdout is not None
        if self._child.stdout.readline().strip() != "done":
            raise DrainError(f"{self._name} ended with {self._child.wait()}")

    def usage(self) -> Usage:
        return tree_usage("source", self._child.pid)

    def end(self) -> tuple[int | None, float | None]:
        close_child(self._child)
        return None, None


# -- PerfTest ---------------------------------------------------------------------------------


class PerfTestDrain(Drain):
    """RabbitMQ's PerfTest as a consumer alone. It has no end of its own: the empty queue is it."""

    def __init__(self, url: str, queue: str) -> None:
        jars = str(fetch(PERF_TEST) / "*")
        self._command = [find_java(), "-cp", jars, "com.rabbitmq.perf.PerfTest", "--uri", f"{url}%2F", "--queue", queue,
                         "--predeclared", "--producers", "0", "--consumers", "1",
                         "--qos", str(_PERF_TEST_PREFETCH), "--multi-ack-every", str(_PERF_TEST_ACK_EVERY)]  # fmt: skip

    def start(self) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        self._child = spawn(self._command, self._said)

    def check(self) -> None:
        check_child(self._child, "PerfTest")

    def wait(self) -> None:
        self.check()

    def usage(self) -> Usage:
        return tree_usage("jvm", self._child.pid)

    def end(self) -> tuple[int | None, float | None]:
        self._child.terminate()
        close_child(self._child)
        self._said.seek(0)
        rates = interval_rates(self._said.read())
        self._said.close()
        # The first second has the start of the JVM's compiler in it, the last is not a whole one.
        return None, statistics.median(rates[1:-1]) if len(rates) > 2 else None


def interval_rates(said: str) -> list[float]:
    """Messages a second of each second in which there were any, from PerfTest's output."""
    found = [float(rate.replace(",", "")) for rate in _PERF_TEST_RATE.findall(said)]
    return [rate for rate in found if rate > 0]


# -- Hazelcast and Flink ----------------------------------------------------------------------


class Member:
    """A JVM that runs one job after the other: from the second on it is warm.

    Args:
        name: of what runs in it.
        project: where Maven builds its program.
        main: class of the program, which says when it is ready, takes a line for each job and a further one to end it.
        options: of the JVM.
    """

    def __init__(self, name: str, project: Path, main: str, options: Sequence[str]) -> None:
        classes = build_project(project)
        path = os.pathsep.join([str(classes), str(classes.parent / "lib" / "*")])
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        self._child = spawn([find_java(), *options, "-cp", path, main])
        if self._answer() != "ready":
            raise DrainError(f"{name} did not start")

    @classmethod
    def hazelcast(cls) -> Member:
        return cls("Hazelcast", _HAZELCAST_PROJECT, "JmsDrain", HAZELCAST_OPTIONS)

    @classmethod
    def flink(cls) -> Member:
        return cls("Flink", FLINK_PROJECT, "FlinkDrain", [*FLINK_OPTIONS, _ERRORS_ONLY])

    def begin(self, words: Sequence[str]) -> None:
        """Start a job."""
        self._say(" ".join(words))

    def received(self) -> None:
        """Wait for the messages of the job."""
        answer = self._answer()
        if answer != "received":
            raise DrainError(f"{self.name}: {answer}")

    def stop(self) -> None:
        """End the job."""
        self._say("stop")
        while self._answer() not in {"stopped", ""}:
            pass

    def usage(self) -> Usage:
        return tree_usage("jvm", self._child.pid)

    def check(self) -> None:
        """Raises a DrainError if the process has ended."""
        check_child(self._child, self.name)

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    @property
    def folder(self) -> str:
        """For what its jobs keep; it is gone with the process."""
        return self._folder.name

    def close(self) -> None:
        """End the process."""
        close_child(self._child)
        self._folder.cleanup()

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()


class MemberDrain(Drain):
    """A job of a member, exactly-once, with a snapshot each second: the last one comes late.

    Args:
        words: of the job, as the program of the member takes them.
    """

    waits_to_settle = True

    def __init__(self, member: Member, words: Sequence[str]) -> None:
        self._member, self._words = member, words

    @classmethod
    def of_hazelcast(cls, member: Member, contender: Contender, node: Node, queue: str, messages: int) -> MemberDrain:
        if isinstance(node, JavaNode):
            url, user, password = node.jms_url(), USER, PASSWORD
        else:
            parts = urlsplit(node.url(AMQP_0_9_1))
            url, user, password = node.url(AMQP_0_9_1) + "%2F", parts.username or "", parts.password or ""
        said = str(messages), str(contender.consumers)
        return cls(member, [family(contender.broker), url, user, password, queue, *said])

    @classmethod
    def of_flink(cls, member: Member, node: Node, queue: str, messages: int) -> MemberDrain:
        parts = urlsplit(node.url(AMQP_0_9_1))
        login = parts.hostname or "", str(parts.port), parts.username or "", parts.password or ""
        return cls(member, [*login, queue, str(messages), member.folder])

    def start(self) -> None:
        self._member.begin(self._words)

    def wait(self) -> None:
        self._member.received()

    def usage(self) -> Usage:
        return self._member.usage()

    def check(self) -> None:
        self._member.check()

    def end(self) -> tuple[int | None, float | None]:
        self._member.stop()
        return None, None


# -- Spark ------------------------------------------------------------------------------------


def make_session(master: str = "local[*]", settings: Mapping[str, str] | None = None) -> Any:
    """Spark there, by default on all cores of this machine; its Python processes with this checkout."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("pyspark-mq bench")
    builder = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", 10_000)
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # A query that is stopped in a batch logs that as an error; real ones come with the query's exception.
    spark.sparkContext.setLogLevel("FATAL")
    return spark


class QueryDrain(Drain):
    """A streaming query into the sink that takes everything and keeps nothing."""

    def __init__(self, spark: Any, messages: int) -> None:
        self._spark = spark
        self._messages = messages
        self._jvm = int(spark.sparkContext._gateway.proc.pid)

    @abstractmethod
    def _stream(self, checkpoint: str) -> Any:
        """What is read."""

    def start(self) -> None:
        # Spark ends Python workers that were idle for a minute. Those of this turn are to be there before it.
        self._spark.range(2).mapInArrow(lambda batches: batches, "id long").count()
        self._folder = tempfile.TemporaryDirectory()
        writer = self._stream(self._folder.name).writeStream.format("noop")
        writer = writer.option("checkpointLocation", self._folder.name).trigger(processingTime="0 seconds")
        self._query = writer.start()

    def wait(self) -> None:
        rows: dict[int, int] = {}
        while sum(rows.values()) < self._messages:
            time.sleep(_PROGRESS_POLL_S)
            self.check()
            # Of the JVM's own object: as a dict it would come with both offsets of the epoch, and with a
            # lower guarantee, or without an ID log, be measured itself.
            last = self._query._jsq.lastProgress()
            if last is not None:
                rows[last.batchId()] = last.numInputRows()

    def usage(self) -> Usage:
        return spark_usage(self._jvm)

    def check(self) -> None:
        if not self._query.isActive:
            raise DrainError(f"the query ended: {self._query.exception()}")

    def epochs(self) -> list[Epoch]:
        """All with rows."""
        return [epoch for epoch in map(epoch_of, self._query.recentProgress) if epoch.rows]

    def end(self) -> tuple[int | None, float | None]:
        epochs = self.epochs() if self._query.isActive else []
        self._query.stop()
        # What its process still does is no work of the next turn.
        poll(lambda: not has_source(self._jvm), _STOP_TIMEOUT_S, interval_s=0.1)
        self._folder.cleanup()
        return len(epochs), steady_rate(epochs)


class OurDrain(QueryDrain):
    """This source with the lines of the README, and what the contender differs in."""

    def __init__(
        self, spark: Any, contender: Contender, url: str, queue: str, messages: int, options: Mapping[str, str]
    ) -> None:
        super().__init__(spark, messages)
        self._contender = contender
        self._options = {"broker": family(contender.broker), "url": url, "queue": queue}
        if contender.protocol == AMQP_1_0:
            self._options["protocol"] = contender.protocol
        if contender.guarantee != EXACTLY_ONCE:
            self._options["guarantee"] = contender.guarantee
        self._options |= options

    def _stream(self, checkpoint: str) -> Any:
        options = {**self._options}
        if self._contender.guarantee == EXACTLY_ONCE:
            options = {"checkpointLocation": checkpoint, **options}
        return self._spark.readStream.format("mq").options(**options).load()


class RateDrain(QueryDrain):
    """Spark's own source of numbers, as many a trigger as our epochs have: what Spark costs without a queue."""

    reads_queue = False

    def begun(self) -> bool:
        return bool(self._query.status["isTriggerActive"])

    def _stream(self, checkpoint: str) -> Any:
        del checkpoint
        stream = self._spark.readStream.format("rate-micro-batch")
        return stream.option("rowsPerBatch", _RATE_EPOCH_ROWS).option("numPartitions", os.cpu_count() or 1).load()


# -- helpers ----------------------------------------------------------------------------------


def protocol_of_url(contender: Contender) -> str:
    """Whose URL a contender is given."""
    return contender.protocol if contender.protocol in {AMQP_0_9_1, AMQP_1_0, STOMP} else STOMP


def spawn(command: Sequence[str], output: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    """A child in this checkout that can be written to."""
    return subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=output, stderr=None, encoding="utf-8", errors="replace"
    )


def check_child(child: subprocess.Popen[str], name: str) -> None:
    """Raises a DrainError if it has ended."""
    if child.poll() is not None:
        raise DrainError(f"{name} ended with {child.returncode}")


def close_child(child: subprocess.Popen[str]) -> None:
    """End of its input, which ends it; else it is killed."""
    if child.stdin is not None:
        child.stdin.close()
    try:
        child.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()
