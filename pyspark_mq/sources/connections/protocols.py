"""The wire protocols: the session class of each protocol, and the package that has to be installed for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.wire.clients import client_class

if TYPE_CHECKING:
    from pyspark_mq.sources.connections.session import Session

__all__ = ["SESSIONS", "session_class"]

#: protocol -> (module, class, package to install)
SESSIONS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        AMQP_0_9_1: ("pyspark_mq.sources.amqp091.session", "Amqp091Session", "pyspark-mq"),
        AMQP_1_0: ("pyspark_mq.sources.amqp10.session", "Amqp10Session", "pyspark-mq[amqp10]"),
        STOMP: ("pyspark_mq.sources.stomp.session", "StompSession", "pyspark-mq[stomp]"),
    }
)


def session_class(protocol: str) -> type[Session]:
    """Return the session class for a protocol. :func:`client_class` says which errors this raises."""
    found: type[Session] = client_class(protocol, SESSIONS)
    return found
