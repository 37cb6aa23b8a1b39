"""pyspark-mq: message queues as an exactly-once source of Spark Structured Streaming.

The public parts are the format name ``mq``, its options and columns, the counters in the query's progress
(docs/options.md), ``QueueListener`` and ``readings`` (docs/monitor.md), the errors in :mod:`pyspark_mq.errors`, and the
promise that newer versions can resume a checkpoint. Everything else is private. CONTRIBUTING.md#what-is-public has the
details.

Importing this module imports neither Spark nor any broker client. Spark looks for a class called
``DefaultSource`` in every importable module named ``pyspark_*`` and registers the class under its name, ``mq``. The
attributes ``DefaultSource``, ``QueueListener`` and ``readings`` are created on first access.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark_mq.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark_mq.spark_source.datasource import MqDataSource as DefaultSource
    from pyspark_mq.spark_source.listener import QueueListener
    from pyspark_mq.spark_source.progress import readings

__all__ = ["DefaultSource", "QueueListener", "__version__", "readings"]

__version__ = "0.1.0"


#: Attribute that is created on first access -> its module, and its name in that module.
_LAZY = {
    "DefaultSource": ("datasource", "MqDataSource"),
    "QueueListener": ("listener", "QueueListener"),
    "readings": ("progress", "readings"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    try:
        return getattr(import_module(f"pyspark_mq.spark_source.{module}"), attribute)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "pyspark":
            raise
        raise MissingExtraError(
            f"pyspark is not installed; run: {sys.executable} -m pip install 'pyspark-mq[spark]'"
        ) from missing
