"""The chaos test of writing: ``python -m testbed.chaos.sink``. The exit code says whether each row was written.

A query on a standalone cluster of Spark, with speculation, writes numbered rows through a slow proxy, while its
drivers, executors, Python workers, connections and brokers are lost, by a seed. Then a checker reads the queue with a
bare client, and what the source makes of it.

With ``--once`` speculation is off, and the bare client may find no copy either: Artemis drops copies.

With ``--local`` the query runs in `local[2]`, where Spark tries no task twice: connections and brokers alone are lost,
and the query has to go on by itself. With ``--batch`` it writes each batch by `foreachBatch`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import psutil
import pyarrow.parquet as pq
from rich.console import Console

from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.audit import committed_files, print_rows
from testbed.chaos.chaos import Job
from testbed.chaos.faults import Fault, fault_of
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.chaos.queues import PrivateBroker
from testbed.chaos.sink.checker import move, verdict
from testbed.clusters.cluster import Cluster
from testbed.clusters.factory import make_cluster
from testbed.ports import LOOPBACK, listens
from testbed.process import poll
from testbed.signals import freeze_one, kill_one
from testbed.spark.standalone import SparkCluster

QUEUE, MOVED = "chaos", "chaos-moved"
_USER, _EVENTS = "writer", "events"
#: A batch takes seconds, so that faults meet it.
_LINK_BYTES_PER_S, _BODY_BYTES = 150_000, 400
_FROZEN_S, _FAULT_TIMEOUT_S, _COMMIT_TIMEOUT_S = 12.0, 20.0, 240.0
_EXECUTOR, _TASK = "CoarseGrainedExecutorBackend", "pyspark.daemon"
_OPTIONS = {"connectTimeout": "5s", "heartbeat": "2s", "sendTimeout": "8s"}
#: A broker that is frozen or killed is away for longer than the above.
_OPTIONS_ALONE = {"connectTimeout": "60s", "heartbeat": "2s"}
_ALARM_S, _SECRET_S = 10.0, 4.0
_SPARK = {
    "spark.ui.enabled": "false", "spark.task.maxFailures": "8", "spark.speculation": "true",
    "spark.speculation.interval": "100ms", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms", "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false", "spark.sql.shuffle.partitions": "4",
}  # fmt: skip


@dataclass
class WritingJob(Job):
    """The query, as a process tree.

    Attributes:
        cluster: that it runs on; None for this process tree.
        rows: numbers of a batch.
        batch: whether it writes by `foreachBatch`.
    """

    cluster: SparkCluster | None = None
    rows: int = 0
    batch: bool = False

    def command(self) -> list[str]:
        given = {"options": self.options, "rows": self.rows, "filling": filling(), "batch": self.batch}
        program = Path(__file__).with_name("job.py")
        return [str(self.python), str(program), self.master, str(self.checkpoint), json.dumps(given)]

    def committed(self) -> int:
        """The newest batch; -1 before the first."""
        log = self.checkpoint / "commits"
        return max((int(file.name) for file in log.glob("*") if file.name.isdecimal()), default=-1)

    def numbers(self) -> int:
        """Below it are the numbers whose batches are committed."""
        offset = (self.checkpoint / "offsets" / str(self.committed())).read_text("utf-8").splitlines()[-1]
        return int(json.loads(offset)["offset"])

    def of_cluster(self, word: str) -> list[psutil.Process]:
        return [] if self.cluster is None else self.cluster.processes(word)


def filling() -> str:
    return "x" * _BODY_BYTES


class _Broker:
    """What is written to, and the proxies before it."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.name, protocol, version = arguments.broker, arguments.protocol, arguments.version
        self._cluster: Cluster | None = None
        self._alone: PrivateBroker | None = None
        if arguments.cluster:
            self._cluster = cluster = stack.enter_context(make_cluster(self.name, version))
            self.protocol, nodes = protocol or cluster.protocols[0], cluster.nodes
            for queue in (QUEUE, MOVED):
                cluster.declare(queue)
        else:
            own = {"config": {"heartbeat": 2}} if self.name == "rabbitmq" else {"amqp_idle_timeout_ms": 4_000}
            alone = PrivateBroker(
                self.name, f"{QUEUE},{MOVED}", protocol, version=version, quorum=arguments.quorum, **own
            )  # fmt: skip
            self._alone = stack.enter_context(alone)
            self.protocol, nodes = alone.protocol, (alone.node,)
        self.version = nodes[0].version
        self._rabbit = [node for node in nodes if isinstance(node, RabbitNode)]
        self.login: dict[str, str] = {}
        self.urls = [node.url(self.protocol) for node in nodes]
        ports = [urlsplit(url).port or 0 for url in self.urls]
        self.proxies = [stack.enter_context(FaultProxy(LOOPBACK, port)) for port in ports]
        for proxy in self.proxies:
            proxy.throttle(_LINK_BYTES_PER_S, Direction.TO_BROKER)
        pairs = zip(self.urls, ports, self.proxies, strict=True)
        self.proxied = ",".join(url.replace(f":{port}", f":{proxy.port}") for url, port, proxy in pairs)

    def log_in_by_file(self, secret: Path) -> None:
        """Have a user whose password is in a file, for :meth:`faults` to change. RabbitMQ only."""
        if self._rabbit:
            secret.write_text("first", "ascii")
            node, self._secret = self._rabbit[0], secret
            node.ctl("add_user", _USER, "first")
            node.ctl("set_permissions", _USER, ".*", ".*", ".*")
            self.login = {"username": _USER, "passwordFile": str(secret)}

    def faults(self) -> dict[str, Fault]:
        if self._cluster is not None:
            faults = self._cluster.faults(QUEUE)
        else:
            assert self._alone is not None
            faults = {
                "kill -9 of the broker, restart": self._alone.kill_and_start,
                "SIGSTOP of the broker, SIGCONT": self._alone.freeze,
            }
        if self._rabbit:
            faults["memory alarm"] = self._alarm
        if self.login:
            faults["password changed, connections closed, file changed"] = self._rotate
        return faults

    def _alarm(self) -> bool:
        for node in self._rabbit:
            node.ctl("set_vm_memory_high_watermark", "absolute", "1")
        time.sleep(_ALARM_S)
        for node in self._rabbit:
            node.ctl("set_vm_memory_high_watermark", "0.6")
        return True

    def _rotate(self) -> bool:
        new = f"{time.time_ns():x}"
        self._rabbit[0].ctl("change_password", _USER, new)
        for proxy in self.proxies:
            proxy.cut()
        time.sleep(_SECRET_S)
        self._secret.write_text(new, "ascii")
        return True


