"""Checks that the optional client libraries which a query's options need are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.spark_source.options import Options

if TYPE_CHECKING:
    from pyspark_mq.dedup.redis_store import RedisStore

__all__ = ["check_installed", "redis_store_class"]


def check_installed(options: Options) -> None:
    """Import the client libraries that the options need, so that `load()` reports a missing library.

    Raises:
        MissingExtraError: a library is missing; the text has the command that installs it.
        ConfigurationError: the source does not run on this system.
    """
    session_class(options.settings.endpoint.protocol)
    if options.dedup_store != "checkpoint":
        redis_store_class()


def redis_store_class() -> type[RedisStore]:
    """Return the class of the Redis store.

    Raises:
        MissingExtraError: the Redis client is not installed; the text has the command that installs it.
    """
    from pyspark_mq.dedup.redis_store import RedisStore  # noqa: PLC0415 - an extra

    return RedisStore
