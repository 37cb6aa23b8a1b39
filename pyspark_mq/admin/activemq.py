"""Queries to ActiveMQ Classic: Jolokia, its HTTP interface, reads its MBeans (`org.apache.activemq.broker.jmx`)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_mq.admin.http import Management
from pyspark_mq.admin.mbeans import broker_mbean, waiting
from pyspark_mq.brokers.facts import QueueFacts, of_activemq

__all__ = ["ask_depth", "ask_queue", "ask_server"]

_BROKER = "org.apache.activemq:type=Broker,brokerName=*"
#: Characters of a queue's name, as `JMXSupport.encodeObjectNamePart` encodes them in the name of its MBean.
_ENCODED = str.maketrans({**dict.fromkeys(":,'\"", "_"), "?": "&qe;", "=": "&amp;", "*": "&ast;"})
_ATTRIBUTES = (
    "Name", "QueueSize", "ConsumerCount", "PrioritizedMessages", "MaxPageSize", "SlowConsumerStrategy", "Paused",
)  # fmt: skip


def ask_server(management: Management) -> str:
    return f"ActiveMQ/{broker_mbean(management, _BROKER, 'BrokerVersion')[1].get('BrokerVersion', '')}"


def ask_queue(management: Management, queue: str) -> QueueFacts:
    broker = broker_mbean(management, _BROKER, "TransportConnectors")[1]
    queues = management.read(_mbean_of(queue), *_ATTRIBUTES)
    connectors = broker.get("TransportConnectors")
    url = management.endpoint.urls[0]
    return of_activemq(
        next(iter(queues.values()), {}),
        map(str, connectors.values()) if isinstance(connectors, Mapping) else (),
        url.scheme,
        url.port,
    )


def _mbean_of(queue: str) -> str:
    return f"{_BROKER},destinationType=Queue,destinationName={queue.translate(_ENCODED)}"


def ask_depth(management: Management, queue: str) -> int | None:
    return waiting(management.read(_mbean_of(queue), "QueueSize", "InFlightCount"), "QueueSize", "InFlightCount")
