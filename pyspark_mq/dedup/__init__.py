"""Seen messages: keys, their compact form in offsets, and the stores that share them."""

from pyspark_mq.dedup.codec import CodecError, decode_ids, encode_ids
from pyspark_mq.dedup.identity import (
    IdSource,
    Key,
    OnMissing,
    content_digest,
    id_keys,
    id_text,
    is_content,
    key_text,
    second_hash,
)
from pyspark_mq.dedup.store import CheckpointOnly, SeenStore

__all__ = [
    "CheckpointOnly",
    "CodecError",
    "IdSource",
    "Key",
    "OnMissing",
    "SeenStore",
    "content_digest",
    "decode_ids",
    "encode_ids",
    "id_keys",
    "id_text",
    "is_content",
    "key_text",
    "second_hash",
]
