"""The chaos test of streams: ``python -m testbed.chaos.streams``. The exit code says whether each record came once.

Producers with names and publishing IDs write numbered messages to a super stream on three nodes of RabbitMQ 4.3; a
query on a standalone cluster of Spark, or with `--local` in one process, writes them to parquet files. Meanwhile
drivers, executors, their Python workers, nodes and connections are lost, by a seed. At the end a checker that shares
nothing with the source reads the streams and the files.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import psutil
import pyarrow.parquet as pq
from rich.console import Console

from testbed.chaos.audit import Output, committed_files, print_rows
from testbed.chaos.chaos import ChaosTest
from testbed.chaos.faults import fault_of
from testbed.chaos.streams.audit import StreamVerdict, rows_of, streams_of, verdict
from testbed.chaos.streams.parts import FAULTS, LOCAL_FAULTS, Producers, StreamCluster, StreamJob, faults_of
from testbed.process import NodeError
from testbed.publishers.streams import make_super_stream
from testbed.spark.standalone import SparkCluster

STREAM = "chaos"
_WORKERS = 2
_DRAIN_TIMEOUT_S = 300.0
_PAUSE_S = 1.0
#: Long enough for what ends by itself, short enough for a chaos test.
_OPTIONS = {"startingOffsets": "earliest", "connectTimeout": "5s", "heartbeat": "5s"}
_LOCAL = "local[2,8]"
_LOSS = "data-loss"


def main() -> int:
    """Run it; 0 if every record is in the output once."""
    arguments = _arguments()
    console = Console(width=110)
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        return _run(arguments, folder.resolve(), console, stack)


def _run(arguments: argparse.Namespace, folder: Path, console: Console, stack: ExitStack) -> int:
    began = time.monotonic()
    share = -(-arguments.messages // arguments.partitions)
    nodes = stack.enter_context(StreamCluster())
    partitions = make_super_stream(nodes.nodes.members[0].stream_port, STREAM, arguments.partitions)
    nodes.sync()
    cluster = None if arguments.local else stack.enter_context(SparkCluster(_WORKERS))
    options = {**_OPTIONS, "maxOffsetsPerTrigger": str(max(1, arguments.messages // arguments.epochs))}
    job = StreamJob("rabbitmq", nodes.url, STREAM, folder, options, _LOCAL, cluster=cluster)
    if cluster is not None:
        job.master, job.spark = cluster.url, {**cluster.settings, "spark.task.maxFailures": "8"}
    producers = Producers(nodes.places, partitions, share, arguments.rate, folder)
    chance = random.Random(f"{arguments.seed}:faults")
    kinds = LOCAL_FAULTS if arguments.local else FAULTS
    done: Counter[str] = Counter()
    rows = _Counted(job)

    def in_time() -> bool:
        """Faults are spread over all messages."""
        return not producers.is_alive() or producers.count * arguments.faults >= done.total() * arguments.messages

    def tell(name: str) -> None:
        done[name] += 1
        text = (
            f"{time.monotonic() - began:7.0f} s {done.total():5d} {producers.count:11,d} confirmed, {rows():11,d} rows"
        )
        console.print(f"{text}  {name}", highlight=False)

    chaos = ChaosTest(
        producers,
        job,
        faults_of(job, nodes, producers, partitions, chance),
        pause_s=lambda: chance.uniform(0.0, _PAUSE_S),
        fault_count=arguments.faults,
        on_fault=tell,
        order=lambda turn: fault_of(arguments.seed, turn, kinds),
        ready=in_time,
        all_read=lambda: rows() >= share * len(partitions),
    )
    problem = ""
    try:
        chaos.run(_DRAIN_TIMEOUT_S)
    except (TimeoutError, NodeError) as failed:
        problem = str(failed).splitlines()[0]
        console.print(f"[red]{failed}", highlight=False)
    finally:
        producers.stop()
        producers.kill()
        job.stop()
    seconds = time.monotonic() - began
    streams = streams_of(nodes.places, partitions, share)
    found = verdict(share, streams, rows_of(committed_files(job.output)))
    errors = _errors(job)
    holds = found.holds and not problem and _LOSS not in errors
    _tell(arguments, found, done, errors, job, producers, console, seconds, problem=problem, holds=holds)
    if arguments.keep:
        shutil.copy(job.log, arguments.keep)
    return 0 if holds else 1


class _Counted:
    """The number of rows that batches have committed, read as they come."""

    def __init__(self, job: StreamJob) -> None:
        self._output = Output(job.output)
        self._rows = 0

    def __call__(self) -> int:
        for batch in self._output.new():
            self._rows += sum(pq.read_metadata(file).num_rows for file in batch.files)
        return self._rows


def _errors(job: StreamJob) -> Counter[str]:
    """What ended queries, by short names of errors."""
    return Counter(re.findall(r"^\[mq:([\w-]+)\]", job.log.read_text("utf-8", "replace"), re.MULTILINE))


def _tell(
    arguments: argparse.Namespace,
    found: StreamVerdict,
    done: Counter[str],
    errors: Counter[str],
    job: StreamJob,
    producers: Producers,
    console: Console,
    seconds: float,
    *,
    problem: str,
    holds: bool,
) -> None:
    ran = {
        "faults in all": done.total(),
        "epochs": job.epochs,
        "starts of the job": job.starts,
        "starts of the producers": producers.starts,
        **{f"queries ended by {name}": count for name, count in errors.items()},
    }
    counts = {name.replace("_", " "): value for name, value in asdict(found).items()}
    print_rows(console, "Chaos test of streams", {**counts, **done, **ran}, seconds)
    report = {
        "seed": arguments.seed, "partitions": arguments.partitions, "local": arguments.local, "holds": holds,
        "problem": problem, "seconds": round(seconds), "date": time.strftime("%Y-%m-%d"), "faults": dict(done),
        **counts, **ran, "MiB of the chaos test's own memory": psutil.Process().memory_info().rss >> 20,
    }  # fmt: skip
    if arguments.report:
        arguments.report.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testbed.chaos.streams", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=10_000, help="messages a second")
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=50, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--local", action="store_true", help="Spark in one process")
    parser.add_argument("--folder", type=Path, help="for checkpoint, output and logs, which stay")
    parser.add_argument("--report", type=Path, help="JSON of what was found")
    parser.add_argument("--keep", type=Path, help="where to copy the job's log")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
