"""Who is measured: a table, and the choice from it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP

__all__ = [
    "BARE",
    "CEILING",
    "CEILINGS",
    "CONTENDERS",
    "EXACTLY_ONCE",
    "FLINK",
    "GUARANTEES",
    "HAZELCAST",
    "KINDS",
    "OURS",
    "PERF_TEST",
    "PROTOCOLS",
    "RATE",
    "Contender",
    "Shape",
    "choose",
    "family",
    "order_of",
]

OURS, BARE, CEILING, PERF_TEST, FLINK, HAZELCAST, RATE = KINDS = (
    "ours", "bare", "ceiling", "perftest", "flink", "hazelcast", "rate",
)  # fmt: skip
EXACTLY_ONCE, AT_LEAST_ONCE, NONE = GUARANTEES = ("exactly-once", "at-least-once", "none")
PROTOCOLS = (AMQP_0_9_1, STOMP, AMQP_1_0)
_JMS = "JMS"
#: Unacknowledged messages of a ceiling: as many as bare clients have, and as the window of a channel lets ours have.
CEILINGS = (10_000, 65_535)
_CLIENTS = {AMQP_0_9_1: "pika", AMQP_1_0: "proton", STOMP: "stomp.py"}


_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Contender:
    """Somebody who empties a queue.

    Attributes:
        broker: value of the option `broker`; with a version and a kind of queue where another one is wanted than is
            installed, or than a classic queue: `rabbitmq-4.3-quorum`.
        kind: one of :data:`KINDS`.
        protocol: value of the option `protocol`; for others than us and bare clients what they speak.
        guarantee: ours alone.
        consumers: Hazelcast's alone.
        unacknowledged: a ceiling's alone: so many messages, of which half are acknowledged at a time.
        share: of the messages of a turn: who is slow gets fewer, as rates are compared.
    """

    broker: str
    kind: str
    protocol: str
    guarantee: str = EXACTLY_ONCE
    consumers: int = 1
    share: float = 1.0
    unacknowledged: int = 0

    @property
    def name(self) -> str:
        """For tables; unique for a broker."""
        if self.kind == OURS:
            said = [f"pyspark-mq {self.protocol}", "" if self.guarantee == EXACTLY_ONCE else self.guarantee]
            return ", ".join(filter(None, said))
        if self.kind == CEILING:
            return f"ceiling, {self.unacknowledged:,} unacknowledged"
        if self.kind == BARE:
            return f"bare {_CLIENTS[self.protocol]}"
        if self.kind == HAZELCAST:
            return f"Hazelcast JMS, {self.consumers} consumer{'s' if self.consumers > 1 else ''}"
        return {PERF_TEST: "RabbitMQ PerfTest", FLINK: "Flink RMQSource", RATE: "Spark rate-micro-batch"}[self.kind]

    def messages(self, wanted: int) -> int:
        """Of a turn when `wanted` are asked for: whole thousands, as PerfTest acknowledges by the thousand."""
        return max(1, round(wanted * self.share / 1000)) * 1000


@dataclass(frozen=True, slots=True)
class Shape:
    """What the messages are like, and the machine.

    Attributes:
        body_bytes: of each.
        headers: do they have application headers?
        busy: other processes that take a core each.
        ids: do they have message IDs? Without, each has a body of its own. RabbitMQ only.
    """

    body_bytes: int
    headers: bool
    busy: int = 0
    ids: bool = True

    @property
    def title(self) -> str:
        without = "" if self.ids else ", without IDs"
        beside = f", beside {self.busy} busy process{'es' if self.busy > 1 else ''}" if self.busy else ""
        return f"{self.body_bytes:,}-byte bodies, {'with' if self.headers else 'without'} headers{without}{beside}"

    @property
    def slug(self) -> str:
        """For names of files."""
        ids = "" if self.ids else "-no-ids"
        return f"{self.body_bytes}{'-headers' if self.headers else ''}{ids}{f'-busy-{self.busy}' if self.busy else ''}"


def family(broker: str) -> str:
    """The value of the option `broker`, of a broker with a version."""
    return broker.partition("-")[0]


def _of_broker(broker: str, protocols: Sequence[str], share: float, hazelcast: float) -> list[Contender]:
    """Ours and the bare client over each protocol, and Hazelcast."""
    found = []
    for protocol in protocols:
        # Where AMQP 1.0 is slower than STOMP.
        part = share / 2 if protocol == AMQP_1_0 and broker != "artemis" else share
        found += [
            Contender(broker, OURS, protocol, share=part),
            Contender(broker, BARE, protocol, share=part),
        ]
    return found + [Contender(broker, HAZELCAST, _JMS, consumers=count, share=hazelcast) for count in (1, 2)]


#: In the order of the tables. ActiveMQ Classic acknowledges message by message with a write to its disk: smaller turns.
CONTENDERS: tuple[Contender, ...] = (
    *_of_broker("rabbitmq", (AMQP_0_9_1, STOMP, AMQP_1_0), 1.0, 0.15),
    Contender("rabbitmq", OURS, AMQP_0_9_1, guarantee=AT_LEAST_ONCE),
    Contender("rabbitmq", OURS, AMQP_0_9_1, guarantee=NONE),
    Contender("rabbitmq", CEILING, AMQP_0_9_1),
    Contender("rabbitmq", PERF_TEST, AMQP_0_9_1),
    Contender("rabbitmq", FLINK, AMQP_0_9_1, share=0.5),
    *_of_broker("activemq", (STOMP, AMQP_1_0), 0.25, 0.15),
    # As many that each has a steady rate: with fewer ours had one epoch, and Hazelcast a first second.
    *_of_broker("artemis", (STOMP, AMQP_1_0), 1.0, 1.0),
)


def choose(
    brokers: Iterable[str],
    kinds: Iterable[str],
    protocols: Iterable[str] = PROTOCOLS,
    guarantees: Iterable[str] = GUARANTEES,
    ceilings: Iterable[int] = CEILINGS,
) -> dict[str, list[Contender]]:
    """Contenders by broker; the floor, which needs none, is with the first.

    Args:
        brokers: in the order wanted.
        kinds: of :data:`KINDS`.
        protocols: of ours, bare clients, ceilings, PerfTest and Flink.
        guarantees: of ours.
        ceilings: unacknowledged messages of each.
    """
    wanted, spoken, given, counts = set(kinds), {*protocols, _JMS}, set(guarantees), list(ceilings)
    chosen: dict[str, list[Contender]] = {}
    for broker in brokers:
        found = [
            replace(one, broker=broker, unacknowledged=count)
            for one in CONTENDERS
            for count in (counts if one.kind == CEILING else [0])
            if one.broker == family(broker) and one.kind in wanted and one.protocol in spoken and one.guarantee in given
        ]
        if RATE in wanted and not chosen:
            found.append(Contender(broker, RATE, "-"))
        if found:
            chosen[broker] = found
    return chosen


def order_of(number: int, items: Sequence[_Item]) -> list[_Item]:
    """The order of a round: it rotates, and each second one is backwards, so that nobody always follows the same."""
    shift = number % len(items)
    rotated = [*items[shift:], *items[:shift]]
    return rotated[::-1] if number % 2 else rotated
