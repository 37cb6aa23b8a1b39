"""A Kafka broker of one's own, with a way to hold a writer in the middle of what it writes."""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testbed.chaos.proxy import Direction, FaultProxy
from testbed.distributions import KAFKA, fetch, find_java
from testbed.ports import LOOPBACK, listens
from testbed.process import Command, NodeError
from testbed.server import LocalServer

__all__ = ["Kafka", "Record"]

_ASKED_TIMEOUT_S = 30.0
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=JOBS://{host}:{jobs},TESTS://{host}:{tests},CONTROLLER://{host}:{controller}
advertised.listeners=JOBS://{host}:{proxy},TESTS://{host}:{tests}
listener.security.protocol.map=JOBS:PLAINTEXT,TESTS:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=TESTS
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic."""

    partition: int
    offset: int
    key: str
    value: bytes


class Kafka(LocalServer):
    """One broker, its own controller, with data and ports of its own.

    Jobs come to it through a proxy, the test does not.
    """

    title = "Kafka"
    _poll_s = 0.1

    def __init__(self) -> None:
        """Nothing is started yet; the broker is fetched if it is not in the cache.

        Raises:
            NodeError: Java is missing, or the broker cannot be had.
        """
        self._java = find_java()
        self._path = str(fetch(KAFKA) / "*")
        super().__init__()
        self._jobs, self._tests, self._controller = (self._reserve_port() for _ in range(3))
        self._proxy = FaultProxy(LOOPBACK, self._jobs)

    @property
    def servers(self) -> str:
        """Where jobs connect to."""
        return f"{LOOPBACK}:{self._proxy.port}"

    def _command(self) -> Command:
        settings = self.folder / "server.properties"
        if not settings.exists():
            self._make_data(settings)
        return Command([*self._jvm(), "kafka.Kafka", str(settings)], dict(os.environ))

    def _make_data(self, settings: Path) -> None:
        ports = {"jobs": self._jobs, "tests": self._tests, "controller": self._controller, "proxy": self._proxy.port}
        settings.write_text(_SETTINGS.format(host=LOOPBACK, folder=self.folder, **ports), "ascii")
        name = base64.b64encode(uuid.uuid4().bytes, b"ab").decode().rstrip("=")
        made = subprocess.run(
            [*self._jvm(), "kafka.tools.StorageTool", "format", "--cluster-id", name, "--config", settings],
            capture_output=True, text=True, check=False, cwd=self.folder,
        )  # fmt: skip
        if made.returncode:
            raise NodeError(f"Kafka's storage tool ended with {made.returncode}: {(made.stdout + made.stderr)[-2000:]}")

    def _ready(self) -> bool:
        return listens(self._jobs) and listens(self._tests)

    def close(self) -> None:
        """End it and delete its data."""
        try:
            super().close()
        finally:
            self._proxy.close()

    def make_topic(self, topic: str, partitions: int = 2) -> None:
        """Make a topic, and wait until it is there."""
        admin = AdminClient({"bootstrap.servers": self._own})  # named, as what it does ends with it
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_ASKED_TIMEOUT_S)

    def records(self, topic: str) -> list[Record]:
        """All records of a topic, by partition and offset."""
        found: list[Record] = []
        settings = {"bootstrap.servers": self._own, "group.id": "tests", "enable.auto.commit": False}
        with closing(Consumer(settings)) as consumer:
            parts = consumer.list_topics(topic, _ASKED_TIMEOUT_S).topics[topic].partitions
            ends = {part: consumer.get_watermark_offsets(TopicPartition(topic, part))[1] for part in parts}
            consumer.assign([TopicPartition(topic, part, 0) for part in parts])
            while len(found) < sum(ends.values()):
                message = consumer.poll(_ASKED_TIMEOUT_S)
                if message is None or message.error() is not None:
                    why = "no more came" if message is None else message.error()
                    raise NodeError(f"{len(found)} of {sum(ends.values())} records of {topic!r}: {why}")
                key, value = message.key() or b"", message.value() or b""
                found.append(Record(message.partition() or 0, message.offset() or 0, key.decode(), value))
        return sorted(found, key=lambda record: (record.partition, record.offset))

    @contextmanager
    def unanswered(self) -> Iterator[None]:
        """Jobs reach it, and do not hear from it.

        What they send is written. A producer has up to five requests under way, each with a part of what it has to
        send, and waits: it is in the middle.
        """
        self._proxy.stall(Direction.TO_CLIENT)
        try:
            yield
        finally:
            self._proxy.resume(Direction.TO_CLIENT)

    @property
    def _own(self) -> str:
        return f"{LOOPBACK}:{self._tests}"

    def _jvm(self) -> list[str]:
        return [self._java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", self._path]
