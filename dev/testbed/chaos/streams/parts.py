"""What a chaos test of streams is made of: the cluster behind proxies, the producers, the job, and what is done to
them."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from testbed.brokers.rabbitmq_erlang import SYNC
from testbed.chaos.chaos import Job, Publisher
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.clusters.cluster import Fault
from testbed.clusters.rabbitmq import RabbitCluster
from testbed.ports import LOOPBACK
from testbed.process import Command, Process, poll
from testbed.publishers.streams import Place, with_client
from testbed.server import Started
from testbed.signals import freeze_one, kill_one
from testbed.spark.standalone import SparkCluster

__all__ = ["FAULTS", "LOCAL_FAULTS", "Producers", "StreamCluster", "StreamJob", "faults_of"]

_ROOT = Path(__file__).resolve().parents[4]
_POLL_S = 0.1
#: For how long processes are stopped: longer than heartbeats of the source and of producers here.
_FROZEN_S = 8.0
_AWAY_S = 3.0
_CUT_TIMEOUT_S = 5.0
_EXECUTOR, _TASK = "CoarseGrainedExecutorBackend", "pyspark.daemon"

#: Name of a fault -> how often it comes in a round, where Spark is one process.
LOCAL_FAULTS: Mapping[str, int] = MappingProxyType(
    {
        "cut": 3,
        "cut in mid-frame": 4,
        "kill -9 of a Python worker of tasks": 4,
        "kill -9 of the leader of a partition, start": 2,
        "kill -9 of the driver and its JVM": 1,
        "SIGSTOP of a Python worker of tasks, SIGCONT": 1,
        "kill -9 of a node, start": 1,
        "kill -9 of the JVM": 1,
        "kill -9 of the driver's Python worker": 1,
        "SIGSTOP of a node, SIGCONT": 1,
        "kill -9 of the producers, start": 1,
    }
)
#: With workers of their own.
FAULTS: Mapping[str, int] = MappingProxyType(
    {**LOCAL_FAULTS, "kill -9 of an executor": 2, "kill -9 of a Spark worker, start": 1}
)


class StreamCluster(Started):
    """Three nodes of RabbitMQ 4.3, each of which sends clients of streams to a proxy of its own."""

    def __init__(self) -> None:
        """Nothing is started yet but proxies.

        Raises:
            NodeError: RabbitMQ cannot be had.
        """
        self.nodes = RabbitCluster(version="4.3", plugins=("rabbitmq_stream",))
        self._stack = ExitStack()
        self._stack.callback(self.nodes.close)
        self.proxies: list[FaultProxy] = []
        for member in self.nodes.members:
            proxy = self._stack.enter_context(FaultProxy(LOOPBACK, member.stream_port))
            member.advertise_stream(proxy.port)
            self.proxies.append(proxy)

    def start(self) -> None:
        self.nodes.start()

    def close(self) -> None:
        self._stack.close()

    @property
    def places(self) -> list[Place]:
        """Where clients connect to."""
        return [(LOOPBACK, proxy.port) for proxy in self.proxies]

    @property
    def url(self) -> str:
        """Option `url` of the source."""
        return ",".join(f"rabbitmq-stream://guest:guest@{host}:{port}/" for host, port in self.places)

    def sync(self) -> None:
        """Have what was declared survive a kill: a node that forgets its part elects no leader."""
        for member in self.nodes.members:
            member.eval(SYNC)

    def leader(self, stream: str) -> int:
        """Number of the node that has the leader of a stream; of a node that runs if nobody tells."""
        running = [number for number, member in enumerate(self.nodes.members) if member.running]
        try:
            port = self.nodes.members[running[0]].stream_port
            broker, _ = with_client(port, lambda client: client.query_leader_and_replicas(stream))
        except Exception:  # noqa: BLE001 - of `rstream`, which has many
            return running[0]
        return [proxy.port for proxy in self.proxies].index(broker.port)

    def kill_and_start(self, number: int) -> bool:
        """``kill -9`` of a node, and its start after a while."""
        self.nodes.kill(number)
        time.sleep(_AWAY_S)
        self.nodes.bring_back(number)
        return True


class Producers(Publisher):
    """The process with the producers, started again whenever it has ended too early.

    Args:
        places: of the nodes.
        streams: the partitions.
        messages: of each partition.
        rate: messages a second over all.
        folder: for its log and for what was confirmed.
    """

    def __init__(self, places: Sequence[Place], streams: Sequence[str], messages: int, rate: int, folder: Path) -> None:
        super().__init__(lambda bodies, ids: None, messages * len(streams), rate)  # noqa: ARG005 - it sends by itself
        self._progress, self._log, self._folder = folder / "confirmed.json", folder / "producers.log", folder
        given = [("--place", f"{host}:{port}") for host, port in places] + [("--stream", name) for name in streams]
        given += [("--messages", str(messages)), ("--rate", str(rate)), ("--progress", str(self._progress))]
        words = (word for two in given for word in two)
        self._command = [sys.executable, "-m", "testbed.chaos.streams.produce", *words]
        self._process: Process | None = None
        self.starts = 0

    def _run(self) -> None:
        while self.count < self._messages and not self._stopping.is_set():
            if self._process is None or not self._process.running:
                environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
                self._process = Process(Command(self._command, environment), log=self._log, folder=self._folder)
                self.starts += 1
            self._stopping.wait(_POLL_S)
            if self._progress.exists():
                self.count = sum(json.loads(self._progress.read_text("utf-8")).values())
        self.kill()

    def kill(self) -> bool:
        """``kill -9``; it is started again if not all was confirmed."""
        if self._process is None or not self._process.running:
            return False
        self._process.kill()
        return True


@dataclass
class StreamJob(Job):
    """The same job, which reads a stream."""

    cluster: SparkCluster | None = None

    def command(self) -> list[str]:
        return ["--stream" if word == "--queue" else word for word in super().command()]

    def tasks(self) -> list[psutil.Process]:
        return super().tasks() if self.cluster is None else self.cluster.processes(_TASK)

    def executors(self) -> list[psutil.Process]:
        """The JVMs of executors."""
        return [] if self.cluster is None else self.cluster.processes(_EXECUTOR)


def faults_of(
    job: StreamJob, nodes: StreamCluster, producers: Producers, partitions: Sequence[str], chance: random.Random
) -> dict[str, Fault]:
    """What is done, by the names of :data:`FAULTS`."""

    def cut() -> bool:
        return sum([proxy.cut() for proxy in nodes.proxies]) > 0

    def cut_mid_frame() -> bool:
        # What is read, by tasks and by the driver, and confirmations come on the same way.
        proxy = chance.choice(nodes.proxies)
        direction, most = chance.choice([(Direction.TO_BROKER, 2_000), (Direction.TO_CLIENT, 500_000)])
        done = proxy.cut_after(chance.randrange(1, most), direction).wait(_CUT_TIMEOUT_S)
        proxy.disarm()
        return done

    def freeze_node() -> bool:
        chance.choice(nodes.nodes.members).freeze(_FROZEN_S)
        return True

    def kill_spark_worker() -> bool:
        return job.cluster is not None and job.cluster.kill_worker()

    def when_there(fault: Fault) -> Fault:
        """Tasks come and go: wait for some."""
        return lambda: poll(fault, _CUT_TIMEOUT_S, interval_s=0.02)

    return {
        "cut": cut,
        "cut in mid-frame": cut_mid_frame,
        "kill -9 of a Python worker of tasks": when_there(lambda: kill_one(job.tasks(), chance.choice)),
        "kill -9 of the leader of a partition, start": lambda: nodes.kill_and_start(
            nodes.leader(chance.choice(partitions))
        ),
        "kill -9 of the driver and its JVM": job.kill_driver,
        "SIGSTOP of a Python worker of tasks, SIGCONT": lambda: freeze_one(job.tasks(), chance.choice, _FROZEN_S),
        "kill -9 of a node, start": lambda: nodes.kill_and_start(chance.randrange(len(nodes.proxies))),
        "kill -9 of the JVM": job.kill_jvm,
        "kill -9 of the driver's Python worker": job.kill_worker,
        "SIGSTOP of a node, SIGCONT": freeze_node,
        "kill -9 of the producers, start": producers.kill,
        "kill -9 of an executor": lambda: kill_one(job.executors(), chance.choice),
        "kill -9 of a Spark worker, start": kill_spark_worker,
    }
