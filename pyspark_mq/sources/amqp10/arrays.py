"""Arrow columns of messages that were read one by one.

What is read here is the truth: :mod:`pyspark_mq.sources.amqp10.columns` has the same columns for most messages faster,
and leaves the others to this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, chain
from types import MappingProxyType

import pyarrow as pa

from pyspark_mq.dedup import IdSource, id_text
from pyspark_mq.sources.amqp10.decoder import Amqp10Decoder, Raw, UnreadableRaw
from pyspark_mq.sources.connections.decoder import Unreadable

__all__ = ["COLUMN_TYPES", "TIMESTAMP", "arrays_of", "unreadable"]

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
_MESSAGE_ID = IdSource("message-id")


def unreadable(raws: Sequence[Raw]) -> list[Unreadable]:
    """Select those that cannot be read."""
    return _decoder.unreadable([raw for raw in raws if type(raw) is UnreadableRaw])


def arrays_of(raws: Sequence[Raw], names: Collection[str]) -> dict[str, pa.Array]:
    """The columns of these names."""
    made: dict[str, Callable[[], pa.Array]] = {
        "messageId": lambda: pa.array(map(id_text, _decoder.ids(raws, _MESSAGE_ID)), pa.string()),
        "body": lambda: pa.array(_decoder.bodies(raws), pa.binary()),
        "properties": lambda: _maps(_decoder.columns["properties"](raws)),
    }
    return {name: made[name]() if name in made else _column(raws, name) for name in names}


def _column(raws: Sequence[Raw], name: str) -> pa.Array:
    values, kind = _decoder.columns[name](raws), COLUMN_TYPES[name]
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


def _maps(values: Sequence[list[tuple[str, str | None]]]) -> pa.Array:
    ends = pa.array(accumulate(map(len, values), initial=0), pa.int32())
    flat = [*chain.from_iterable(values)]
    keys, items = pa.array([key for key, _ in flat], pa.string()), pa.array([item for _, item in flat], pa.string())
    return pa.MapArray.from_arrays(ends, keys, items)
