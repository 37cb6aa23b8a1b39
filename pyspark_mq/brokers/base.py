"""What differs between brokers, as data.

Nothing outside this folder and the protocol modules of ``sources/`` knows a broker by name: the
rest of the package reads a :class:`Broker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["AMQP_0_9_1", "AMQP_1_0", "STOMP", "Amqp10Dialect", "Broker", "StompDialect"]

AMQP_0_9_1 = "amqp-0-9-1"
AMQP_1_0 = "amqp-1.0"
STOMP = "stomp"


@dataclass(frozen=True, slots=True)
class StompDialect:
    """STOMP 1.2 as one broker speaks it.

    Attributes:
        queue, topic: destination headers, with `{name}` for the name.
        id_header: the header that names a message, and keeps its value over redeliveries.
    """

    queue: str
    topic: str
    id_header: str


@dataclass(frozen=True, slots=True)
class Amqp10Dialect:
    """AMQP 1.0 as one broker speaks it.

    Attributes:
        queue, topic: source addresses, with `{name}` for the name.
        confirms: does it answer an acceptance by settling it?
    """

    queue: str
    topic: str
    confirms: bool


@dataclass(frozen=True, slots=True)
class Broker:
    """A kind of broker.

    Attributes:
        name: value of the option `broker`.
        protocols: url scheme -> the protocols that may be spoken over it, the default first.
        epoch_messages: default of `maxMessagesPerTrigger`.
        prefetch_max: protocol -> most un-acknowledged messages one connection can be handed.
        selectors: can it filter by JMS selector?
        delivery_limit_note: what an operator has to know about messages that are handed out
            again and again; shown with data-loss errors.
        stomp, amqp10: how it speaks a protocol where the specification leaves it to the broker;
            None if it does not speak it.
    """

    name: str
    protocols: Mapping[str, tuple[str, ...]]
    epoch_messages: int
    prefetch_max: Mapping[str, int]
    selectors: bool
    delivery_limit_note: str
    stomp: StompDialect | None = None
    amqp10: Amqp10Dialect | None = None
