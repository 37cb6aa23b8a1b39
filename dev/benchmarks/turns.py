"""One turn: a queue of its own is filled, a contender empties it, and the broker says when it began and ended.

The clock and the CPU time run from the first message handed out, so that neither the start of a process nor that of a
query is counted, until all is settled: the contender has every message and the broker none.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from benchmarks.contenders import FLINK, Contender, Shape
from benchmarks.cpu import Usage, difference, tree_usage
from benchmarks.drains import Drain, DrainError, spawn
from benchmarks.figures import Turn
from benchmarks.filler import FILL_RATE_MIN, HEADERS, bodies, command, ids
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.brokers.factory import make_node
from testbed.brokers.node import Node, ProcessNode
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError, poll

__all__ = ["Arena", "measure"]

#: How the name of a broker ends whose queues are to be quorum queues.
_QUORUM = "-quorum"
_POLL_S = 0.01
_SETTLED_POLL_S = 0.03
_FIRST_TIMEOUT_S = 60.0
_TURN_TIMEOUT_S = 600.0
_FILL_TIMEOUT_S = 600.0
#: More are published by two processes.
_FILL_BY_ONE = 1_000_000
#: So that the broker finishes writing, which is no contender's work.
_REST_S = 1.0


class Arena:
    """A private broker, and what is done to it between turns.

    Args:
        broker: its name, and as :class:`.Contender` has it a version and `quorum`.
    """

    def __init__(self, broker: str) -> None:
        self.broker, _, version = broker.removesuffix(_QUORUM).partition("-")
        self._quorum = {"quorum": True} if broker.endswith(_QUORUM) else {}
        node = make_node(self.broker, version)
        assert isinstance(node, ProcessNode)
        self.node: ProcessNode = node

    @property
    def title(self) -> str:
        return f"{self.node.title} {self.node.version}" + (", quorum queues" if self._quorum else "")

    def filled(self, contender: Contender, shape: Shape, messages: int) -> str:
        """A new durable queue with persistent messages and random UUIDs; its name.

        The UUIDs are the IDs; where the broker gives its own (STOMP on ActiveMQ brokers) they are correlation IDs.
        For Flink they are both.
        """
        queue = f"bench-{uuid.uuid4().hex[:8]}"
        self.node.declare(queue, **self._quorum)
        if messages:
            protocol = self._publishing_protocol(contender)
            self.fill(queue, shape, messages, protocol, correlated=contender.kind == FLINK)
        if not poll(lambda: self.node.counts(queue).ready == messages, _FIRST_TIMEOUT_S, interval_s=0.1):
            raise NodeError(f"{queue} has {self.node.counts(queue)}, not {messages}")
        time.sleep(_REST_S)
        return queue

    def fill(self, queue: str, shape: Shape, messages: int, protocol: str, *, correlated: bool = False) -> None:
        """Publish so many more; returns when they are confirmed."""
        if isinstance(self.node, RabbitNode) and (correlated or messages > _FILL_BY_ONE):
            shares = (messages // 2, messages - messages // 2)
            commands = [command(self.node.url(), queue, shape, share, correlated=correlated) for share in shares]
            producers = [spawn(words, subprocess.DEVNULL) for words in commands]
            failed = [code for producer in producers if (code := producer.wait())]
            if failed:
                raise NodeError(f"a producer ended with {failed[0]}")
            return
        self.node.publish(
            queue,
            bodies(shape, messages),
            ids=ids(shape, messages),
            headers=HEADERS if shape.headers else None,
            protocol=protocol,
            timeout_s=max(_FILL_TIMEOUT_S, messages / FILL_RATE_MIN),
        )

    def _publishing_protocol(self, contender: Contender) -> str:
        # Artemis gives no IDs over AMQP 1.0, so there the producer's must be AMQP's own. Classic takes
        # messages over AMQP 1.0 one by one, and hands those of STOMP out over it with the ID it has given.
        if self.broker == "rabbitmq":
            return AMQP_0_9_1
        return AMQP_1_0 if self.broker == "artemis" and contender.protocol == AMQP_1_0 else STOMP

    @contextlib.contextmanager
    def gauge(self, queue: str) -> Iterator[_Gauge]:
        """How full a queue is, asked cheaply."""
        gauge: _Gauge = _RabbitGauge(self.node, queue) if self.broker == "rabbitmq" else _JavaGauge(self.node, queue)
        try:
            yield gauge
        finally:
            gauge.close()

    def usage(self) -> Usage:
        return tree_usage("broker", self.node.pid)


class _Gauge(ABC):
    """Messages that wait to be handed out."""

    @abstractmethod
    def ready(self) -> int:
        """Now."""

    @abstractmethod
    def close(self) -> None:
        """End the connection, if it is one."""


class _JavaGauge(_Gauge):
    def __init__(self, node: Node, queue: str) -> None:
        self._node, self._queue = node, queue

    def ready(self) -> int:
        return self._node.counts(self._queue).ready

    def close(self) -> None:
        pass


class _RabbitGauge(_Gauge):
    """By passive declares: :meth:`Node.counts` starts a program each time."""

    def __init__(self, node: Node, queue: str) -> None:
        import pika

        parameters = pika.URLParameters(node.url())
        parameters.heartbeat = 0  # nobody would answer them while a turn runs
        self._connection: Any = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        self._queue = queue

    def ready(self) -> int:
        return int(self._channel.queue_declare(self._queue, passive=True).method.message_count)

    def close(self) -> None:
        self._connection.close()


def measure(arena: Arena, queue: str, drain: Drain, messages: int, backlog: int | None = None) -> Turn:
    """Have a contender empty a queue, or read so many of more.

    Args:
        messages: that it reads.
        backlog: that wait when it begins, if it is to leave some.

    Raises:
        DrainError: it gave up, left something, or took too long.
    """

    def usage() -> Usage:
        return {**drain.usage(), **(arena.usage() if drain.reads_queue else {})}

    def begun() -> bool:
        drain.check()
        return gauge.ready() < (messages if backlog is None else backlog) if drain.reads_queue else drain.begun()

    with arena.gauge(queue) as gauge:
        drain.start()
        try:
            if not poll(begun, _FIRST_TIMEOUT_S, interval_s=_POLL_S):
                raise DrainError(f"was handed nothing within {_FIRST_TIMEOUT_S:g} s")
            began, before = time.perf_counter(), usage()
            drain.wait()
            received_s = time.perf_counter() - began
            if drain.reads_queue and backlog is None:
                _await_settled(arena.node, queue, gauge)
            seconds, after = time.perf_counter() - began, usage()
        finally:
            epochs, steady = drain.end()
    if drain.waits_to_settle:
        steady = messages / received_s
    return Turn(messages, seconds, difference(after, before), epochs, steady)


def _await_settled(node: Node, queue: str, gauge: _Gauge) -> None:
    # The cheap question first: PerfTest is at work while it is asked.
    if not poll(lambda: gauge.ready() == 0, _TURN_TIMEOUT_S, interval_s=_SETTLED_POLL_S):
        raise DrainError(f"left {node.counts(queue)} in the queue")
    if not poll(lambda: node.counts(queue).total == 0, _FIRST_TIMEOUT_S, interval_s=_SETTLED_POLL_S):
        raise DrainError(f"did not settle: {node.counts(queue)}")
