"""Receiver processes played on the world's thread, with the real workers on both sides.

What is played is what the operating system does: a process is started, stopped, killed, and what it says arrives.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark_mq.sources.connections.processes.wire import Hello
from pyspark_mq.sources.connections.processes.worker import ChildProcess
from pyspark_mq.sources.connections.requests import Begin
from pyspark_mq.sources.connections.thread_worker import ThreadWorker
from tests.support.memory import MemoryBroker, MemorySession

if TYPE_CHECKING:
    from tests.support.simulation import World

__all__ = ["PlayedProcess", "PlayedProcesses"]


class PlayedProcess(ChildProcess):
    """One of them."""

    def __init__(self, world: World, broker: MemoryBroker, consumer: type[MemorySession], hello: Hello) -> None:
        self._world, self._broker = world, broker
        self._consumer = type("PlayedSession", (consumer,), {})
        self._said: deque[Any] = deque()
        self.process = world.process()
        self.gone = ""
        self._worker = ThreadWorker(
            lambda _: self._consumer, hello.schema, self._said.append, self.process, self.process.machine_s,
            count(hello.first_session),
        )  # fmt: skip

    def send(self, message: Any) -> None:
        # As over a socket: nothing is shared. The broker in memory is none of those that are known by name.
        heard = message if isinstance(message, Begin) else pickle.loads(pickle.dumps(message))
        if not self.gone:
            self._worker.send(heard)

    def receive(self, timeout_s: float) -> Any:
        if self._said:
            return self._said.popleft()
        if self.gone:
            raise EOFError
        return None

    def hang_up(self) -> None:
        self.kill("it hung up")

    def kill(self, why: str = "killed") -> None:
        """``SIGKILL``: what it has said arrives yet."""
        if self.gone:
            return
        self.gone = why
        self._world.kill(self.process)
        for queue in self._broker.queues.values():
            for session in list(queue.sessions):
                if isinstance(session.consumer, self._consumer):
                    queue.end(session, why)

    def end(self) -> str:
        self.kill()
        self._said.clear()
        return self.gone


class PlayedProcesses:
    """Those of one query, to be started by its workers.

    Attributes:
        alive: the last of each.
    """

    def __init__(self, world: World, broker: MemoryBroker, consumer: type[MemorySession]) -> None:
        self._start: Callable[[Hello], PlayedProcess] = lambda hello: PlayedProcess(world, broker, consumer, hello)
        self.all: list[PlayedProcess] = []

    def start(self, hello: Hello) -> PlayedProcess:
        self.all.append(self._start(hello))
        return self.all[-1]

    @property
    def alive(self) -> list[PlayedProcess]:
        return [one for one in self.all if not one.gone]

    def stop(self, seconds: float) -> None:
        """``SIGSTOP``, and ``SIGCONT`` after so long."""
        for one in self.alive:
            one.process.stop(seconds)

    def kill(self) -> None:
        """``SIGKILL``."""
        for one in self.alive:
            one.kill()
