"""Imports classes that need the client library of a protocol."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pyspark_mq.errors import ConfigurationError, MissingExtraError

__all__ = ["client_class"]

#: Modules of the standard library that Windows lacks.
_OF_UNIX = frozenset({"fcntl", "termios"})


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
