"""The soak: ``make soak``. A long storm of kills and cuts; the exit code says whether nothing was lost.

A million messages through a proxy that misbehaves, into parquet, while the driver, the JVM, the worker
and the broker are killed and the connection is cut, cut in mid-frame, and silenced.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from pyspark_mq.brokers import BROKERS
from testbed.audit import print_rows
from testbed.proxy import Direction, FaultProxy
from testbed.queues import FROZEN_S, PrivateBroker
from testbed.storm import Job, Publisher, Storm

QUEUE = "soak"
#: Over AMQP 1.0 the broker alone decides when it gives a silent connection up: a minute by default. And a crash
#: loop is what a limit of deliveries is there to end; here it is what is tested.
_SETTINGS: dict[str, dict[str, Any]] = {
    "rabbitmq": {"config": {"heartbeat": 2}},
    "activemq": {"amqp_idle_timeout_ms": 4_000},
    "artemis": {"amqp_idle_timeout_ms": 4_000, "max_delivery_attempts": -1},
}
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
        broker = stack.enter_context(
            PrivateBroker(
                arguments.broker,
                QUEUE,
                arguments.protocol,
                version=arguments.version,
                quorum=arguments.quorum,
                **_SETTINGS[arguments.broker],
            )
        )
        console.print(f"{broker.name} {broker.node.version}, read over {broker.protocol}", highlight=False)
        port = urlsplit(broker.url).port or 0
        proxy = stack.enter_context(FaultProxy("127.0.0.1", port))
        url = broker.url.replace(f":{port}", f":{proxy.port}")
        options = {**broker.options, "heartbeat": _HEARTBEAT, **_options(arguments.option)}
        job = Job(broker.name, url, QUEUE, folder, options)
        publisher = Publisher(broker.send, arguments.messages, arguments.rate)
        began = time.monotonic()

        def tell(name: str) -> None:
            done = sum(storm.done.values())
            seconds = time.monotonic() - began
            console.print(f"{seconds:7.0f} s  {done:4d}  {len(publisher.sent):9,d} sent  {name}", highlight=False)

        storm = Storm(
            publisher,
            job,
            _faults(job, broker, proxy, chance),
            pause_s=lambda: chance.uniform(0.0, 1.0),
            fault_count=arguments.faults,
            on_fault=tell,
        )
        try:
            storm.run(_DRAIN_TIMEOUT_S)
        except TimeoutError as late:
            console.print(f"[red]{late}", highlight=False)
        finally:
            publisher.stop()
            job.stop()
            if arguments.keep:
                console.print(f"log: {arguments.keep}")
                Path(arguments.keep).write_bytes(job.log.read_bytes())
        result = storm.verdict(broker.left())
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
        seconds = time.monotonic() - began
        print_rows(console, "Soak", rows, seconds)
        if not result.holds:
            console.print(result.examples)
        if arguments.report:
            told = {"version": broker.node.version, "holds": result.holds, "seconds": round(seconds), **rows}
            Path(arguments.report).write_text(json.dumps(told), "utf-8")
        return 0 if result.holds else 1


def _faults(job: Job, broker: PrivateBroker, proxy: FaultProxy, chance: random.Random) -> dict[str, Callable[[], bool]]:
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

    # Names that differ by a blank are the same fault again: what only cuts is quick, what kills a JVM
    # takes a start of Spark.
    slow = {
        "kill -9 of the driver and its JVM": job.kill_driver,
        "kill -9 of the Python worker": job.kill_worker,
        "kill -9 of the broker, restart": broker.kill_and_start,
        "kill -9 of the JVM": job.kill_jvm,
        "kill -9 of the Python worker ": job.kill_worker,
        "kill -9 of the broker, restart ": broker.kill_and_start,
        "SIGSTOP of the Python worker, SIGCONT": lambda: job.freeze_worker(FROZEN_S),
        "SIGSTOP of the broker, SIGCONT": broker.freeze,
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
    parser.add_argument("--broker", default="rabbitmq", choices=sorted(BROKERS))
    parser.add_argument("--protocol", help="as the option of the source")
    parser.add_argument("--version", default="", help="of the broker")
    parser.add_argument("--report", metavar="FILE", help="write the counts there as JSON")
    parser.add_argument("--quorum", action="store_true", help="a quorum queue instead of a classic one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    parser.add_argument("--keep", metavar="FILE", help="keep the job's log there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
