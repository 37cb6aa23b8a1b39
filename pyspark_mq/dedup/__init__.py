"""Remembers committed messages, so that a redelivery of such a message is recognised and not emitted again."""

from pyspark_mq.dedup.epoch_file import ByQueue, EpochFile
from pyspark_mq.dedup.identity import (
    IdSource,
    Key,
    OnMissing,
    TextKeys,
    content_digest,
    filed,
    id_keys,
    id_text,
    is_content,
    key_text,
)
from pyspark_mq.dedup.memory import Memory
from pyspark_mq.dedup.queue_memory import NoMemory, QueueMemory
from pyspark_mq.dedup.store import CheckpointOnly, SeenStore

__all__ = [
    "ByQueue",
    "CheckpointOnly",
    "EpochFile",
    "IdSource",
    "Key",
    "Memory",
    "NoMemory",
    "OnMissing",
    "QueueMemory",
    "SeenStore",
    "TextKeys",
    "content_digest",
    "filed",
    "id_keys",
    "id_text",
    "is_content",
    "key_text",
]
