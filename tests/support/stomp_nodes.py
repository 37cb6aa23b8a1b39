"""The brokers that speak STOMP, and what the tests have to know of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_mq.brokers.base import STOMP
from pyspark_mq.wire.url import parse_urls
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.node import Node
from testbed.brokers.rabbitmq import RabbitNode
from tests.support.stomp import publish

__all__ = ["NODES", "Target"]

NODES: Mapping[str, Callable[..., Node]] = {
    "rabbitmq": lambda **more: RabbitNode(plugins=("rabbitmq_stomp",), **more),
    "activemq": ActiveMqNode,
    "artemis": ArtemisNode,
}


@dataclass(frozen=True)
class Target:
    """A running broker."""

    broker: str
    node: Any

    @property
    def url(self) -> str:
        return str(self.node.url(STOMP))

    @property
    def port(self) -> int:
        return parse_urls(self.url)[0].port

    def through(self, port: int) -> str:
        """The same broker by another port."""
        return self.url.replace(f":{self.port}", f":{port}")

    @property
    def vhost(self) -> str | None:
        return "/" if self.broker == "rabbitmq" else None

    @property
    def escapes(self) -> bool:
        return self.broker == "rabbitmq"

    @property
    def counts_bytes(self) -> bool:
        """Is the window in bytes, so that the number of messages in it is only approximate?"""
        return self.broker == "artemis"

    def send(self, queue: str, messages: list[tuple[bytes | str, dict[str, str]]]) -> None:
        """Send (body, headers) to a queue by STOMP."""
        kind = {"destination-type": "ANYCAST"} if self.broker == "artemis" else {}
        publish(self.url, self.queue(queue), messages, kind, self.vhost)

    def queue(self, name: str) -> str:
        """The destination header of SEND for a queue."""
        return {"rabbitmq": "/queue/", "activemq": "/queue/", "artemis": ""}[self.broker] + name
