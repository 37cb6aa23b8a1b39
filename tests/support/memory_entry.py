"""The matrix entry of the queue in memory: what :mod:`tests.support.entries` has for real brokers, without a process
or a socket.

Its readers are in this process. One is killed by stopping its threads: whatever they wait for raises.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_mq.brokers import Broker
from pyspark_mq.sources.connections.session import Session
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.epochs import EpochSource
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.spark_source.options import Options, parse_options
from pyspark_mq.spark_source.reader import MqStreamReader
from pyspark_mq.spark_source.schema import SCHEMA
from testbed.brokers.node import Node, QueueCounts, unique_ids
from tests.support.engine import Crashed, Engine, ReaderError
from tests.support.entries import LiveEntry, MatrixEntry
from tests.support.memory_broker import MEMORY, PROTOCOL, MemoryBroker, MemorySession, memory_session

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MEMORY_ENTRY", "MemoryEntry", "MemoryNode"]

MEMORY_ENTRY = MatrixEntry(MEMORY.name, PROTOCOL)
_URL = "amqp://memory:5672/"
_ANSWER_TIMEOUT_S = 120.0


class MemoryNode(Node):
    """The broker, as tests handle a node."""

    title = "queue in memory"

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self._ids = unique_ids()

    @property
    def version(self) -> str:
        return "0"

    def url(self, protocol: str | None = None, **_: Any) -> str:
        return _URL

    def declare(self, queue: str) -> None:
        self.broker.declare(queue)

    def delete(self, queue: str) -> None:
        self.broker.delete(queue)

    def purge(self, queue: str) -> None:
        with self.broker.lock:
            self.broker.queues[queue].purge()

    def counts(self, queue: str) -> QueueCounts:
        return self.broker.counts(queue)

    def publish(
        self,
        queue: str,
        bodies: Iterable[bytes],
        *,
        ids: Iterable[str | None] | None = None,
        headers: Mapping[str, Any] | None = None,
        protocol: str | None = None,
        expires_ms: int | None = None,
        timeout_s: float = 120.0,
    ) -> list[str | None]:
        given = iter(ids) if ids is not None else self._ids
        expires_s = None if expires_ms is None else expires_ms / 1000
        sent: list[str | None] = []
        with self.broker.lock:
            for body, key in zip(bodies, given, strict=False):
                self.broker.queues[queue].publish(body, key, headers, expires_s=expires_s)
                sent.append(key)
            self.broker.step()
        return sent

    @property
    def running(self) -> bool:
        return self.broker.up

    def start(self) -> None:
        self.broker.start()

    def stop(self) -> None:
        self.broker.cut(lose_acks=False)
        self.broker.kill()

    def kill(self) -> None:
        self.broker.kill()

    def freeze(self, seconds: float) -> None:
        self.broker.stopped = True
        try:
            time.sleep(seconds)
        finally:
            self.broker.stopped = False

    def close(self) -> None:
        self.broker.kill()

    def log_tail(self, lines: int = 80) -> str:
        return ""


class MemoryProxy:
    """A network that misbehaves: what tests use of :class:`.FaultProxy`, for sessions opened through it.

    There are no bytes here: a cut after so many is one after so many messages, acknowledgements and answers.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def cut(self) -> int:
        return self._broker.cut()

    def mute(self, direction: object = None, *, new: bool = False) -> None:
        with self._broker.lock:
            for queue in self._broker.queues.values():
                for session in list(queue.sessions):
                    queue.silence(session, queue.faults.half_open_s)

    def stall(self) -> None:
        self._broker.stopped = True

    def resume(self) -> None:
        self._broker.stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.stopped = False


