"""Arrow columns of messages that were read one by one.

What is read here is the truth: :mod:`pyspark_mq.sources.amqp10.columns` has the same columns for most messages faster,
and leaves the others to this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from pyspark_mq.dedup import IdSource, id_text
from pyspark_mq.sources.amqp10.decoder import Amqp10Decoder, Raw
from pyspark_mq.sources.connections.block import array_of
from pyspark_mq.sources.connections.decoder import Column

__all__ = ["COLUMN_TYPES", "TIMESTAMP", "arrays_of"]

TIMESTAMP = pa.timestamp("us", tz="UTC")
#: Columns of a message, by its bytes alone.
COLUMN_TYPES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "messageId": pa.string(),
        "body": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "correlationId": pa.string(),
        "replyTo": pa.string(),
        "contentType": pa.string(),
        "type": pa.string(),
        "priority": pa.int32(),
        "timestamp": TIMESTAMP,
        "expiration": TIMESTAMP,
        "routingKey": pa.string(),
        "exchange": pa.string(),
        "userId": pa.string(),
        "appId": pa.string(),
        "contentEncoding": pa.string(),
        "persistent": pa.bool_(),
        "groupId": pa.string(),
        "groupSequence": pa.int64(),
        "redelivered": pa.bool_(),
        "deliveryCount": pa.int32(),
    }
)
_decoder = Amqp10Decoder()
_MADE: Mapping[str, Column] = {
    "messageId": lambda raws: [id_text(value) for value in _decoder.ids(raws, IdSource("message-id"))],
    "body": _decoder.bodies,
    **Amqp10Decoder.columns,
}


def arrays_of(raws: Sequence[Raw], names: Collection[str]) -> dict[str, pa.Array]:
    """The columns of these names."""
    return {name: array_of(_MADE[name](raws), COLUMN_TYPES[name]) for name in names}