def main() -> int:
    """Run it; 0 if the checker finds nothing."""
    arguments = _arguments()
    console = Console(width=110)
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-chaos-")))
        return _run(arguments, arguments.folder or folder, console, stack)


def _run(arguments: argparse.Namespace, folder: Path, console: Console, stack: ExitStack) -> int:
    began, chance = time.monotonic(), random.Random(f"{arguments.seed}:faults")
    broker = _Broker(arguments, stack)
    cluster = None if arguments.local else stack.enter_context(SparkCluster(hosts=(LOOPBACK, "localhost")))
    job = _job(arguments, broker, cluster, folder)
    console.print(f"{broker.name} {broker.version}, {broker.protocol}, seed {arguments.seed}", highlight=False)
    faults = {**_faults_of_connections(broker, chance), **broker.faults()}
    if cluster is not None:
        faults |= _faults_of_spark(job, cluster, chance)
    faults = {name: fault for name, fault in faults.items() if name in (arguments.only or faults)}
    done: Counter[str] = Counter()
    turn = 0
    try:
        _await_commit(job)
        while done.total() < arguments.faults:
            time.sleep(chance.uniform(0.0, 4.0))
            name = fault_of(arguments.seed, turn, dict.fromkeys(faults, 1))
            turn += 1
            if faults[name]():
                done[name] += 1
                text = f"{time.monotonic() - began:6.0f} s {done.total():4d}  batch {job.committed():4d}  {name}"
                console.print(text, highlight=False)
                _await_commit(job)
        _await_commit(job)
    except TimeoutError as late:
        console.print(f"[red]{late}", highlight=False)
        console.print(job.log.read_text("utf-8", "replace")[-6000:], markup=False, highlight=False)
        return 1
    finally:
        job.kill_driver()
        if cluster is not None:
            cluster.close()
    committed, log = job.numbers(), job.log.read_text("utf-8", "replace")
    served = next(url for url in broker.urls if listens(urlsplit(url).port or 0))  # of a pair one waits
    found = move(broker.name, broker.protocol, served, QUEUE, MOVED)
    reading = {name: value for name, value in job.options.items() if name not in broker.login}
    behind = _read({**reading, "url": ",".join(broker.urls), "queue": MOVED}, folder, len(set(found)))
    judged = verdict(found, behind, committed, filling())
    speculative = sum(
        file.read_text("utf-8", "replace").count('"Speculative":true') for file in (folder / _EVENTS).iterdir()
    )
    failed = len(re.findall("^FAILED", log, re.MULTILINE))
    rows = {
        "rows of committed batches": 2 * committed, **asdict(judged), **done, "starts of the job": job.starts,
        "queries that failed": failed, "speculative tasks": speculative // 2,
    }  # fmt: skip
    holds = judged.holds and not (arguments.local and (failed or job.starts > 1))
    holds = holds and not (arguments.once and judged.copies)
    print_rows(console, f"Chaos test of writing, {broker.name} over {broker.protocol}", rows, time.monotonic() - began)
    if arguments.report:
        arguments.report.write_text(json.dumps({**rows, "holds": holds}), "utf-8")
    if not holds or arguments.keep:
        kept = arguments.keep or Path(tempfile.gettempdir()) / f"chaos test-sink-{os.getpid()}.log"
        kept.write_text(log, "utf-8")
        console.print(f"log: {kept}")
    return 0 if holds else 1


