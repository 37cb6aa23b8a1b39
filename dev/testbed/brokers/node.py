"""What every private broker is: :class:`Node`, and as a local process :class:`ProcessNode`."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.server import Killable, LocalServer

__all__ = ["FROZEN_S", "Node", "ProcessNode", "QueueCounts", "TlsFiles", "unique_ids"]

#: For how long what is stopped is stopped: longer than heartbeats, and detectors of failures, last.
FROZEN_S = 15.0


def unique_ids() -> Iterator[str]:
    """Message IDs without end, unlike those of any other call."""
    prefix = secrets.token_hex(6)
    number = 0
    while True:
        yield f"{prefix}-{number}"
        number += 1


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a broker needs to listen for TLS: PEM files.

    Attributes:
        ca_file: the authority that client certificates are checked against.
        cert_file, key_file: the broker's own certificate and its unencrypted key.
        verify_client: must clients show a certificate of that authority?
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    verify_client: bool = False


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Messages of a queue: to be delivered, and delivered but not acknowledged."""

    ready: int
    unacked: int

    @property
    def total(self) -> int:
        """Messages the broker has. Brokers count the two one after the other: in motion, the sum may be off."""
        return self.ready + self.unacked


class Node(Killable):
    """One broker of our own, to be killed and started again.

    Ports and data stay the same over any number of kills and restarts, until it is closed. Not
    thread-safe: one thread starts and ends it; others may go on using what :meth:`url` returned.
    """

    #: Name of the broker in error messages.
    title: str = "broker"

    @property
    @abstractmethod
    def version(self) -> str:
        """Version of the broker, as its makers write it."""

    @abstractmethod
    def url(
        self,
        protocol: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
    ) -> str:
        """Where clients connect to, in the form of the source's option `url`.

        Args:
            protocol: as the option `protocol`; by default the broker's main one.
            user, password: by default those of the user every node has.

        Raises:
            NodeError: the node was not set up to speak that.
        """

    @abstractmethod
    def declare(self, queue: str) -> None:
        """Make a durable queue, on disk on return; nothing happens when there is one.

        Raises:
            NodeError: the broker refused.
        """

    @abstractmethod
    def delete(self, queue: str) -> None:
        """Delete a queue with its messages; nothing happens when there is none."""

    @abstractmethod
    def purge(self, queue: str) -> None:
        """Remove the messages of a queue that nobody holds.

        Raises:
            NodeError: no such queue.
        """

    @abstractmethod
    def counts(self, queue: str) -> QueueCounts:
        """Messages of a queue, both numbers of about one instant.

        Raises:
            NodeError: no such queue.
        """

    def depth(self, queue: str) -> int:
        """Messages that wait to be delivered, as :meth:`counts`."""
        return self.counts(queue).ready

    def unacked(self, queue: str) -> int:
        """Messages delivered but not acknowledged, as :meth:`counts`."""
        return self.counts(queue).unacked

    @abstractmethod
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
        """Publish persistent messages; returns when the broker has confirmed all of them.

        Args:
            ids: message ID of each, None for a message without; by default ones that are unique
                over all calls. Where the broker gives all IDs itself they are not used.
            headers: application headers (properties) of each.
            protocol: to publish over, one of :meth:`url`; by default the broker's main one.
            expires_ms: time to live of each.
            timeout_s: for all of it.

        Returns:
            the IDs, in order.

        Raises:
            PublishError: not all were confirmed; it has how many were.
        """


class ProcessNode(LocalServer, Node):
    """A node that is a local process with data and ports of its own."""

    _log_name = "node.log"

    def __init__(
        self, *, data: Path | None = None, start_timeout_s: float = 60.0, stop_timeout_s: float = 30.0
    ) -> None:
        """Nothing is started yet.

        Args:
            data: folder for everything the broker writes, with what an earlier node may have
                left in it; by default a new temporary one, deleted by :meth:`close`.
        """
        super().__init__(folder=data, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)

    @property
    def data(self) -> Path:
        """Folder for everything the broker writes."""
        return self.folder