class MemoryEntry(LiveEntry):
    """A :class:`LiveEntry` whose broker is the queue in memory."""

    node: MemoryNode

    def declare(self, queue: str, *, deliveries: int | None = None) -> None:
        self.node.broker.declare(queue).faults.delivery_limit = deliveries

    def url(self, proxy: object = None) -> str:
        return _URL

    def proxy(self) -> Any:
        return MemoryProxy(self.node.broker)

    def through(self, proxy: object) -> dict[str, Any]:
        return {}

    def make_session(self) -> type[Session]:
        return memory_session(self.node.broker)

    def engine(self, proxy: object = None, **options: object) -> Engine:
        run = super().engine(None, **options)
        run.make_reader = lambda given: MemoryReader(given, self.node.broker)
        return run

    @property
    def broker(self) -> Broker:
        return MEMORY

    @property
    def keeps_order(self) -> bool:
        return True

    @property
    def is_plugin(self) -> bool:
        return False

    @property
    def counts_bytes(self) -> bool:
        return False


class _Killable(Threads):
    """Threads that can be killed: each stops at its next wait."""

    def __init__(self) -> None:
        self.killed = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.killed.wait(seconds)
        self._live()

    def wait(self, event: threading.Event, seconds: float) -> None:
        super().wait(event, seconds)
        self._live()

    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Any:
        def live() -> Iterator[float]:
            for rest_s in life:
                if self.killed.is_set():
                    return
                yield rest_s

        return super().spawn(name, live(), interrupt)

    def _live(self) -> None:
        if self.killed.is_set():
            raise Crashed


class _Reader(MqStreamReader):
    """The reader, with another consumer and a runtime of its own."""

    def __init__(self, options: Options, make_session: type[Session], runtime: Threads) -> None:
        super().__init__(options, SCHEMA)
        self._make_consumer = make_session
        self._runtime = runtime

    def _begin(self) -> EpochSource:
        self._worker = Worker(lambda _: self._make_consumer, self._builder.block_schema, self._runtime)
        return EpochSource(self._options.settings, self._worker, runtime=self._runtime, files=self._codec.log)


class MemoryReader:
    """What :class:`tests.support.engine.ReaderProcess` is for real brokers."""

    def __init__(self, options: dict[str, str], broker: MemoryBroker) -> None:
        self._broker = broker
        self._runtime = _Killable()
        self._consumers: type[MemorySession] = type("ReaderSession", (MemorySession,), {"broker": broker})
        # The broker is not one that users can choose; all else is parsed as theirs is.
        given = {**options, "broker": "rabbitmq", "protocol": "amqp-0-9-1"}
        parsed = parse_options(given)
        endpoint = replace(parsed.settings.endpoint, broker=MEMORY, protocol=PROTOCOL)
        chosen = replace(parsed, settings=replace(parsed.settings, endpoint=endpoint))
        self._reader = _Reader(chosen, self._consumers, self._runtime)
        self._answer: list[Any] = []
        self._thread: threading.Thread | None = None

    def call(self, name: str, *arguments: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        self.begin(name, *arguments)
        return self.answer(timeout_s)

    def begin(self, name: str, *arguments: Any) -> None:
        self._answer = []

        def run() -> None:
            with suppress(Crashed):
                try:
                    self._answer.append(("value", self._call(name, arguments)))
                except Crashed:
                    raise
                except Exception as error:  # noqa: BLE001 - every error is an answer
                    self._answer.append(("error", error))

        self._thread = threading.Thread(target=run, name=f"memory reader: {name}", daemon=True)
        self._thread.start()

    def answer(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        assert self._thread is not None
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"no answer within {timeout_s:g} s")
        if not self._answer:
            raise Crashed
        kind, value = self._answer[0]
        if kind == "error":
            raise ReaderError(type(value).__name__, str(value))
        return value

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        given = [json.loads(argument) if isinstance(argument, str) else argument for argument in arguments]
        if name == "rows":
            rows: list[dict[str, Any]] = []
            for partition in self._reader.partitions(given[0], given[1]):
                for batch in self._reader.read(pickle.loads(pickle.dumps(partition))):
                    rows += batch.to_pylist()
            return rows
        value = getattr(self._reader, name)(*given)
        return json.dumps(value) if isinstance(value, dict) else value

    def kill(self) -> None:
        """The broker sees its connections end."""
        self._runtime.killed.set()
        with self._broker.lock:
            for queue in self._broker.queues.values():
                for session in list(queue.sessions):
                    if isinstance(session.consumer, self._consumers):
                        queue.end(session, "killed")
        if self._thread is not None:
            self._thread.join(10)
