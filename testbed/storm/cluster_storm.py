"""The storm of a cluster: ``make cluster-storm``. The exit code says whether nothing was lost.

A publisher that sends to whichever broker is up, a Spark job that has all of them as candidates in `url`, and what
can happen to the brokers of a cluster, in turn: killed, frozen, cut from each other, restarted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.clusters.cluster import Cluster
from testbed.clusters.factory import CLUSTERS, make_cluster
from testbed.process import NodeError, poll
from testbed.storm.audit import print_rows
from testbed.storm.queues import ids_of
from testbed.storm.storm import Job, Publisher, Storm, came_again

QUEUE = "storm"
_HEARTBEAT = "2s"
#: Longer than any fault keeps all of a cluster away.
_RECONNECT_TIMEOUT = "5m"
_DRAIN_TIMEOUT_S = 600.0
_EMPTY_TIMEOUT_S = 60.0


def main() -> int:
    """Run it; 0 if every message is in the output once and the queue is empty."""
    arguments = _arguments()
    console = Console(width=110)
    console.print(f"seed {arguments.seed}")
    with (
        make_cluster(arguments.cluster, arguments.version) as cluster,
        tempfile.TemporaryDirectory(prefix="pyspark-mq-storm-") as folder,
    ):
        protocol = arguments.protocol or cluster.protocols[0]
        if protocol not in cluster.protocols:
            console.print(f"{arguments.cluster} is read over {', '.join(cluster.protocols)}")
            return 2
        told = run(cluster, protocol, Path(folder), arguments, console)
    if arguments.report:
        Path(arguments.report).write_text(json.dumps(told), "utf-8")
    return 0 if told["holds"] else 1


def run(
    cluster: Cluster, protocol: str, folder: Path, arguments: argparse.Namespace, console: Console
) -> dict[str, Any]:
    """The storm, and what is to be told of it."""
    cluster.declare(QUEUE)
    console.print(f"{cluster.title} {cluster.version}, read over {protocol}", highlight=False)
    options = {"protocol": protocol, **ids_of(cluster.broker, protocol)}
    options |= {"heartbeat": _HEARTBEAT, "reconnectTimeout": _RECONNECT_TIMEOUT}

    def send(bodies: Sequence[bytes], ids: Sequence[str]) -> None:
        cluster.publish(QUEUE, bodies, ids, protocol)

    job = Job(cluster.broker, cluster.url(protocol), QUEUE, folder, options)
    publisher = Publisher(send, arguments.messages, arguments.rate)
    chance = random.Random(arguments.seed)
    began = time.monotonic()

    def tell(name: str) -> None:
        done = sum(storm.done.values())
        seconds = time.monotonic() - began
        console.print(f"{seconds:7.0f} s  {done:4d}  {len(publisher.sent):9,d} sent  {name}", highlight=False)

    storm = Storm(
        publisher,
        job,
        cluster.faults(QUEUE),
        pause_s=lambda: chance.uniform(0.0, 3.0),
        fault_count=arguments.faults,
        on_fault=tell,
    )
    problem = ""
    try:
        storm.run(_DRAIN_TIMEOUT_S)
        # The last acknowledgements may be a moment behind on the node that is asked.
        poll(lambda: cluster.counts(QUEUE).total == 0, _EMPTY_TIMEOUT_S, interval_s=0.5)
    except (TimeoutError, NodeError) as failed:
        problem = str(failed).splitlines()[0]
        console.print(f"[red]{failed}", highlight=False)
    finally:
        publisher.stop()
        job.stop()
        if arguments.keep:
            console.print(f"log: {arguments.keep}")
            Path(arguments.keep).write_bytes(job.log.read_bytes())
    left = -1
    with contextlib.suppress(NodeError):
        left = cluster.counts(QUEUE).total
    result = storm.verdict(left)
    rows = {
        **result.rows(),
        **storm.done,
        "faults in all": sum(storm.done.values()),
        **came_again(job, publisher),
    }
    seconds = time.monotonic() - began
    print_rows(console, "Storm of a cluster", rows, seconds)
    if not result.holds:
        console.print(result.examples)
    return {
        "cluster": cluster.title,
        "protocol": protocol,
        "version": cluster.version,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "holds": result.holds and not problem,
        "problem": problem,
        "seconds": round(seconds),
        "faults": {name: count for name, count in storm.done.items() if count},
        **rows,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make cluster-storm", description=__doc__)
    parser.add_argument("--cluster", default="rabbitmq", choices=sorted(CLUSTERS))
    parser.add_argument("--version", default="", help="of RabbitMQ: 4.3, or the installed one")
    parser.add_argument("--protocol", help="as the option of the source; by default the cluster's main one")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=500, help="messages a second; 0 for as fast as it goes")
    parser.add_argument("--faults", type=int, default=9, help="of all kinds together, one after the other")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", metavar="FILE", help="write the counts there as JSON")
    parser.add_argument("--keep", metavar="FILE", help="keep the job's log there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