def _job(arguments: argparse.Namespace, broker: _Broker, cluster: SparkCluster | None, folder: Path) -> WritingJob:
    (folder / _EVENTS).mkdir(parents=True, exist_ok=True)
    options = {"broker": broker.name, "url": broker.proxied, "protocol": broker.protocol, "queue": QUEUE}
    spark, master = {**_SPARK, "spark.eventLog.dir": f"file://{folder / _EVENTS}"}, "local[2]"
    spark["spark.speculation"] = str(not arguments.once).lower()
    if cluster is None:
        if not arguments.batch:
            broker.log_in_by_file(folder / "secret")
        options |= {**_OPTIONS_ALONE, **broker.login}
    else:
        options |= _OPTIONS
        spark, master = {**cluster.settings, **spark}, cluster.url
    return WritingJob(
        broker.name, "", QUEUE, folder, options, master, spark, cluster=cluster, rows=arguments.rows,
        batch=arguments.batch,
    )  # fmt: skip


def _await_commit(job: WritingJob) -> None:
    """Until one more batch is committed than now.

    Raises:
        TimeoutError: none is.
    """
    before = job.committed()

    def committed() -> bool:
        job.keep_alive()
        return job.committed() > before

    if not poll(committed, _COMMIT_TIMEOUT_S, interval_s=0.2):
        raise TimeoutError(f"no batch was committed after {before} for {_COMMIT_TIMEOUT_S:.0f} s")


def _when_there(fault: Fault) -> Fault:
    """Tasks and connections come and go: wait for some."""
    return lambda: poll(fault, _FAULT_TIMEOUT_S, interval_s=0.02)


