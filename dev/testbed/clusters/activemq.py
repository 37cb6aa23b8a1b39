"""Two ActiveMQ Classic brokers on one store: whoever has the lock on its folder serves clients, the other waits.

The lock is KahaDB's own, on a file, and ends with the process that has it. A broker that is frozen keeps it, and
the other waits on.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from pyspark_mq.brokers.base import AMQP_1_0, STOMP
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.java import logs_in
from testbed.brokers.node import FROZEN_S
from testbed.clusters.cluster import Cluster, Fault, stop_in_order
from testbed.ports import listens

__all__ = ["ActiveMqPair"]

_TAKE_OVER_TIMEOUT_S = 60.0
_LOCKER = '<locker><shared-file-locker lockAcquireSleepInterval="500"/></locker>'


class _Half(ActiveMqNode):
    """One of the two."""

    def __init__(self, store: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self._store = store

    @property
    def active(self) -> bool:
        """Does it serve clients?"""
        return self.running and logs_in(self._stomp_port)

    def _ready(self) -> bool:
        # Only one of two serves clients. What a start is waited for is the agent, which is there from the beginning.
        return listens(self._agent_port)

    def keep(self, queue: str) -> None:
        """Have a queue there after the next start."""
        self._keep(self._kept() | {queue})

    def _configuration(self) -> str:
        own, shared = (f"<kahaDB directory={quoteattr(str(folder / 'kahadb'))}" for folder in (self.data, self._store))
        return super()._configuration().replace(f"{own}/>", f"{shared}>{_LOCKER}</kahaDB>")


class ActiveMqPair(Cluster):
    """A master and a slave.

    Args:
        version: as of :class:`~testbed.brokers.activemq.ActiveMqNode`.
        amqp_idle_timeout_ms: silence after which a connection of AMQP 1.0 is given up.
    """

    broker = "activemq"
    title = "ActiveMQ Classic, two on one store"
    protocols = (STOMP, AMQP_1_0)

    def __init__(self, version: str = "6", amqp_idle_timeout_ms: int = 4_000) -> None:
        """Nothing is started yet.

        Raises:
            NodeError: no such version, Java is missing, or the distribution cannot be had.
        """
        self._store = Path(tempfile.mkdtemp(prefix="pyspark-mq-activemq-store-"))
        settings: dict[str, Any] = {"version": version, "amqp_idle_timeout_ms": amqp_idle_timeout_ms}
        with ExitStack() as made:
            made.callback(shutil.rmtree, self._store, ignore_errors=True)
            first = _Half(self._store, **settings)
            made.callback(first.close)
            second = _Half(self._store, **settings)
            made.pop_all()
        self.halves = (first, second)
        super().__init__(self.halves)

    def start(self) -> None:
        first, second = self.halves
        first.start()
        self._wait(lambda: first.active, "the first does not serve clients")
        second.start()

    def declare(self, queue: str) -> None:
        for half in self.halves:
            half.keep(queue)
        self.master.declare(queue)

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._store, ignore_errors=True)
            stack.callback(super().close)

    @property
    def master(self) -> _Half:
        """The one that serves clients.

        Raises:
            NodeError: none does.
        """
        found: list[_Half] = []

        def find() -> bool:
            found.extend(half for half in self.halves if half.active)
            return bool(found)

        self._wait(find, "neither serves clients")
        return found[0]

    @property
    def slave(self) -> _Half:
        """The other one."""
        return self.halves[self.halves[0] is self.master]

    def fail_over(self, end: Callable[[_Half], None]) -> None:
        """Have the master end, wait until the other serves clients, and start it as the slave.

        Raises:
            NodeError: it does not.
        """
        master, slave = self.master, self.slave
        end(master)
        self._wait(lambda: slave.active, "the slave does not take over")
        master.start()

    def _wait(self, condition: Fault, problem: str) -> None:
        self.wait_until(condition, _TAKE_OVER_TIMEOUT_S, problem)

    def faults(self, queue: str) -> dict[str, Fault]:  # noqa: ARG002 - all queues are in one store
        def killed() -> bool:
            self.fail_over(_Half.kill)
            return True

        def stopped() -> bool:
            self.fail_over(stop_in_order)
            return True

        def frozen() -> bool:
            self.master.freeze(FROZEN_S)
            return True

        def slave_killed() -> bool:
            slave = self.slave
            slave.kill()
            slave.start()
            return True

        return {
            "kill -9 of the master, failover, start": killed,
            "SIGSTOP of the master, SIGCONT": frozen,
            "orderly stop of the master, failover, start": stopped,
            "kill -9 of the slave, start": slave_killed,
        }
