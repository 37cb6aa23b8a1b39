"""The soak: ``make soak``. A long storm of kills and cuts; the exit code says whether nothing was lost.

A million messages through a proxy that misbehaves, into parquet, while the driver, the JVM, the worker
and the broker are killed and the connection is cut, cut in mid-frame, and silenced.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from examples.audit import print_rows
from examples.storm import Job, Publisher, Storm
from pyspark_mq.brokers.rabbitmq_node import RabbitNode
from tests.support.proxy import Direction, FaultProxy

QUEUE = "soak"
_HEARTBEAT = "2s"
_DRAIN_TIMEOUT_S = 900.0


def main() -> int:
    """Run it; 0 if every message is in the output once and the queue is empty."""
    arguments = _arguments()
    console = Console(width=110)
    console.print(f"seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-soak-")))
        node = stack.enter_context(RabbitNode())
        node.declare(QUEUE, quorum=arguments.quorum)
        proxy = stack.enter_context(FaultProxy("127.0.0.1", node.port))
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        # A crash loop is what a delivery limit is there to end; here it is what is tested.
        job = Job(url, QUEUE, folder, {"heartbeat": _HEARTBEAT, **_options(arguments.option)})
        publisher = Publisher(node.url(), QUEUE, arguments.messages, arguments.rate)
        began = time.monotonic()

        def tell(name: str) -> None:
            done = sum(storm.done.values())
            seconds = time.monotonic() - began
            console.print(f"{seconds:7.0f} s  {done:4d}  {len(publisher.sent):9,d} sent  {name}", highlight=False)

        storm = Storm(
            publisher,
            job,
            _faults(job, node, proxy, chance),
            pause_s=lambda: chance.uniform(0.0, 1.0),
            fault_count=arguments.faults,
            on_fault=tell,
        )
        try:
            storm.run(_DRAIN_TIMEOUT_S)
        finally:
            publisher.stop()
            job.stop()
            if arguments.keep:
                console.print(f"log: {arguments.keep}")
                Path(arguments.keep).write_bytes(job.log.read_bytes())
        counts = node.counts(QUEUE)
        result = storm.verdict(counts.ready + counts.unacked)
        counters = job.counters()
        rows = {
            **result.rows(),
            **_merged(storm.done),
            "faults in all": sum(storm.done.values()),
            "starts of the job": job.starts,
            "sent again by the publisher (unconfirmed)": publisher.sent_again,
            "redelivered by the broker": counters.get("redelivered", 0),
            "duplicates recognised and dropped": counters.get("duplicatesDropped", 0),
            "reconnects": counters.get("reconnects", 0),
            "epochs replayed": counters.get("replays", 0),
        }
        print_rows(console, "Soak", rows, time.monotonic() - began)
        if not result.holds:
            console.print(result.examples)
        return 0 if result.holds else 1


def _faults(job: Job, node: RabbitNode, proxy: FaultProxy, chance: random.Random) -> dict[str, Callable[[], bool]]:
    def cut() -> bool:
        return proxy.cut() > 0

    def cut_mid_frame() -> bool:
        # Towards the broker go acknowledgements and heartbeats only, some fifty bytes a trigger.
        direction, most = chance.choice([(Direction.TO_BROKER, 200), (Direction.TO_CLIENT, 20_000)])
        return proxy.cut_after(chance.randrange(1, most), direction).wait(10)

    def silence() -> bool:
        if not proxy.connections:
            return False
        proxy.mute(chance.choice([None, *Direction]))
        return True

    def kill_broker() -> bool:
        node.kill()
        node.start()
        return True

    # Names that differ by a blank are the same fault again: what only cuts is quick, what kills a JVM
    # takes a start of Spark.
    slow = {
        "kill -9 of the driver and its JVM": job.kill_driver,
        "kill -9 of the Python worker": job.kill_worker,
        "kill -9 of the broker, restart": kill_broker,
        "kill -9 of the JVM": job.kill_jvm,
        "kill -9 of the Python worker ": job.kill_worker,
        "kill -9 of the broker, restart ": kill_broker,
    }
    quick = {"cut": cut, "cut in mid-frame": cut_mid_frame}
    order: dict[str, Callable[[], bool]] = {}
    for number, (name, fault) in enumerate(slow.items()):
        order |= {f"{quickly}{' ' * number}": quick[quickly] for quickly in quick}
        order[name] = fault
    return {**order, "connection silent (half-open)": silence}


def _merged(done: dict[str, int]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for name, count in done.items():
        merged[name.strip()] = merged.get(name.strip(), 0) + count
    return merged


def _options(given: list[str]) -> dict[str, str]:
    return dict(option.split("=", 1) for option in given)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second; 0 for as fast as it goes")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--quorum", action="store_true", help="a quorum queue instead of a classic one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    parser.add_argument("--keep", metavar="FILE", help="keep the job's log there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