def _faults_of_connections(broker: _Broker, chance: random.Random) -> dict[str, Fault]:
    def cut_mid_frame() -> bool:
        proxy = chance.choice(broker.proxies)
        direction, most = chance.choice([(Direction.TO_BROKER, 100_000), (Direction.TO_CLIENT, 2_000)])
        done = proxy.cut_after(chance.randrange(1, most), direction).wait(_FAULT_TIMEOUT_S)
        proxy.disarm()
        return done

    def silence() -> bool:
        ways = chance.choice([None, *Direction])
        muted = [proxy for proxy in broker.proxies if proxy.connections]
        for proxy in muted:
            proxy.mute(ways)
        return bool(muted)

    return {
        "cut": _when_there(lambda: sum(proxy.cut() for proxy in broker.proxies) > 0),
        "cut in mid-frame": cut_mid_frame,
        "connection silent (half-open)": _when_there(silence),
    }


def _faults_of_spark(job: WritingJob, cluster: SparkCluster, chance: random.Random) -> dict[str, Fault]:
    return {
        "kill -9 of a Python worker": _when_there(lambda: kill_one(job.of_cluster(_TASK), chance.choice)),
        "SIGSTOP of a Python worker, SIGCONT": _when_there(
            lambda: freeze_one(job.of_cluster(_TASK), chance.choice, _FROZEN_S)
        ),
        "kill -9 of an executor": _when_there(lambda: kill_one(job.of_cluster(_EXECUTOR), chance.choice)),
        "kill -9 of a Spark worker, start": cluster.kill_worker,
        "kill -9 of the driver and its JVM": job.kill_driver,
    }


def _read(options: dict[str, str], folder: Path, enough: int) -> list[str]:
    """Bodies of the rows that the source makes of a queue; as many as there are IDs, or more."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - in this process no job may run before

    checkpoint, output = str(folder / "read"), folder / "output"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    options = {name: value for name, value in options.items() if name != "sendTimeout"}
    if options["broker"] != "rabbitmq":
        options["messageIdFrom"] = "property:mq_id"
    reader = spark.readStream.format("mq").options(**options, dedupWindow="1000000", checkpointLocation=checkpoint)
    query = reader.load().writeStream.format("parquet").option("checkpointLocation", checkpoint).start(str(output))

    def rows() -> list[str]:
        files = [file for file in committed_files(output) if Path(file).stat().st_size]
        return [
            bytes(body.as_py()).decode() for file in files for body in pq.read_table(file, columns=["body"])["body"]
        ]

    try:
        poll(lambda: len(rows()) >= enough or not query.isActive, 120, interval_s=1.0)
        time.sleep(3.0)  # a copy that was not dropped
        return rows()
    finally:
        query.stop()
        spark.stop()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testbed.chaos.sink", description=__doc__.split("\n\n")[0])
    parser.add_argument("--broker", choices=("rabbitmq", "activemq", "artemis"), default="rabbitmq")
    parser.add_argument(
        "--protocol", choices=("amqp-0-9-1", "amqp-1.0", "stomp"), help="by default the broker's main one"
    )
    parser.add_argument("--version", default="", help="of the broker, by its beginning")
    parser.add_argument("--quorum", action="store_true", help="quorum queues of RabbitMQ")
    parser.add_argument("--local", action="store_true", help="in local[2], without faults of Spark")
    parser.add_argument("--batch", action="store_true", help="by foreachBatch")
    parser.add_argument("--once", action="store_true", help="without speculation; a copy is a fault (Artemis)")
    parser.add_argument("--cluster", action="store_true", help="a cluster of brokers, whose nodes are lost")
    parser.add_argument("--faults", type=int, default=10, help="%(default)s")
    parser.add_argument("--rows", type=int, default=400, help="numbers of a batch, each twice, %(default)s")
    parser.add_argument("--only", action="append", help="a fault by its name, may be given again; by default all")
    parser.add_argument("--seed", type=int, default=1, help="%(default)s")
    parser.add_argument("--folder", type=Path, help="for checkpoint and logs, kept")
    parser.add_argument("--report", type=Path, help="file for the figures, as JSON")
    parser.add_argument("--keep", type=Path, help="file for the log of the job")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
