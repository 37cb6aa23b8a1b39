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
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from testbed.brokers.java import PASSWORD, USER, JavaNode
from testbed.brokers.node import FROZEN_S
from testbed.chaos.audit import Verdict, print_rows, verdict
from testbed.chaos.chaos import ChaosTest, Publisher
from testbed.chaos.proxy import FaultProxy
from testbed.chaos.queues import PrivateBroker
from testbed.comparison.readers import FlinkReader, HazelcastReader, JavaReader, OurReader
from testbed.process import NodeError, PublishError, poll
from testbed.publishers.amqp091 import publish_confirmed

QUEUE = "comparison"
#: Those that read which broker.
READERS = {"rabbitmq": ("pyspark-mq", "flink", "hazelcast"), "artemis": ("pyspark-mq", "hazelcast")}
_HEARTBEAT_S = 2
_SETTINGS: dict[str, dict[str, Any]] = {
    "rabbitmq": {"config": {"heartbeat": _HEARTBEAT_S}},
    "artemis": {"max_delivery_attempts": -1},
}
_DRAIN_TIMEOUT_S = 90.0
#: Longer than a checkpoint or a snapshot takes: what is acknowledged last, and what would come once more.
_REST_S = 8.0
_LEFT_TIMEOUT_S = 10.0
_CONFIRM_TIMEOUT_S = 30.0


class OncePublisher(Publisher):
    """Sends no message twice: one without a confirmation is doubtful."""

    def __init__(self, broker: PrivateBroker, messages: int, rate: int, allowed: Callable[[], int]) -> None:
        super().__init__(self._confirmed, messages, rate, allowed=allowed)
        self._broker = broker

    def _confirmed(self, bodies: Sequence[bytes], ids: Sequence[str]) -> None:
        """Publish; to RabbitMQ the ID is message ID and correlation ID, as Flink looks at the latter."""
        if self._broker.name != "rabbitmq":
            self._broker.send(bodies, ids)
            return
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
    names = arguments.readers or ",".join(READERS[arguments.broker])
    told = []
    for name in names.split(","):
        told.append(_run(name, arguments, console))
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(told, indent=1), "utf-8")
    console.print("| | faults | sent | lost | doubled | left in the queue | starts | s |", highlight=False)
    for one in told:
        cells = (one[key] for key in ("reader", "faults", "sent", "lost", "doubled", "left", "starts", "seconds"))
        console.print(f"| {' | '.join(map(str, cells))} |", highlight=False)
    return 0 if all(one["lost"] == one["doubled"] == 0 for one in told) else 1


def _run(name: str, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    if name not in READERS[arguments.broker]:
        raise SystemExit(f"{name} is none of {', '.join(READERS[arguments.broker])}")
    settings = {"version": arguments.version, "quorum": arguments.quorum, **_SETTINGS[arguments.broker]}
    with (
        PrivateBroker(arguments.broker, QUEUE, **settings) as broker,
        tempfile.TemporaryDirectory(prefix="pyspark-mq-comparison-") as folder,
    ):
        node = broker.node
        url = node.jms_url() if name == "hazelcast" and isinstance(node, JavaNode) else broker.url
        port = urlsplit(url).port or 0
        with FaultProxy("127.0.0.1", port) as proxy:
            reader = _reader(name, broker, url.replace(f":{port}", f":{proxy.port}"), Path(folder))
            reader.build()
            console.print(f"{reader.title}, {broker.name} {node.version}, seed {arguments.seed}", highlight=False)
            return _chaos(reader, broker, proxy, arguments, console)


def _reader(name: str, broker: PrivateBroker, url: str, folder: Path) -> OurReader | JavaReader:
    if name == "flink":
        return FlinkReader(broker.name, url, QUEUE, folder)
    if name == "hazelcast":
        # Else the client of RabbitMQ takes the path for a virtual host without a name.
        url, *login = (f"{url}%2F", "guest", "guest") if broker.name == "rabbitmq" else (url, USER, PASSWORD)
        return HazelcastReader(broker.name, url, QUEUE, folder, user=login[0], password=login[1])
    return OurReader(broker.name, url, QUEUE, folder, {**broker.options, "heartbeat": f"{_HEARTBEAT_S}s"})


def _chaos(
    reader: OurReader | JavaReader,
    broker: PrivateBroker,
    proxy: FaultProxy,
    arguments: argparse.Namespace,
    console: Console,
) -> dict[str, Any]:
    chance = random.Random(arguments.seed)
    began = time.monotonic()
    share = arguments.messages / arguments.faults

    faults: list[tuple[float, str]] = []

    def faults_done() -> int:
        return sum(chaos.done.values())

    def ready() -> bool:
        """All that was to be sent before this fault was sent."""
        return reader.steady() and (not publisher.is_alive() or publisher.count >= faults_done() * share)

    def all_read() -> bool:
        """Is all in the output, and has been for so long that it is acknowledged?"""
        if not set(publisher.sent) <= set(_rows(reader)):
            return False
        time.sleep(_REST_S)
        return True

    def timed(name: str, fault: Callable[[], bool]) -> Callable[[], bool]:
        def do() -> bool:
            faults.append((time.time(), name))
            return fault()

        return do

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
    chaos = ChaosTest(
        publisher,
        reader,
        {name: timed(name, fault) for name, fault in kinds.items()},
        pause_s=lambda: chance.uniform(0.0, 1.5),
        fault_count=arguments.faults,
        on_fault=tell,
        ready=ready,
        all_read=all_read,
    )
    problem = ""
    try:
        chaos.run(_DRAIN_TIMEOUT_S)
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
    after = _after(reader, faults)
    print_rows(console, reader.title, {**result.rows(), **chaos.done}, seconds)
    if after:
        console.print(f"doubled after: {after}", highlight=False)
    return {
        "reader": reader.title,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "broker": f"{broker.name} {broker.node.version}",
        "seed": arguments.seed,
        "faults": faults_done(),
        "kinds": chaos.done,
        "sent": result.sent,
        "lost": result.lost,
        "doubled": result.duplicated,
        "unexpected": result.unexpected,
        "left": result.left,
        "starts": reader.starts,
        "seconds": round(seconds),
        "doubled after": after,
        "problem": problem,
        "examples": result.examples,
    }


def _rows(reader: OurReader | JavaReader) -> list[str]:
    return [mark for file in reader.files() for mark in reader.marks(file)]


def _verdict(reader: OurReader | JavaReader, publisher: OncePublisher, broker: PrivateBroker) -> Verdict:
    """A message without a confirmation may be in the output, or not."""
    rows = _rows(reader)
    return verdict(publisher.arrived(rows), rows, broker.left())


def _after(reader: OurReader | JavaReader, faults: Sequence[tuple[float, str]]) -> dict[str, int]:
    """How many rows that double another were written after which fault, as the last before them."""
    seen: set[str] = set()
    found: Counter[str] = Counter()
    for file in sorted(reader.files(), key=lambda file: file.stat().st_mtime):
        written_s = file.stat().st_mtime
        marks = reader.marks(file)
        doubled = sum(mark in seen for mark in marks) + len(marks) - len(set(marks))
        if doubled:
            found[next((name for at_s, name in reversed(faults) if at_s < written_s), "none")] += doubled
        seen.update(marks)
    return dict(found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--broker", default="rabbitmq", choices=sorted(READERS))
    parser.add_argument("--readers", help="which, with commas between; by default all that read this broker")
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
