"""What a chaos test and the tests do to any cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from testbed.brokers.node import Node, QueueCounts
from testbed.process import NodeError, PublishError, poll
from testbed.server import Started

__all__ = ["Cluster", "Fault", "stop_in_order"]

#: Does something to a cluster, and leaves it whole; returns whether it could be done.
Fault = Callable[[], bool]

#: A node that is frozen takes a connection and says nothing.
_PUBLISH_TIMEOUT_S = 10.0
_POLL_S = 0.1
_TAIL_LINES = 30


def stop_in_order(node: Node) -> None:
    """Stop a node; one that hangs in that is killed after a while, as whoever operates it would."""
    with suppress(NodeError):
        node.stop()


class Cluster(Started):
    """Private brokers that are one to their clients, on ports and with data that stay over kills and starts.

    As a :class:`~testbed.brokers.node.Node`, it belongs to one thread; :meth:`publish` may be called from another.

    Attributes:
        broker: value of the option.
        title: what kind of cluster of which broker.
        protocols: that it can be read over, the main one first.
        nodes: the brokers.
    """

    broker: str
    title: str
    protocols: tuple[str, ...]

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Nothing is started yet."""
        self.nodes = tuple(nodes)
        self._publishes_to = 0

    @property
    def version(self) -> str:
        """Version of the brokers."""
        return self.nodes[0].version

    def url(self, protocol: str) -> str:
        """All of them as candidates of the option `url`."""
        return ",".join(node.url(protocol) for node in self.nodes)

    @abstractmethod
    def start(self) -> None:
        """Start all of them; returns when they are one.

        Raises:
            NodeError: they did not come together.
        """

    @abstractmethod
    def declare(self, queue: str) -> None:
        """Make a queue that outlives any one of them.

        Raises:
            NodeError: it was refused.
        """

    @abstractmethod
    def faults(self, queue: str) -> dict[str, Fault]:
        """What a chaos test does to it, by name; in this order."""

    def unstrand(self, queue: str) -> bool:  # noqa: ARG002 - most brokers need no help
        """Do what an operator has to before a queue hands everything out again; False if there is nothing to do."""
        return False

    def counts(self, queue: str) -> QueueCounts:
        """Messages of a queue, from the first that can tell.

        Raises:
            NodeError: none can.
        """
        problem = NodeError(f"no node of {self.broker} is running")
        for node in self.nodes:
            if node.running:
                try:
                    return node.counts(queue)
                except NodeError as failed:
                    problem = failed
        raise problem

    def publish(
        self,
        queue: str,
        bodies: Sequence[bytes],
        ids: Sequence[str] | None = None,
        protocol: str | None = None,
        timeout_s: float = _PUBLISH_TIMEOUT_S,
    ) -> None:
        """Publish, confirmed, to the node that took the last ones, or else to the next.

        Args:
            timeout_s: for each node.

        Raises:
            PublishError: no node has confirmed all of them.
        """
        problem = PublishError(queue, 0, "no node was tried")
        for _ in self.nodes:
            node = self.nodes[self._publishes_to]
            try:
                node.publish(queue, bodies, ids=ids, protocol=protocol, timeout_s=timeout_s)
            except PublishError as failed:
                problem = failed
                self._publishes_to = (self._publishes_to + 1) % len(self.nodes)
            else:
                return
        raise problem

    def close(self) -> None:
        """End everything for good."""
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.close)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, problem: str) -> None:
        """Until a condition holds.

        Raises:
            NodeError: it does not in that time; with the problem in words and the ends of all logs.
        """
        if not poll(condition, timeout_s, interval_s=_POLL_S):
            tails = "\n".join(node.log_tail(_TAIL_LINES) for node in self.nodes)
            raise NodeError(f"{self.title}: {problem}; the ends of their logs:\n{tails}")
