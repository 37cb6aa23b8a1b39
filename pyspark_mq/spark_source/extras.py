"""The libraries that a query's options ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.spark_source.options import Options

if TYPE_CHECKING:
    from pyspark_mq.dedup.redis_store import RedisStore

__all__ = ["check_installed", "redis_store_class"]


def check_installed(options: Options) -> None:
    """Import the client libraries that the options ask for, so that a missing one is reported at `load()`.

    Raises:
        MissingExtraError: with the command that installs it.
        ConfigurationError: this system is none that the source runs on.
    """
    session_class(options.settings.endpoint.protocol)
    if options.dedup_store != "checkpoint":
        redis_store_class()


def redis_store_class() -> type[RedisStore]:
    """The store in Redis; raises a MissingExtraError with the command that installs its client."""
    from pyspark_mq.dedup.redis_store import RedisStore  # noqa: PLC0415 - an extra

    return RedisStore
