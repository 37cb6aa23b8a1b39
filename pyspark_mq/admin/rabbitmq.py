"""Queries to RabbitMQ's HTTP API ("HTTP API Reference": queues, exchanges, bindings)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark_mq.admin.http import Management
from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts, merged_policy, of_rabbitmq, policy_of, version_of

__all__ = ["ask_depth", "ask_queue", "ask_server"]

_MS = 1000


def ask_server(management: Management) -> str:
    overview = management.get("overview")
    if overview is None or "rabbitmq_version" not in overview:
        raise management.refused("there is no RabbitMQ API here")
    return f"RabbitMQ/{overview['rabbitmq_version']}"


def ask_queue(management: Management, queue: str) -> QueueFacts:
    server = ask_server(management)
    host = management.endpoint.urls[0].virtual_host
    queue_object = management.get("queues", host, queue)
    if queue_object is None:
        return NOTHING_KNOWN
    policy = _policy(management, host, queue, str(queue_object.get("type")))
    facts = of_rabbitmq(queue_object, version_of(server), policy)
    arguments = _object(queue_object.get("arguments"))
    exchange = arguments.get("x-dead-letter-exchange", policy.get("dead-letter-exchange"))
    key = arguments.get("x-dead-letter-routing-key", policy.get("dead-letter-routing-key"))
    details = queue_object.get("consumer_details")
    consumers = [one for one in details if isinstance(one, Mapping)] if isinstance(details, list) else []
    # From 4.3 on RabbitMQ reports for each consumer the timeout that applies to it, whether a policy, an argument or
    # the configuration sets the timeout.
    timeouts_ms = [int(one["consumer_timeout"]) for one in consumers if isinstance(one.get("consumer_timeout"), int)]
    if facts.consumer_timeout_s is None and timeouts_ms:
        facts = replace(facts, consumer_timeout_s=min(timeouts_ms) / _MS)
    return replace(
        facts,
        other_consumers=len(consumers),
        consumer_names=tuple(map(_consumer, consumers)),
        dead_letters_arrive=_arrives(management, host, exchange, key) if facts.dead_letters_to else None,
    )


def ask_depth(management: Management, queue: str) -> int | None:
    queue_object = management.get("queues", management.endpoint.urls[0].virtual_host, queue) or {}
    ready = queue_object.get("messages_ready")
    return ready if isinstance(ready, int) else None


def _policy(management: Management, host: str, queue: str, kind: str) -> dict[str, Any]:
    """Return the settings that policies and operator policies give to a queue.

    The settings are computed from the list of all policies. RabbitMQ also reports a queue's policy with the queue's
    statistics, but this report may still lack a policy 20 s after it was set (4.3).
    """
    given = policy_of(management.get_all("policies", host), queue, kind)
    return merged_policy(given, policy_of(management.get_all("operator-policies", host), queue, kind))


def _arrives(management: Management, host: str, exchange: object, key: object) -> bool | None:
    """Whether messages that are dead-lettered to this exchange with this routing key reach a queue; None if unknown."""
    if not exchange:
        return None if not key else management.get("queues", host, str(key)) is not None
    return bool(management.get_all("exchanges", host, str(exchange), "bindings", "source"))


def _object(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, or else an empty object."""
    return value if isinstance(value, Mapping) else {}


def _consumer(details: Mapping[str, Any]) -> str:
    channel = _object(details.get("channel_details"))
    where = f"{channel.get('peer_host', '?')}:{channel.get('peer_port', '?')}"
    return f"{where}, user '{channel.get('user', '')}', prefetch {details.get('prefetch_count', '?')}"
