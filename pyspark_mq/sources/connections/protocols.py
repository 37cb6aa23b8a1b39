"""The wire protocols: the session class of each protocol, and the package that has to be installed for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from pyspark_mq.sources.connections.session import Session

__all__ = ["SESSIONS", "client_class", "session_class"]

#: protocol -> (module, class, package to install)
SESSIONS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        AMQP_0_9_1: ("pyspark_mq.sources.amqp091.session", "Amqp091Session", "pyspark-mq"),
        AMQP_1_0: ("pyspark_mq.sources.amqp10.session", "Amqp10Session", "pyspark-mq[amqp10]"),
        STOMP: ("pyspark_mq.sources.stomp.session", "StompSession", "pyspark-mq[stomp]"),
    }
)

#: Modules of the standard library that Windows lacks.
_OF_UNIX = frozenset({"fcntl", "termios"})


def session_class(protocol: str) -> type[Session]:
    """Return the session class for a protocol. :func:`client_class` says which errors this raises."""
    found: type[Session] = client_class(protocol, SESSIONS)
    return found


def client_class(protocol: str, places: Mapping[str, tuple[str, str, str]]) -> Any:
    """Import and return a class that needs the client library of a protocol.

    Args:
        protocol: the protocol.
        places: protocol -> (module, class, package to install).

    Raises:
        MissingExtraError: the library is not installed.
        ConfigurationError: this operating system does not support the protocol.
    """
    module, name, distribution = places[protocol]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("pyspark_mq"):
            raise
        if missing.name in _OF_UNIX:
            raise ConfigurationError(
                f"pyspark-mq runs on Linux, but this is '{sys.platform}', which lacks '{missing.name}'. Run the "
                "driver in a container, in WSL, or on a cluster; see docs/versions.md"
            ) from None
        # Name the interpreter that lacks the library, because a cluster may have several.
        text = f"protocol '{protocol}' needs '{missing.name}'; run: {sys.executable} -m pip install '{distribution}'"
        raise MissingExtraError(text) from missing
