"""What a broker's management tells of one queue, as facts: over HTTP, or over a connection beside that to the queue.

The paths are those of RabbitMQ's HTTP API ("HTTP API Reference", queues, exchanges, bindings); the MBeans those of the
ActiveMQ brokers (`org.apache.activemq.broker.jmx`, `org.apache.activemq.artemis.api.core.management`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark_mq.brokers.base import AMQP_1_0
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.facts import (
    NOTHING_KNOWN,
    QueueFacts,
    merged_policy,
    of_activemq,
    of_artemis,
    of_artemis_settings,
    of_rabbitmq,
    policy_of,
    version_of,
)
from pyspark_mq.sources.management import Management

__all__ = ["ask_beside", "ask_depth", "ask_queue", "ask_server"]

_MS = 1000

_CLASSIC_BROKER = "org.apache.activemq:type=Broker,brokerName=*"
#: As `JMXSupport.encodeObjectNamePart` of the broker writes names.
_CLASSIC_ENCODED = str.maketrans({**dict.fromkeys(":,'\"", "_"), "?": "&qe;", "=": "&amp;", "*": "&ast;"})
_CLASSIC_QUEUE = (
    "Name", "QueueSize", "ConsumerCount", "PrioritizedMessages", "MaxPageSize", "SlowConsumerStrategy", "Paused",
)  # fmt: skip
_ARTEMIS_BROKER = "org.apache.activemq.artemis:broker=*"
_ARTEMIS_QUEUE = (
    "Name", "Address", "MessageCount", "ConsumerCount", "MaxConsumers", "Exclusive", "PurgeOnNoConsumers", "RingSize",
    "LastValue", "ConsumersBeforeDispatch", "AutoDelete", "Durable", "Paused", "DeadLetterAddress",
)  # fmt: skip


def ask_server(management: Management) -> str:
    """What the broker calls itself, `product/version`.

    Raises:
        BrokerUnavailableError: the management does not answer.
        RefusedError: it does, and does not tell.
    """
    return _INQUIRIES[management.endpoint.broker.name].server(management)


def ask_queue(management: Management, queue: str) -> QueueFacts:
    """What is told of a queue.

    Raises:
        BrokerUnavailableError: the management does not answer.
        RefusedError: it does, and does not tell.
    """
    return _INQUIRIES[management.endpoint.broker.name].queue(management, queue)


def ask_depth(management: Management, queue: str) -> int | None:
    """Messages that wait in a queue and are not handed out; None if that is not told.

    Raises:
        BrokerUnavailableError: the management does not answer.
        RefusedError: it does, and does not tell.
    """
    return _INQUIRIES[management.endpoint.broker.name].depth(management, queue)


def ask_beside(endpoint: Endpoint) -> QueueFacts:
    """What the broker tells of a queue over a second connection, where sessions with the queue do not ask."""
    dialect = endpoint.broker.amqp10
    if endpoint.protocol != AMQP_1_0 or dialect is None or not dialect.management or endpoint.queue is None:
        return NOTHING_KNOWN
    from pyspark_mq.sources.amqp10.questions import ask_queue as ask  # noqa: PLC0415 - an extra

    return ask(endpoint, endpoint.urls[0])


def _rabbitmq_server(management: Management) -> str:
    overview = management.get("overview")
    if overview is None or "rabbitmq_version" not in overview:
        raise management.refused("there is no API of a broker")
    return f"RabbitMQ/{overview['rabbitmq_version']}"


def _of_rabbitmq(management: Management, queue: str) -> QueueFacts:
    server = _rabbitmq_server(management)
    host = management.endpoint.urls[0].virtual_host
    told = management.get("queues", host, queue)
    if told is None:
        return NOTHING_KNOWN
    policy = _rabbitmq_policy(management, host, queue, str(told.get("type")))
    facts = of_rabbitmq(told, version_of(server), policy)
    arguments = told.get("arguments")
    arguments = arguments if isinstance(arguments, Mapping) else {}
    exchange = arguments.get("x-dead-letter-exchange", policy.get("dead-letter-exchange"))
    key = arguments.get("x-dead-letter-routing-key", policy.get("dead-letter-routing-key"))
    details = told.get("consumer_details")
    consumers = [one for one in details if isinstance(one, Mapping)] if isinstance(details, list) else []
    # From 4.3 on each has the one that holds for it, whoever has set it.
    timeouts_ms = [int(one["consumer_timeout"]) for one in consumers if isinstance(one.get("consumer_timeout"), int)]
    if facts.consumer_timeout_s is None and timeouts_ms:
        facts = replace(facts, consumer_timeout_s=min(timeouts_ms) / _MS)
    return replace(
        facts,
        other_consumers=len(consumers),
        consumer_names=tuple(map(_consumer, consumers)),
        dead_letters_arrive=_arrives(management, host, exchange, key) if facts.dead_letters_to else None,
    )


def _rabbitmq_depth(management: Management, queue: str) -> int | None:
    told = management.get("queues", management.endpoint.urls[0].virtual_host, queue) or {}
    ready = told.get("messages_ready")
    return ready if isinstance(ready, int) else None


def _rabbitmq_policy(management: Management, host: str, queue: str, kind: str) -> dict[str, Any]:
    """What policies say for a queue, taken from their list.

    The queue itself tells it too, but with its statistics: a policy was not there 20 s after it was set (4.3).
    """
    given = policy_of(management.get_all("policies", host), queue, kind)
    return merged_policy(given, policy_of(management.get_all("operator-policies", host), queue, kind))


def _arrives(management: Management, host: str, exchange: object, key: object) -> bool | None:
    """Does a queue get what is sent there?"""
    if not exchange:
        return None if not key else management.get("queues", host, str(key)) is not None
    return bool(management.get_all("exchanges", host, str(exchange), "bindings", "source"))


def _consumer(details: Mapping[str, Any]) -> str:
    channel = details.get("channel_details")
    channel = channel if isinstance(channel, Mapping) else {}
    where = f"{channel.get('peer_host', '?')}:{channel.get('peer_port', '?')}"
    return f"{where}, user '{channel.get('user', '')}', prefetch {details.get('prefetch_count', '?')}"


def _broker(management: Management, pattern: str, *attributes: str) -> tuple[str, dict[str, Any]]:
    """Name and attributes of the MBean of the broker itself."""
    brokers = management.read(pattern, *attributes)
    if not brokers:
        raise management.refused("there is no MBean of a broker")
    return next(iter(brokers.items()))


def _activemq_server(management: Management) -> str:
    return f"ActiveMQ/{_broker(management, _CLASSIC_BROKER, 'BrokerVersion')[1].get('BrokerVersion', '')}"


def _of_activemq(management: Management, queue: str) -> QueueFacts:
    broker = _broker(management, _CLASSIC_BROKER, "TransportConnectors")[1]
    queues = management.read(_classic_queue(queue), *_CLASSIC_QUEUE)
    connectors = broker.get("TransportConnectors")
    url = management.endpoint.urls[0]
    return of_activemq(
        next(iter(queues.values()), {}),
        map(str, connectors.values()) if isinstance(connectors, Mapping) else (),
        url.scheme,
        url.port,
    )


def _classic_queue(queue: str) -> str:
    return f"{_CLASSIC_BROKER},destinationType=Queue,destinationName={queue.translate(_CLASSIC_ENCODED)}"


def _activemq_depth(management: Management, queue: str) -> int | None:
    return _waiting(management.read(_classic_queue(queue), "QueueSize", "InFlightCount"), "QueueSize", "InFlightCount")


def _waiting(queues: Mapping[str, Mapping[str, Any]], everything: str, handed_out: str) -> int | None:
    counts = [(one.get(everything), one.get(handed_out)) for one in queues.values()]
    known = [(all_, out) for all_, out in counts if isinstance(all_, int) and isinstance(out, int)]
    # The two are counted one after the other.
    return sum(max(0, all_ - out) for all_, out in known) if known else None


def _artemis_server(management: Management) -> str:
    return f"ActiveMQ-Artemis/{_broker(management, _ARTEMIS_BROKER, 'Version')[1].get('Version', '')}"


def _of_artemis(management: Management, queue: str) -> QueueFacts:
    mbean, _ = _broker(management, _ARTEMIS_BROKER, "Version")
    queues = management.read(_artemis_queue(mbean, queue), *_ARTEMIS_QUEUE)
    found = next(iter(queues.values()), {})
    address = str(found.get("Address") or queue.partition("::")[0])
    answer = management.call(mbean, "getAddressSettingsAsJSON(java.lang.String)", address)
    settings = _settings(answer)
    facts = of_artemis(found).or_else(of_artemis_settings(settings))
    target = str(found.get("DeadLetterAddress") or settings.get("deadLetterAddress") or "")
    if target:
        addresses = management.read(f"{mbean},component=addresses,address={_quoted(target)},*", "QueueNames")
        facts = replace(facts, dead_letters_arrive=any(one.get("QueueNames") for one in addresses.values()))
    return facts


def _artemis_queue(mbean: str, queue: str) -> str:
    return f"{mbean},component=addresses,subcomponent=queues,queue={_quoted(queue.rpartition('::')[2])},*"


def _artemis_depth(management: Management, queue: str) -> int | None:
    mbean, _ = _broker(management, _ARTEMIS_BROKER, "Version")
    found = management.read(_artemis_queue(mbean, queue), "MessageCount", "DeliveringCount")
    return _waiting(found, "MessageCount", "DeliveringCount")


def _settings(answer: object) -> dict[str, Any]:
    """Of an address; empty if the answer is something else."""
    try:
        settings = json.loads(answer) if isinstance(answer, str) else {}
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _quoted(text: str) -> str:
    """As `javax.management.ObjectName.quote`."""
    for special in '\\"?*':
        text = text.replace(special, f"\\{special}")
    return f'"{text}"'


class _Inquiry(NamedTuple):
    """How one broker is asked for its version and for a queue."""

    server: Callable[[Management], str]
    queue: Callable[[Management, str], QueueFacts]
    depth: Callable[[Management, str], int | None]


_INQUIRIES: Mapping[str, _Inquiry] = MappingProxyType(
    {
        "rabbitmq": _Inquiry(_rabbitmq_server, _of_rabbitmq, _rabbitmq_depth),
        "activemq": _Inquiry(_activemq_server, _of_activemq, _activemq_depth),
        "artemis": _Inquiry(_artemis_server, _of_artemis, _artemis_depth),
    }
)
