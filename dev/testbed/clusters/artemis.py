"""An Artemis primary and its backup: replication, failover, failback.

Which of the two is active is decided by a lock (`manager` of the policy; here in a folder that both see), not by
votes: with only two brokers there is no majority to ask, and a backup that does not reach its primary would take over
while that still serves clients. So a primary that is frozen keeps the lock, and the backup waits for it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from pyspark_mq.brokers.base import AMQP_1_0, STOMP
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.java import PASSWORD, USER, logs_in
from testbed.brokers.jmx import JolokiaError
from testbed.brokers.node import FROZEN_S
from testbed.clusters.cluster import Cluster, Fault, stop_in_order
from testbed.ports import LOOPBACK, listens
from testbed.process import NodeError

__all__ = ["ArtemisPair"]

_AWAY_S = 5.0
_TAKE_OVER_TIMEOUT_S = 90.0
_MANAGER = "org.apache.activemq.artemis.lockmanager.file.FileBasedLockManager"

_POLICY = """
    <connectors>
      <connector name="here">{here}</connector>
      <connector name="there">{there}</connector>
    </connectors>
    <cluster-user>{user}</cluster-user>
    <cluster-password>{password}</cluster-password>
    <cluster-connections>
      <cluster-connection name="pair">
        <connector-ref>here</connector-ref>
        <static-connectors><connector-ref>there</connector-ref></static-connectors>
      </cluster-connection>
    </cluster-connections>
    <ha-policy><replication><{role}>
      <manager>
        <class-name>{manager}</class-name>
        <properties><property key="locks-folder" value="{locks}"/></properties>
      </manager>
      <group-name>pair</group-name>
      {allow_failback}
    </{role}></replication></ha-policy>
"""


class _Half(ArtemisNode):
    """One of the two."""

    def __init__(self, role: str, locks: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self.role = role
        self._locks = locks
        self._other: _Half | None = None

    def pair_with(self, other: _Half) -> None:
        """To know each other when they start."""
        self._other = other

    @property
    def active(self) -> bool:
        """Does it serve clients?"""
        return self.running and logs_in(self._stomp_port)

    @property
    def replicated(self) -> bool:
        """Is it active, and has its backup all that it has?"""
        with suppress(JolokiaError, NodeError):
            mbean = f'org.apache.activemq.artemis:broker="{LOOPBACK}"'
            told = self.jolokia.read(mbean, "Active", "ReplicaSync")
            return bool(told["Active"] and told["ReplicaSync"])
        return False

    def _ready(self) -> bool:
        # Only one of two serves clients. What a start is waited for is the agent, which is there from the beginning.
        return listens(self._agent_port)

    def _configuration(self) -> str:
        assert self._other is not None
        policy = _POLICY.format(
            here=self.jms_url(),
            there=self._other.jms_url(),
            user=USER,
            password=PASSWORD,
            role=self.role,
            manager=_MANAGER,
            locks=escape(str(self._locks)),
            allow_failback="<allow-failback>true</allow-failback>" if self.role == "backup" else "",
        )
        return super()._configuration().replace("<acceptors>", f"{policy}<acceptors>")


class ArtemisPair(Cluster):
    """A primary and a backup.

    Args:
        version: as of :class:`~testbed.brokers.artemis.ArtemisNode`.
        amqp_idle_timeout_ms: silence after which a connection of AMQP 1.0 is given up.
    """

    broker = "artemis"
    title = "Artemis, primary and backup"
    protocols = (STOMP, AMQP_1_0)

    def __init__(self, version: str = "2", amqp_idle_timeout_ms: int = 4_000) -> None:
        """Nothing is started yet.

        Raises:
            NodeError: no such version, Java is missing, or the distribution cannot be had.
        """
        self._locks = Path(tempfile.mkdtemp(prefix="pyspark-mq-artemis-locks-"))
        settings: dict[str, Any] = {
            "version": version,
            "amqp_idle_timeout_ms": amqp_idle_timeout_ms,
            "max_delivery_attempts": -1,
        }
        with ExitStack() as made:
            made.callback(shutil.rmtree, self._locks, ignore_errors=True)
            self.primary = _Half("primary", self._locks, **settings)
            made.callback(self.primary.close)
            self.backup = _Half("backup", self._locks, **settings)
            made.pop_all()
        self.primary.pair_with(self.backup)
        self.backup.pair_with(self.primary)
        super().__init__((self.primary, self.backup))

    def start(self) -> None:
        self.primary.start()
        self._wait(lambda: self.primary.active, "the primary does not serve clients")
        self.backup.start()
        self.wait_replicated()

    def declare(self, queue: str) -> None:
        self.active.declare(queue)

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._locks, ignore_errors=True)
            stack.callback(super().close)

    @property
    def active(self) -> _Half:
        """The one that serves clients.

        Raises:
            NodeError: none does.
        """
        found: list[_Half] = []

        def find() -> bool:
            found.extend(half for half in (self.primary, self.backup) if half.active)
            return bool(found)

        self._wait(find, "neither serves clients")
        return found[0]

    def wait_replicated(self) -> None:
        """Until the primary is active and the backup has all that it has.

        Raises:
            NodeError: it has not.
        """
        self._wait(lambda: self.primary.replicated and self.primary.active, "the backup is not in step")

    def fail_over(self) -> None:
        """Kill the primary, and wait until the backup serves clients.

        Raises:
            NodeError: it does not.
        """
        self.primary.kill()
        self._wait(lambda: self.backup.active, "the backup does not take over")

    def fail_back(self) -> None:
        """Start the primary again; it takes over when it has what the backup has.

        Raises:
            NodeError: it does not.
        """
        self.primary.start()
        self.wait_replicated()

    def _wait(self, condition: Fault, problem: str) -> None:
        self.wait_until(condition, _TAKE_OVER_TIMEOUT_S, problem)

    def faults(self, queue: str) -> dict[str, Fault]:  # noqa: ARG002 - all queues are on the same broker
        def primary_killed() -> bool:
            self.fail_over()
            time.sleep(_AWAY_S)
            self.fail_back()
            return True

        def backup_killed() -> bool:
            self.backup.kill()
            time.sleep(_AWAY_S)
            self.backup.start()
            self.wait_replicated()
            return True

        def frozen() -> bool:
            self.primary.freeze(FROZEN_S)
            self.wait_replicated()
            return True

        def stopped() -> bool:
            stop_in_order(self.primary)
            self._wait(lambda: self.backup.active, "the backup does not take over")
            self.fail_back()
            return True

        return {
            "kill -9 of the primary, failover, failback": primary_killed,
            "SIGSTOP of the primary, SIGCONT": frozen,
            "kill -9 of the primary, failover, failback ": primary_killed,
            "kill -9 of the backup, start": backup_killed,
            "orderly stop of the primary, failover, failback": stopped,
        }
