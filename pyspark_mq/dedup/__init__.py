"""Which messages were seen: keys, their compact form in offsets, and the stores that share them."""

from pyspark_mq.dedup.codec import CodecError, decode_ids, encode_ids
from pyspark_mq.dedup.identity import IdSource, Key, OnMissing, body_keys, id_keys, key_text, second_hash
from pyspark_mq.dedup.store import CheckpointOnly, SeenStore

__all__ = [
    "CheckpointOnly",
    "CodecError",
    "IdSource",
    "Key",
    "OnMissing",
    "SeenStore",
    "body_keys",
    "decode_ids",
    "encode_ids",
    "id_keys",
    "key_text",
    "second_hash",
]
