"""The demo: ``make demo``.

Publishes messages at a steady rate and runs a Spark job that writes them to parquet, while it kills
the driver, the JVM and the Python worker with ``kill -9``, and kills and restarts the broker. Then it
counts. The exit code says whether every message is in the output exactly once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pika
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.audit import Verdict, print_rows
from examples.storm import Job, Publisher, Storm, queue_depth
from pyspark_mq.brokers.rabbitmq_node import RabbitNode
from pyspark_mq.sources.url import redact

#: Between two faults, from the first epoch after the last one.
PAUSE_S = 2.0
DRAIN_TIMEOUT_S = 120.0


def main() -> int:
    """Run the demo; 0 if the audit held, 1 if not, 2 if it could not be run."""
    arguments = _arguments()
    console = Console(width=110)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-demo-")))
        node = None
        if arguments.url is None:
            console.print("Starting a private RabbitMQ …")
            node = stack.enter_context(RabbitNode())
        url = arguments.url or node.url()  # type: ignore[union-attr]
        made = _make_queue(url, arguments.queue)
        if made is None:
            console.print(f"[red]queue '{arguments.queue}' is not empty; the demo needs one of its own")
            return 2
        if made:
            stack.callback(_delete_queue, url, arguments.queue)
        return _run(arguments, console, folder, url, node)


def _run(arguments: argparse.Namespace, console: Console, folder: Path, url: str, node: RabbitNode | None) -> int:
    began = time.monotonic()
    with _progress(console) as progress:
        task = progress.add_task("published", total=arguments.messages)
        publisher = Publisher(
            url,
            arguments.queue,
            arguments.messages,
            arguments.rate,
            on_progress=lambda sent: progress.update(task, completed=sent),
        )
        job = Job(url, arguments.queue, folder)
        faults = _faults(job, node)
        storm = Storm(
            publisher,
            job,
            faults,
            pause_s=lambda: PAUSE_S,
            on_fault=lambda name: progress.console.print(f"  {time.monotonic() - began:6.1f} s  {name}"),
        )
        try:
            storm.run(DRAIN_TIMEOUT_S)
        except TimeoutError as late:
            console.print(f"[red]{late}")
            console.print(redact(job.log.read_text("utf-8", "replace")[-4000:]), markup=False, highlight=False)
        finally:
            publisher.stop()
            job.stop()
    result = storm.verdict(queue_depth(url, arguments.queue))
    _print(console, result, storm, job, publisher, time.monotonic() - began)
    return 0 if result.holds else 1


def _faults(job: Job, node: RabbitNode | None) -> dict[str, Callable[[], bool]]:
    faults: dict[str, Callable[[], bool]] = {
        "kill -9 of the driver and its JVM": job.kill_driver,
        "kill -9 of the Python worker": job.kill_worker,
        "kill -9 of the JVM": job.kill_jvm,
    }
    if node is None:
        return faults

    def restart_broker() -> bool:
        node.kill()
        node.start()
        return True

    names = list(faults)
    # The broker comes second, so that also a short run meets it.
    return {names[0]: faults[names[0]], "kill -9 of the broker, restart": restart_broker} | faults


def _print(console: Console, result: Verdict, storm: Storm, job: Job, publisher: Publisher, seconds: float) -> None:
    counters = job.counters()
    rows = {
        **result.rows(),
        **storm.done,
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


def _make_queue(url: str, queue: str) -> bool | None:
    """True if the queue was made now, False if it was there and is empty, None if it is not empty."""
    try:
        return None if queue_depth(url, queue) else False
    except pika.exceptions.ChannelClosedByBroker as missing:
        if missing.reply_code != 404:
            raise
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(queue, durable=True)
    connection.close()
    return True


def _delete_queue(url: str, queue: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_delete(queue)
    connection.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--url", help="a RabbitMQ of yours, which is then not restarted")
    parser.add_argument("--queue", default=f"pyspark-mq-demo-{uuid.uuid4().hex[:8]}")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
