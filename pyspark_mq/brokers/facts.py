"""Facts about a queue, extracted from the answers of brokers. The functions do no I/O, and do not read a clock.

A fact that the broker does not report over this connection or to this user is None. If the broker lacks the feature
that a fact is about, the fact is not None, but a value such as 0 seconds or infinity. Answers are decoded JSON, or the
same values decoded from AMQP 1.0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = [
    "NOTHING_KNOWN", "QueueFacts", "artemis_answer", "merged_policy", "of_activemq", "of_artemis",
    "of_artemis_settings", "of_rabbitmq", "policy_of", "version_of",
]  # fmt: skip

_MS = 1000
#: Default delivery limit of quorum queues, from RabbitMQ 4.0 on.
_DELIVERY_LIMIT = 20
_DELIVERY_LIMIT_SINCE = (4, 0)
#: From this version on only quorum queues have a consumer timeout.
_TIMEOUT_OF_QUORUM_ONLY_SINCE = (4, 3)
#: Values of `delayed-retry-type` that delay messages returned by the end of a session, which counts as a failure.
_DELAYED = frozenset({"all", "failed"})
#: Artemis' defaults for an address: delivery attempts, and the factor between the delay and the longest delay (its
#: manual, "Address Settings").
_DELIVERY_ATTEMPTS = 10
_DELAY_FACTOR = 10
_PAUSED = "it is paused, and delivers nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """Facts about a queue. A fact is None if it is unknown.

    Attributes:
        kind: RabbitMQ's queue type: classic, quorum, stream.
        ready: number of messages that wait in the queue.
        other_consumers: number of consumers of the queue, not counting the session that queries it.
        consumer_names: descriptions of the consumers that `other_consumers` counts.
        delivery_limit: number of deliveries after which a message is dropped or dead-lettered; infinite for no limit.
        dead_letters_to: describes where dead letters go; empty if they are dropped.
        dead_letters_arrive: whether the destination of dead letters exists and has a queue, which keeps them.
        redelivery_delay_s: longest time in seconds by which the queue delays a redelivery.
        consumer_timeout_s: how many seconds a delivered message may stay unacknowledged; infinite for no limit.
        priorities: whether the queue delivers messages by priority.
        single_active: whether the queue delivers all messages to one of its consumers, while the others wait.
        consumers_max: maximum number of consumers that the queue may have; infinite for no limit.
        page_size: number of unacknowledged messages after which a queue of ActiveMQ Classic stops delivering, until a
            client wakes it.
        write_timeout_s: how many seconds the broker's connector may wait for a client that does not read; infinite for
            no limit.
        slow_consumers: describes what the broker does to consumers that acknowledge slowly; empty for nothing.
        hazards: descriptions of settings by which the queue drops messages, or delays them.
        faults: descriptions of settings with which a query cannot read the queue.
    """

    kind: str | None = None
    ready: int | None = None
    other_consumers: int | None = None
    consumer_names: tuple[str, ...] | None = None
    delivery_limit: float | None = None
    dead_letters_to: str | None = None
    dead_letters_arrive: bool | None = None
    redelivery_delay_s: float | None = None
    consumer_timeout_s: float | None = None
    priorities: bool | None = None
    single_active: bool | None = None
    consumers_max: float | None = None
    page_size: int | None = None
    write_timeout_s: float | None = None
    slow_consumers: str | None = None
    hazards: tuple[str, ...] | None = None
    faults: tuple[str, ...] | None = None

    def or_else(self, other: QueueFacts) -> QueueFacts:
        """Return a copy of these facts, in which unknown facts are replaced by the facts in `other`."""
        unknown = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, **{name: getattr(other, name) for name in unknown})


NOTHING_KNOWN = QueueFacts()


def version_of(server: str) -> tuple[int, int]:
    """Return the major and minor version in `product/version`, or zeros if the version cannot be parsed."""
    numbers = [int(part) for part in server.rpartition("/")[2].split(".")[:2] if part.isdecimal()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


# -- RabbitMQ ----------------------------------------------------------------------------------


def of_rabbitmq(
    reported: Mapping[str, Any], version: tuple[int, int], policy: Mapping[str, Any] | None = None
) -> QueueFacts:
    """Return the facts about a queue that follow from its properties, its arguments and its policies.

    If an argument and a policy both set a number, the lower number applies (RabbitMQ's documentation, "Policies"). If
    both set a name, the name in the argument applies.

    Args:
        reported: the queue as RabbitMQ reports it, over HTTP or over AMQP 1.0; both use the same names.
        version: the broker's major and minor version.
        policy: the settings that the policy and the operator policy give to the queue; None if unknown. In that case
            facts that a policy could set are unknown, unless an argument sets them.
    """
    given = reported.get("arguments")
    arguments: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    setting = _Setting(arguments, policy)
    kind = str(reported["type"]) if reported.get("type") else None
    quorum = kind == "quorum"
    return QueueFacts(
        kind=kind,
        delivery_limit=_rabbitmq_limit(setting, version) if quorum else None if kind is None else math.inf,
        dead_letters_to=_rabbitmq_target(setting),
        redelivery_delay_s=_delay_s(setting) if quorum else None if kind is None else 0.0,
        consumer_timeout_s=_rabbitmq_timeout_s(setting, kind, version),
        priorities=None if kind is None else not quorum and bool(_number(arguments.get("x-max-priority"))),
        single_active=bool(arguments.get("x-single-active-consumer", False)),
        hazards=_rabbitmq_hazards(reported, setting) if policy is not None else None,
        faults=_rabbitmq_faults(reported, kind),
    )


class _Setting:
    """Looks up settings of a queue in RabbitMQ, which its arguments or its policies can set."""

    def __init__(self, arguments: Mapping[str, Any], policy: Mapping[str, Any] | None) -> None:
        self._arguments = arguments
        self._policy = policy or {}
        self.all_known = policy is not None

    def number(self, name: str) -> int | None:
        return _lower(self._arguments.get(f"x-{name}"), self._policy.get(name))

    def text(self, name: str) -> str | None:
        value = self._arguments.get(f"x-{name}", self._policy.get(name))
        return None if value is None else str(value)


def _rabbitmq_limit(setting: _Setting, version: tuple[int, int]) -> float | None:
    limit = setting.number("delivery-limit")
    if limit is not None:
        return limit if limit >= 0 else math.inf
    if not setting.all_known or version == (0, 0):
        return None
    return _DELIVERY_LIMIT if version >= _DELIVERY_LIMIT_SINCE else math.inf


def _rabbitmq_target(setting: _Setting) -> str | None:
    exchange, key = setting.text("dead-letter-exchange"), setting.text("dead-letter-routing-key")
    if exchange is None:
        return "" if setting.all_known else None
    if not exchange:
        return f"queue '{key}'" if key else "the queue that its routing key names"
    return f"exchange '{exchange}'"


def _rabbitmq_timeout_s(setting: _Setting, kind: str | None, version: tuple[int, int]) -> float | None:
    if kind != "quorum" and kind is not None and version >= _TIMEOUT_OF_QUORUM_ONLY_SINCE:
        return math.inf
    timeout_ms = setting.number("consumer-timeout")
    return None if not timeout_ms else timeout_ms / _MS


def _delay_s(setting: _Setting) -> float | None:
    kind = setting.text("delayed-retry-type")
    if kind is None and not setting.all_known:
        return None
    if kind not in _DELAYED:
        return 0.0
    # The n-th redelivery is delayed by n times the minimum delay, but at most by the maximum delay.
    longest = setting.number("delayed-retry-max")
    if not longest:
        limit = setting.number("delivery-limit") or _DELIVERY_LIMIT
        longest = (setting.number("delayed-retry-min") or 0) * (limit if limit > 0 else _DELIVERY_LIMIT)
    return longest / _MS


def _rabbitmq_hazards(reported: Mapping[str, Any], setting: _Setting) -> tuple[str, ...]:
    ttl_ms, length = setting.number("message-ttl"), setting.number("max-length")
    size, unused_ms = setting.number("max-length-bytes"), setting.number("expires")
    hazards = []
    if ttl_ms is not None and ttl_ms >= 0:
        hazards.append(
            f"messages expire after {ttl_ms / _MS:g} s (message-ttl), even planned messages that no consumer holds"
        )
    if (length is not None or size is not None) and not (setting.text("overflow") or "").startswith("reject"):
        what = f"{length} messages" if length is not None else f"{size} bytes"
        hazards.append(f"beyond {what} the oldest are dropped (max-length, overflow drop-head)")
    if unused_ms is not None and unused_ms >= 0:
        hazards.append(f"it is deleted when unused for {unused_ms / _MS:g} s (expires)")
    if reported.get("auto_delete"):
        hazards.append("it is deleted with its messages when its last consumer is gone (auto-delete)")
    if reported.get("durable") is False:
        hazards.append("it does not survive a broker restart (not durable)")
    return tuple(hazards)


def _rabbitmq_faults(reported: Mapping[str, Any], kind: str | None) -> tuple[str, ...]:
    faults = []
    if kind == "stream":
        faults.append("it is a stream, which keeps acknowledged messages")
    if reported.get("exclusive"):
        faults.append("it is exclusive: only the connection that declared it may read it")
    return tuple(faults)


def policy_of(policies: Iterable[Mapping[str, Any]], queue: str, kind: str) -> dict[str, Any]:
    """Return the settings of the policy that applies to a queue: the matching policy with the highest priority.

    A policy matches if its pattern is found anywhere in the queue's name.

    Args:
        policies: the policies of the queue's virtual host, as RabbitMQ's HTTP API lists them.
    """
    applies = {"all", "queues", f"{kind}_queues", "streams" if kind == "stream" else ""}
    matching = [
        one for one in policies if str(one.get("apply-to")) in applies and _found_in(str(one.get("pattern", "")), queue)
    ]
    best: Mapping[str, Any] = max(matching, key=lambda one: _number(one.get("priority")) or 0, default={})
    definition = best.get("definition")
    return dict(definition) if isinstance(definition, Mapping) else {}


def _found_in(pattern: str, queue: str) -> bool:
    try:
        return re.search(pattern, queue) is not None
    except (re.error, ValueError, OverflowError, RecursionError):  # Perl's syntax, which Python does not know
        return False


def merged_policy(given: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings of a policy with those of an operator policy. If both set a number, the lower one applies."""
    merged = {**operator, **given}
    for name, value in operator.items():
        limit = _lower(value, given.get(name))
        if limit is not None and limit >= 0:
            merged[name] = limit
    return merged


def _lower(*values: object) -> int | None:
    """Return the lowest limit among the values; None if no value is a number. A number below 0 means no limit."""
    numbers = [number for value in values if (number := _number(value)) is not None]
    return min([number for number in numbers if number >= 0] or numbers, default=None)


# -- ActiveMQ Classic --------------------------------------------------------------------------


def of_activemq(queue: Mapping[str, Any], connectors: Iterable[str], scheme: str, port: int) -> QueueFacts:
    """Return the facts about a queue that follow from the attributes of its MBean and from the broker's connectors.

    Args:
        queue: attributes of the queue's MBean; empty if the queue does not exist yet.
        connectors: URIs of the broker's connectors.
        scheme, port: the scheme and port of the query's URL, which tell to which connector the query connects. If no
            connector has this port, for example because of a proxy, all connectors with the protocol are considered.
    """
    slow_consumers = None
    if "SlowConsumerStrategy" in queue:
        kills = queue["SlowConsumerStrategy"]
        slow_consumers = "a slowConsumerStrategy of its policy may end the connection" if kills else ""
    return QueueFacts(
        ready=_number(queue.get("QueueSize")),
        other_consumers=_number(queue.get("ConsumerCount")),
        priorities=queue.get("PrioritizedMessages"),
        page_size=_number(queue.get("MaxPageSize")),
        write_timeout_s=_write_timeout_s(connectors, scheme, port),
        slow_consumers=slow_consumers,
        faults=None if not queue else (_PAUSED,) if queue.get("Paused") else (),
        hazards=() if queue else None,
    )


def _write_timeout_s(connectors: Iterable[str], scheme: str, port: int) -> float | None:
    protocol = "stomp" if scheme.startswith("stomp") else "amqp"
    parts = [urlsplit(uri) for uri in connectors]
    ours = [one for one in parts if one.scheme.partition("+")[0] == protocol or one.scheme.startswith("auto")]
    ours = [one for one in ours if _port(one.netloc) == port] or ours
    return max(map(_timeout_s, ours), default=None)


def _port(place: str) -> int | None:
    number = place.rpartition(":")[2]
    return int(number) if number.isdecimal() else None


def _timeout_s(connector: Any) -> float:
    options = parse_qs(connector.query)
    for name in ("transport.soWriteTimeout", "soWriteTimeout"):
        for value in options.get(name, ()):
            if value.isdecimal() and int(value):
                return int(value) / _MS
    return math.inf


# -- Artemis -----------------------------------------------------------------------------------


def of_artemis(queue: Mapping[str, Any]) -> QueueFacts:
    """Return the facts about a queue that follow from the attributes of its MBean.

    Args:
        queue: the attributes, or the queue's entry in the answer to `listQueues`, which begins names with a lower-case
            letter and has all values as text. Empty if the queue does not exist yet.
    """
    reported = {name[:1].lower() + name[1:]: value for name, value in queue.items()}
    if not reported:
        return QueueFacts()
    target = reported.get("deadLetterAddress", "")
    consumers = _number(reported.get("consumerCount"))
    return QueueFacts(
        other_consumers=consumers,
        ready=_number(reported.get("messageCount")),
        dead_letters_to=None if "deadLetterAddress" not in reported else f"address '{target}'" if target else "",
        single_active=_flag(reported.get("exclusive")),
        consumers_max=_limit(_number(reported.get("maxConsumers"))),
        hazards=_artemis_hazards(reported),
        faults=(_PAUSED,) if _flag(reported.get("paused")) else (),
    )


def artemis_answer(body: bytes) -> Any:
    """Decode the body of a message with which Artemis answers a management query.

    The body is a JSON list with one text, and this text is JSON again. If the body has another form, return None.
    """
    try:
        (reported,) = json.loads(body)
        return json.loads(reported)
    except (ValueError, TypeError, RecursionError):  # a refusal in words, or another format
        return None


def of_artemis_settings(settings: Mapping[str, Any]) -> QueueFacts:
    """Return the facts about a queue that follow from the settings of its address.

    Args:
        settings: the settings that the operation `getAddressSettingsAsJSON` returns. Unset settings are missing.
    """
    attempts = _number(settings.get("maxDeliveryAttempts"))
    target = str(settings.get("deadLetterAddress") or "")
    threshold = _number(settings.get("slowConsumerThreshold"))
    policy = str(settings.get("slowConsumerPolicy") or "NOTIFY")
    kills = policy == "KILL" and threshold is not None and threshold >= 0
    return QueueFacts(
        delivery_limit=_limit(_DELIVERY_ATTEMPTS if attempts is None else attempts),
        dead_letters_to=f"address '{target}'" if target else "",
        redelivery_delay_s=_artemis_delay_s(settings),
        slow_consumers=f"a consumer of fewer than {threshold} messages a second is disconnected" if kills else "",
    )


def _artemis_delay_s(settings: Mapping[str, Any]) -> float:
    delay_ms, longest_ms = (_number(settings.get(name)) or 0 for name in ("redeliveryDelay", "maxRedeliveryDelay"))
    try:
        factor = float(settings.get("redeliveryMultiplier") or 1)
    except (TypeError, ValueError):  # reported in another format
        factor = 1.0
    if delay_ms > 0 and factor > 1:
        delay_ms = longest_ms if longest_ms > 0 else delay_ms * _DELAY_FACTOR
    return max(0, delay_ms) / _MS


def _artemis_hazards(reported: Mapping[str, Any]) -> tuple[str, ...]:
    hazards = []
    ring = _number(reported.get("ringSize"))
    before = _number(reported.get("consumersBeforeDispatch")) or 0
    if _flag(reported.get("purgeOnNoConsumers")):
        hazards.append("it is emptied when its last consumer is gone (purge-on-no-consumers)")
    if ring is not None and ring >= 0:
        hazards.append(f"beyond {ring} messages the oldest are dropped (ring-size)")
    if _flag(reported.get("lastValue")):
        hazards.append("a newer message replaces an older one with the same key (last-value)")
    if before > 1:
        hazards.append(f"it delivers nothing until it has {before} consumers (consumers-before-dispatch)")
    if _flag(reported.get("autoDelete")):
        hazards.append("it is deleted when it is empty and unused (auto-delete)")
    if _flag(reported.get("durable")) is False:
        hazards.append("it does not survive a broker restart (not durable)")
    return tuple(hazards)


def _limit(number: int | None) -> float | None:
    return None if number is None else number if number > 0 else math.inf


#: Maximum number of digits of a number in an answer. Python refuses to convert thousands of digits.
_DIGITS_MAX = 19


def _number(value: object) -> int | None:
    if isinstance(value, str):
        digits = value.removeprefix("-")
        return int(value) if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX else None
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return value == "true" if isinstance(value, str) else None
