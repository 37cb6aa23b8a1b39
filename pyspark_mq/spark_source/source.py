"""Creates the source of a query. Only the process that receives the query's messages imports this module."""

from __future__ import annotations

import ctypes
import gc
import logging
from collections import deque
from contextlib import suppress
from functools import partial

import pyarrow as pa

from pyspark_mq.admin import ask_depth
from pyspark_mq.admin.checks import worth_a_line
from pyspark_mq.dedup import CheckpointOnly, SeenStore
from pyspark_mq.sources.connections.parent import watch_parent
from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.epochs import EpochSource
from pyspark_mq.sources.exposure import exposures
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.extras import redis_store_class
from pyspark_mq.spark_source.offset import OffsetCodec
from pyspark_mq.spark_source.options import Options
from pyspark_mq.wire.endpoint import SECRETS_KEPT, secret_in
from pyspark_mq.wire.url import hide, redact_in

__all__ = ["begin_source", "make_store", "use_little_memory"]

_LOG = logging.getLogger("pyspark_mq")

#: Parameter of mallopt(3), and its value: glibc returns freed blocks of at least this size to the system. By default
#: glibc raises this size to that of the largest freed block, and so keeps the memory of large blocks. With headers of
#: 30 kB the process then took 760 MiB instead of 502 MiB.
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 2 << 20


def use_little_memory() -> None:
    """Make Arrow use the system's allocator in this process, and make that allocator return large freed blocks.

    Arrow's own allocator keeps more freed memory. A held message of 200 bytes over AMQP 0-9-1 takes 602 bytes with
    Arrow's allocator, and 553 bytes after this call. The system's allocator is not slower.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def begin_source(options: Options, codec: OffsetCodec, schema: pa.Schema) -> tuple[EpochSource, Worker]:
    """Return a query's source and the worker of its connections, without opening a connection.

    Args:
        schema: schema of the blocks that the worker makes.
    """
    watch_parent()
    # The process holds tens of thousands of deliveries at a time, which never form reference cycles. Frequent garbage
    # collection would find nothing, and cost a tenth of the throughput.
    gc.set_threshold(100_000, 50, 50)
    use_little_memory()
    settings, management, runtime = options.settings, options.management, Threads()
    for exposure in exposures(settings.endpoint, management.url if management else "", options.dedup_store):
        _LOG.warning("%s: %s", settings.destination, exposure)
    worker = Worker(session_class, schema, runtime)
    # Ask only for the depth of queues. A topic has no depth: its messages wait in the queues of its subscriptions.
    ask = None if management is None or settings.endpoint.topic is not None else partial(ask_depth, management)
    source = EpochSource(
        settings,
        worker,
        partial(make_store, options),
        runtime,
        list_queues=None if management is None else management.names,
        ask_depth=ask,
        check=worth_a_line,
        files=codec.log,
    )
    return source, worker


def make_store(options: Options, queue: Settings) -> SeenStore:
    """Return the store for a queue's committed IDs. Option `dedupStore` says which: the checkpoint alone, or Redis."""
    if options.dedup_store == "checkpoint":
        return CheckpointOnly()
    codec = OffsetCodec.of(queue)
    name = f"{codec.broker}:{codec.ids}:{codec.source}"
    url, file = options.dedup_store, options.dedup_secret
    read: deque[str] = deque(maxlen=SECRETS_KEPT)

    def secret() -> str:
        read.append(secret_in(str(file), "dedupStorePasswordFile"))
        return read[-1]

    def hidden(text: str) -> str:
        return hide(redact_in(text, url), set(read))

    return redis_store_class()(url, name, queue.dedup_window, hidden, None if file is None else secret)
