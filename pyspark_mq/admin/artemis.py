"""Queries to ActiveMQ Artemis: Jolokia, its HTTP interface, reads its MBeans.

The MBeans are in the package `org.apache.activemq.artemis.api.core.management`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pyspark_mq.admin.http import Management
from pyspark_mq.admin.mbeans import broker_mbean, waiting
from pyspark_mq.brokers.facts import QueueFacts, of_artemis, of_artemis_settings

__all__ = ["ask_depth", "ask_queue", "ask_server"]

_BROKER = "org.apache.activemq.artemis:broker=*"
_ATTRIBUTES = (
    "Name", "Address", "MessageCount", "ConsumerCount", "MaxConsumers", "Exclusive", "PurgeOnNoConsumers", "RingSize",
    "LastValue", "ConsumersBeforeDispatch", "AutoDelete", "Durable", "Paused", "DeadLetterAddress",
)  # fmt: skip


def ask_server(management: Management) -> str:
    return f"ActiveMQ-Artemis/{broker_mbean(management, _BROKER, 'Version')[1].get('Version', '')}"


def ask_queue(management: Management, queue: str) -> QueueFacts:
    mbean, _ = broker_mbean(management, _BROKER, "Version")
    queues = management.read(_mbean_of(mbean, queue), *_ATTRIBUTES)
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


def _mbean_of(mbean: str, queue: str) -> str:
    return f"{mbean},component=addresses,subcomponent=queues,queue={_quoted(queue.rpartition('::')[2])},*"


def ask_depth(management: Management, queue: str) -> int | None:
    mbean, _ = broker_mbean(management, _BROKER, "Version")
    found = management.read(_mbean_of(mbean, queue), "MessageCount", "DeliveringCount")
    return waiting(found, "MessageCount", "DeliveringCount")


def _settings(answer: object) -> dict[str, Any]:
    """Parse the answer to `getAddressSettingsAsJSON`. Return an empty mapping if the answer has no settings."""
    try:
        settings = json.loads(answer) if isinstance(answer, str) else {}
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _quoted(text: str) -> str:
    """Quote a name as `javax.management.ObjectName.quote` does."""
    for special in '\\"?*':
        text = text.replace(special, f"\\{special}")
    return f'"{text}"'
