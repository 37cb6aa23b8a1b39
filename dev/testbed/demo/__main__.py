"""The demo: ``make demo``.

Publishes messages at a steady rate and runs a Spark job that writes them to parquet, while it kills
the driver with its JVM and the Python worker with ``kill -9``, and kills and restarts the broker. With
``--cluster`` (``make demo-cluster``) the job runs on a standalone cluster of two workers, which are
killed as well. Then it counts. The exit code says whether every message is in the output exactly once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pyspark_mq.brokers import BROKERS
from pyspark_mq.errors import MqError
from pyspark_mq.wire.url import redact
from testbed.chaos.audit import Verdict, print_rows
from testbed.chaos.chaos import ChaosTest, Job, Publisher
from testbed.chaos.queues import OwnBroker, PrivateBroker
from testbed.demo.prometheus import Prometheus, draw, panels
from testbed.ports import LOOPBACK, ReservedPort
from testbed.process import NodeError
from testbed.spark.standalone import SparkCluster

#: Between two faults, from the first epoch after the last one.
PAUSE_S = 2.0
DASHBOARD = Path(__file__).resolve().parents[3] / "docs" / "grafana" / "pyspark-mq.json"
DRAIN_TIMEOUT_S = 120.0
#: For how long messages wait for faults.
SPREAD_S = 300.0


def main() -> int:
    """Run the demo; 0 if the audit held, 1 if not, 2 if it could not be run."""
    arguments = _arguments()
    console = Console(width=110)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-demo-")))
        try:
            broker = _broker(arguments, console, stack)
            cluster = _cluster(arguments, console, stack)
            prometheus = _prometheus(arguments, console, stack)
            if broker.left():
                console.print(f"[red]queue '{arguments.queue}' is not empty; the demo needs one of its own")
                return 2
        except (MqError, NodeError) as unusable:
            console.print(f"[red]{unusable}", highlight=False)
            return 2
        return _run(arguments, console, folder, broker, cluster, prometheus)


def _prometheus(arguments: argparse.Namespace, console: Console, stack: ExitStack) -> Prometheus | None:
    if arguments.dashboard is None:
        return None
    served = stack.enter_context(closing(ReservedPort()))
    prometheus = stack.enter_context(Prometheus(f"{LOOPBACK}:{served.number}"))
    console.print(f"Prometheus is at {prometheus.url} while this runs", highlight=False)
    return prometheus


def _cluster(arguments: argparse.Namespace, console: Console, stack: ExitStack) -> SparkCluster | None:
    if not arguments.cluster:
        return None
    console.print("Starting a standalone cluster of Spark with two workers …")
    return stack.enter_context(SparkCluster())


def _broker(arguments: argparse.Namespace, console: Console, stack: ExitStack) -> PrivateBroker | OwnBroker:
    if arguments.url is not None:
        return OwnBroker(arguments.broker, arguments.url, arguments.queue, arguments.protocol)
    console.print(f"Starting a private broker: {arguments.broker} …")
    broker = stack.enter_context(PrivateBroker(arguments.broker, arguments.queue, arguments.protocol))
    console.print(f"{arguments.broker} {broker.node.version}, read over {broker.protocol}", highlight=False)
    return broker


def _run(
    arguments: argparse.Namespace,
    console: Console,
    folder: Path,
    broker: PrivateBroker | OwnBroker,
    cluster: SparkCluster | None,
    prometheus: Prometheus | None,
) -> int:
    began, began_s = time.monotonic(), time.time()
    with _progress(console) as progress:
        messages: int = arguments.messages
        task = progress.add_task("published", total=messages)

        def allowed() -> int:
            """So many that something is left for each fault, also where a start of the job takes long."""
            if time.monotonic() - began > SPREAD_S:
                return messages
            return messages * (1 + sum(chaos.done.values())) // (1 + len(chaos.done))

        publisher = Publisher(
            broker.send,
            messages,
            arguments.rate,
            on_progress=lambda sent: progress.update(task, completed=sent),
            allowed=allowed,
        )
        job = Job(broker.name, broker.url, arguments.queue, folder, broker.options)
        if cluster is not None:
            job.master, job.spark = cluster.url, cluster.settings
        if prometheus is not None:
            job.prometheus = prometheus.target
        faults = _faults(job, broker, cluster)
        chaos = ChaosTest(
            publisher,
            job,
            faults,
            pause_s=lambda: PAUSE_S,
            fault_count=len(faults),
            on_fault=lambda name: progress.console.print(f"  {time.monotonic() - began:6.1f} s  {name}"),
        )
        try:
            chaos.run(DRAIN_TIMEOUT_S)
        except TimeoutError as late:
            console.print(f"[red]{late}")
            console.print(redact(job.log.read_text("utf-8", "replace")[-4000:]), markup=False, highlight=False)
        else:
            if prometheus is not None:
                board = json.loads(DASHBOARD.read_text("utf-8"))
                draw(panels(board, prometheus, began_s, time.time()), arguments.dashboard)
                console.print(f"the dashboard is in {arguments.dashboard}", highlight=False)
        finally:
            publisher.stop()
            job.stop()
    result = chaos.verdict(broker.left())
    _print(console, result, chaos, job, publisher, time.monotonic() - began)
    return 0 if result.holds else 1


def _faults(job: Job, broker: PrivateBroker | OwnBroker, cluster: SparkCluster | None) -> dict[str, Callable[[], bool]]:
    faults: dict[str, Callable[[], bool]] = {
        "kill -9 of the driver and its JVM": job.kill_driver,
        "kill -9 of the Python worker": job.kill_worker,
    }
    if cluster is not None:
        faults["kill -9 of a worker of the cluster, with its executor"] = cluster.kill_worker
    if isinstance(broker, PrivateBroker):
        faults["kill -9 of the broker, restart"] = broker.kill_and_start
    return faults


def _print(console: Console, result: Verdict, chaos: ChaosTest, job: Job, publisher: Publisher, seconds: float) -> None:
    counters = job.counters()
    rows = {
        **result.rows(),
        **chaos.done,
        "starts of the job": job.starts,
        "sent again by the publisher (unconfirmed)": publisher.sent_again,
        "redelivered by the broker": counters.get("redelivered", 0),
        "duplicates recognised and dropped": counters.get("duplicatesDropped", 0),
        "epochs replayed": counters.get("replays", 0),
    }
    print_rows(console, "Audit", rows, seconds)
    if result.holds:
        console.print("[green]Every message is in the output exactly once.")
    else:
        console.print(f"[red]The audit failed: {result.examples}")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--broker", default="rabbitmq", choices=sorted(BROKERS))
    parser.add_argument("--protocol", help="as the option of the source")
    parser.add_argument("--url", help="a broker of yours, which is then not restarted")
    parser.add_argument("--queue", default=f"pyspark-mq-demo-{uuid.uuid4().hex[:8]}")
    parser.add_argument("--cluster", action="store_true", help="on a standalone cluster of Spark with two workers")
    parser.add_argument("--dashboard", type=Path, nargs="?", const=Path("dashboard.png"), metavar="FILE",
                        help="watch it by Prometheus, and draw the dashboard of docs/grafana into a file")  # fmt: skip
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second")
    arguments = parser.parse_args()
    spoken = {protocol for protocols in BROKERS[arguments.broker].protocols.values() for protocol in protocols}
    if arguments.protocol is not None and arguments.protocol not in spoken:
        parser.error(f"--protocol: {arguments.broker} speaks {', '.join(sorted(spoken))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
