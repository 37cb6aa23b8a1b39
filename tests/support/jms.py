"""Messages from a real JMS client: a small Java program, built by Maven when it is first used."""

from __future__ import annotations

import json
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark_mq.brokers.base import AMQP_1_0
from testbed.brokers.java import JavaNode
from testbed.brokers.node import Node
from testbed.process import NodeError
from tests.support.maven import class_path

__all__ = ["CORRELATION_ID", "GROUP_ID", "KINDS", "PRIORITY", "PROPERTIES", "REPLY_TO", "TYPE", "Peer", "send"]

_PROJECT = Path(__file__).resolve().parent.parent / "jms"
_SEND_TIMEOUT_S = 60
_PEER_TIMEOUT_S = 120

#: What it sends, in order, and what each message has (`JmsSender.java`).
KINDS = ("text", "bytes", "map", "stream", "object")
CORRELATION_ID, REPLY_TO, TYPE, GROUP_ID, PRIORITY = "correlation-1", "answers", "kind-1", "group-1", 7
PROPERTIES = {
    "aBoolean": "true", "aByte": "-1", "aShort": "-2", "anInt": "-3", "aLong": "-4", "aFloat": "1.5",
    "aDouble": "2.25", "aString": "täxt",
}  # fmt: skip


def send(node: Node, queue: str, client: str, *properties: tuple[str, str]) -> list[dict[str, Any]]:
    """Send a message of each kind to a queue, or "text 0", "text 1"... with one property each.

    Args:
        queue: its address, where that is another.
        client: ``own`` for the broker's own, over its own protocol; ``qpid`` for Qpid JMS, over AMQP 1.0.

    Returns:
        `kind`, `id`, `timestamp` and `expiration` (milliseconds since 1970) of each.

    Raises:
        NodeError: a compiler is missing, it cannot be built, or it failed; the text has what it said.
    """
    done = _run([*_program(node, client, "JmsSender"), queue, *chain.from_iterable(properties)], _SEND_TIMEOUT_S)
    return [json.loads(line) for line in done.splitlines()]


class Peer:
    """A JMS client that asks, answers or reads, while a test does the other half.

    Args:
        what: `ask`, `serve` or `read`.
        queue: address of the queue.
        more: see `JmsPeer.java`.

    Raises:
        NodeError: as :func:`send`.
    """

    def __init__(self, what: str, node: Node, queue: str, client: str, *more: str) -> None:
        first, *rest = _program(node, client, "JmsPeer")
        place = rest.index("JmsPeer") + 1
        # A client may wait for ever for what its broker does not have.
        command = ["timeout", f"{_PEER_TIMEOUT_S}", first, *rest[:place], what, *rest[place:], queue, *more]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")

    def line(self) -> dict[str, Any]:
        """Return the next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NodeError(f"JmsPeer failed: {self._process.communicate()[1][-2000:]}")
        return dict(json.loads(line))

    def end(self) -> None:
        """Wait until it has closed its connection, and so has acknowledged what it read."""
        assert self._process.wait(_SEND_TIMEOUT_S) == 0

    def close(self) -> None:
        """End it."""
        self._process.terminate()  # `timeout` passes it on
        self._process.communicate()


def _program(node: Node, client: str, program: str) -> list[str]:
    """The command of one of the programs, up to user and password."""
    path = class_path(_PROJECT)
    amqp = urlsplit(node.url(AMQP_1_0))
    if client == "own" and isinstance(node, JavaNode):
        name, url = node.title.lower(), node.jms_url()
    elif client == "own":
        name, url = "rabbitmq", f"amqp://{amqp.hostname}:{amqp.port}"
    else:
        name, url = client, f"amqp://{amqp.hostname}:{amqp.port}"
    user = [amqp.username or "", amqp.password or ""]
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", path, program, name, url, *user]


def _run(command: list[str], timeout_s: float) -> str:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise NodeError(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout
