"""The same faults for this source and others: ``make compare``.

Each reader has a broker of its own, the same messages a second, and the same faults in the same order. Each message
is sent once: one whose confirmation did not come is not sent again, but another one in its place, so whatever is in
the output twice was read twice.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from pyspark_mq.brokers.base import AMQP_0_9_1
from testbed.brokers.node import FROZEN_S
from testbed.comparison.readers import FlinkReader, HazelcastReader, JavaReader, OurReader
from testbed.process import NodeError, PublishError, poll
from testbed.publishers.amqp091 import publish_confirmed
from testbed.storm.audit import Verdict, print_rows, verdict
from testbed.storm.proxy import FaultProxy
from testbed.storm.queues import PrivateBroker
from testbed.storm.storm import Publisher, Storm

QUEUE = "comparison"
READERS = ("pyspark-mq", "flink", "hazelcast")
_HEARTBEAT_S = 2
_DRAIN_TIMEOUT_S = 90.0
#: Longer than a checkpoint or a snapshot takes: what is acknowledged last, and what would come once more.
_REST_S = 8.0
_LEFT_TIMEOUT_S = 10.0
_CONFIRM_TIMEOUT_S = 30.0


class OncePublisher(Publisher):
    """Sends no message twice; `unsure` of those that may have arrived."""

    def __init__(self, broker: PrivateBroker, messages: int, rate: int, allowed: Callable[[], int]) -> None:
        super().__init__(self._confirmed, messages, rate, allowed=allowed)
        self._broker = broker
        self.doubtful: set[str] = set()

    def _confirmed(self, bodies: Sequence[bytes], ids: Sequence[str]) -> None:
        """Publish; the ID is message ID and correlation ID, as Flink looks at the latter."""
        import pika  # noqa: PLC0415 - only those who publish need it

        made = (
            (body, pika.BasicProperties(message_id=key, correlation_id=key, delivery_mode=2))
            for body, key in zip(bodies, ids, strict=True)
        )
        url = pika.URLParameters(self._broker.url)
        publish_confirmed(url, QUEUE, made, timeout_s=_CONFIRM_TIMEOUT_S)

    def _send(self, marks: list[str], ids: list[str]) -> bool:
        while not self._stopping.is_set():
            try:
                self._publish([mark.encode("ascii") + self._filling for mark in marks], ids)
            except PublishError:
                self.doubtful.update(marks)
                self.sent_again += len(marks)
                time.sleep(1.0)
                marks, ids = self.named(0, len(marks))
            else:
                self.confirmed(marks)
                return True
        return False


def main() -> int:
    """Run them one after the other; 0 if no message of any was lost or doubled."""
    arguments = _arguments()
    # Else the readers would outlive it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console(width=110)
    told = [_run(name, arguments, console) for name in arguments.readers.split(",")]
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(told, indent=1), "utf-8")
    console.print("| | faults | sent | lost | doubled | left in the queue | starts | s |", highlight=False)
    for one in told:
        cells = (one[key] for key in ("reader", "faults", "sent", "lost", "doubled", "left", "starts", "seconds"))
        console.print(f"| {' | '.join(map(str, cells))} |", highlight=False)
    return 0 if all(one["lost"] == one["doubled"] == 0 for one in told) else 1


def _run(name: str, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    settings: dict[str, Any] = {"version": arguments.version, "quorum": arguments.quorum}
    settings["config"] = {"heartbeat": _HEARTBEAT_S}
    with (
        PrivateBroker("rabbitmq", QUEUE, AMQP_0_9_1, **settings) as broker,
        tempfile.TemporaryDirectory(prefix="pyspark-mq-comparison-") as folder,
        FaultProxy("127.0.0.1", urlsplit(broker.url).port or 0) as proxy,
    ):
        reader = _reader(name, broker, proxy.port, Path(folder))
        reader.build()
        console.print(f"{reader.title}, {broker.name} {broker.node.version}, seed {arguments.seed}", highlight=False)
        return _storm(reader, broker, proxy, arguments, console)


def _reader(name: str, broker: PrivateBroker, port: int, folder: Path) -> OurReader | JavaReader:
    url = broker.url.replace(f":{urlsplit(broker.url).port}", f":{port}")
    if name == "flink":
        return FlinkReader(broker.name, url, QUEUE, folder, port=port)
    if name == "hazelcast":
        return HazelcastReader(broker.name, f"{url}%2F", QUEUE, folder, user="guest", password="guest")
    if name != "pyspark-mq":
        raise SystemExit(f"{name} is none of {', '.join(READERS)}")
    return OurReader(broker.name, url, QUEUE, folder, {**broker.options, "heartbeat": f"{_HEARTBEAT_S}s"})


def _storm(
    reader: OurReader | JavaReader,
    broker: PrivateBroker,
    proxy: FaultProxy,
    arguments: argparse.Namespace,
    console: Console,
) -> dict[str, Any]:
    chance = random.Random(arguments.seed)
    began = time.monotonic()
    share = arguments.messages / arguments.faults

    def faults_done() -> int:
        return sum(storm.done.values())

    def ready() -> bool:
        """All that was to be sent before this fault was sent."""
        return reader.steady() and (not publisher.is_alive() or publisher.count >= faults_done() * share)

    def all_read() -> bool:
        """Is all in the output, and has been for so long that it is acknowledged?"""
        if not set(publisher.sent) <= set(reader.rows()):
            return False
        time.sleep(_REST_S)
        return True

    def tell(fault: str) -> None:
        now = f"{time.monotonic() - began:6.0f} s  {faults_done():3d}  {publisher.count:8,d} sent  {fault}"
        console.print(now, highlight=False)

    publisher = OncePublisher(broker, arguments.messages, arguments.rate, lambda: round((faults_done() + 1) * share))
    kinds: dict[str, Callable[[], bool]] = {
        "kill -9 of what reads": reader.kill_driver,
        "cut of all connections": lambda: proxy.cut() > 0,
        "kill -9 of the broker, restart": broker.kill_and_start,
        "SIGSTOP of what reads, SIGCONT": lambda: reader.freeze(FROZEN_S),
        "SIGSTOP of the broker, SIGCONT": broker.freeze,
    }
    storm = Storm(
        publisher,
        reader,
        kinds,
        pause_s=lambda: chance.uniform(0.0, 1.5),
        fault_count=arguments.faults,
        on_fault=tell,
        ready=ready,
        all_read=all_read,
    )
    problem = ""
    try:
        storm.run(_DRAIN_TIMEOUT_S)
    except (TimeoutError, NodeError) as failed:
        problem = str(failed).splitlines()[0]
        console.print(problem, highlight=False)
    finally:
        publisher.stop()
        reader.stop()
    poll(lambda: broker.left() == 0, _LEFT_TIMEOUT_S, interval_s=0.5)
    result = _verdict(reader, publisher, broker)
    seconds = time.monotonic() - began
    if arguments.keep and reader.log.exists():
        Path(f"{arguments.keep}.{reader.title.replace(' ', '-')}").write_bytes(reader.log.read_bytes())
    print_rows(console, reader.title, {**result.rows(), **storm.done}, seconds)
    return {
        "reader": reader.title,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "broker": f"{broker.name} {broker.node.version}",
        "seed": arguments.seed,
        "faults": faults_done(),
        "kinds": storm.done,
        "sent": result.sent,
        "lost": result.lost,
        "doubled": result.duplicated,
        "unexpected": result.unexpected,
        "left": result.left,
        "starts": reader.starts,
        "seconds": round(seconds),
        "problem": problem,
        "examples": result.examples,
    }


def _verdict(reader: OurReader | JavaReader, publisher: OncePublisher, broker: PrivateBroker) -> Verdict:
    """A message without a confirmation may be in the output, or not."""
    rows = reader.rows()
    return verdict([*publisher.sent, *publisher.doubtful.intersection(rows)], rows, broker.left())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--readers", default=",".join(READERS), help="which, with commas between")
    parser.add_argument("--faults", type=int, default=20, help="of all kinds, in turn")
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    parser.add_argument("--version", default="", help="of RabbitMQ: 4.3, or the installed one")
    parser.add_argument("--quorum", action="store_true", help="a quorum queue")
    parser.add_argument("--seed", type=int, default=1, help="of the pauses between the faults")
    parser.add_argument("--json", metavar="FILE", help="write the counts there")
    parser.add_argument("--keep", metavar="PREFIX", help="keep the logs there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
