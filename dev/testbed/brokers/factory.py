"""A private broker by the name of the option `broker`."""

from __future__ import annotations

from typing import Any

from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.containers import make_container
from testbed.brokers.node import Node
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError

__all__ = ["make_node"]


def make_node(broker: str, version: str = "", *, container: bool = False, **settings: Any) -> Node:
    """A node with all the protocols its broker has, not started.

    Args:
        broker: `rabbitmq`, `activemq` or `artemis`.
        version: of the broker, or the beginning of it; by default the one of the machine, or the newest of a list.
        container: in a container, of the image for that version, instead of as a local process.
        settings: of the broker's node class.

    Raises:
        NodeError: what it needs is not installed, or there is no such broker or version.
    """
    if container:
        return make_container(broker, version, **settings)
    if broker == "rabbitmq":
        return RabbitNode(version=version, plugins=("rabbitmq_stomp", "rabbitmq_amqp1_0"), **settings)
    if version:
        settings["version"] = version
    if broker == "activemq":
        return ActiveMqNode(**settings)
    if broker == "artemis":
        return ArtemisNode(**settings)
    raise NodeError(f"there is no broker {broker!r}; known are rabbitmq, activemq, artemis")
