"""A message of any shape counts for what the process keeps of it, in every bound in bytes and on every protocol."""

from __future__ import annotations

import gc
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pika
import proton
import pyarrow as pa
import pytest

from pyspark_mq.ack import InFlightTable
from pyspark_mq.brokers import BROKERS
from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.stomp import StompBatch
from pyspark_mq.dedup import IdSource, NoMemory, OnMissing
from pyspark_mq.errors import MessageError
from pyspark_mq.sources.connections.block import BlockRows, Run, make_block
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.reader import MqStreamReader
from pyspark_mq.spark_source.schema import SCHEMA, BatchBuilder
from pyspark_mq.spark_source.task_transport import Rows, TaskTransport
from tests.support.decoding import Asked
from tests.support.effort import with_all

IDS = MessageIds(IdSource("message-id"), OnMissing.FAIL, exact=True, unreadable_rows=False)
BUILDER = BatchBuilder(SCHEMA)
ROWS = 200


@dataclass(frozen=True)
class Shape:
    """What a message is made of; each has an ID of its own."""

    body: bytes = b"x"
    headers: Any = None
    id_length: int = 36


SHAPES = {
    "nothing": Shape(b""),
    "200 bytes": Shape(bytes(200)),
    "a large body": Shape(bytes(40_000)),
    "one large header": Shape(headers={"large": "a" * 30_000}),
    "a header that is no text": Shape(headers={"large": b"\xff" * 3_000}),
    "many small headers": Shape(headers={f"name-{number}": str(number) for number in range(200)}),
    "headers that are shorter than their text": Shape(headers={str(number): True for number in range(200)}),
    "a long ID": Shape(id_length=255),
    "headers and a body": Shape(bytes(10_000), {"large": "é" * 5_000}),
}


def amqp091(tag: int, key: str, shape: Shape) -> Any:
    properties = pika.BasicProperties(message_id=key, headers=shape.headers)
    return (tag, False, b"".join(properties.encode()), shape.body, b"\x00\x06orders")


def amqp10(tag: int, key: str, shape: Shape) -> Any:
    message = proton.Message(body=shape.body, id=key, inferred=True, properties=shape.headers)
    return SectionReader(counts_acquirers=True).read(tag, bytes(message.encode()))


def stomp(tag: int, key: str, shape: Shape) -> Any:
    headers = {"message-id": "T_1@@session", "amqp-message-id": key, "ack": str(tag)}
    headers |= {name: value if isinstance(value, str) else str(value) for name, value in (shape.headers or {}).items()}
    block = "".join(f"\n{name}:{value}" for name, value in headers.items()) + "\n"
    return (tag, block.encode(), shape.body, BROKERS["rabbitmq"].stomp)


MAKERS: dict[str, tuple[Asked, Callable[[int, str, Shape], Any]]] = {
    "amqp-0-9-1": (Asked(Amqp091Batch), amqp091),
    "amqp-1.0": (Asked(Amqp10Batch), amqp10),
    "stomp": (Asked(StompBatch), stomp),
}


def kept() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()


def size_of(protocol: str, shape: Shape, count: int) -> tuple[int, int, int]:
    """What so many messages count for, what is kept of them when they are received, and when they are planned."""
    decoder, make = MAKERS[protocol]
    before = kept()
    in_flight: InFlightTable[Any] = InFlightTable(
        grace_s=None, memory=NoMemory("orders"), size_of=lambda rows: BlockRows.of(rows).size_bytes
    )
    in_flight.open_session(1)
    raws = [make(tag, uuid.uuid4().hex.rjust(shape.id_length, "x"), shape) for tag in range(1, count + 1)]
    metadata, block = make_block(decoder.batches.of(raws), IDS, BUILDER.block_schema)
    in_flight.deliver(1, metadata.tags, metadata.keys, block.rows)
    size_bytes = in_flight.received.size_bytes
    del raws, metadata, block
    received = kept() - before
    in_flight.plan(1, count)
    return size_bytes, received, kept() - before


@pytest.mark.parametrize(
    ("protocol", "shape"),
    [
        (pytest.param if turn % 8 == 0 else with_all)(protocol, shape)
        for turn, (protocol, shape) in enumerate(product(MAKERS, SHAPES))
    ],
)
def test_a_message_counts_for_at_least_what_is_kept_of_it_and_for_less_than_twice_that(
    protocol: str, shape: str
) -> None:
    tracemalloc.start()
    try:
        size_of(protocol, SHAPES[shape], 10)  # what is made once
        for _ in range(3):  # Python's own cache of which class is what (`abc`) takes 8 kB more now and then
            size_bytes, received, planned = size_of(protocol, SHAPES[shape], ROWS)
            if planned <= size_bytes:
                break
    finally:
        tracemalloc.stop()
    assert received <= planned <= size_bytes < 2 * received


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("protocol", MAKERS)
def test_what_waits_to_be_decoded_counts_for_at_least_its_bytes(protocol: str, shape: str) -> None:
    decoder, make = MAKERS[protocol]
    of = SHAPES[shape]
    size = decoder.size_bytes([make(1, "x" * of.id_length, of)])
    written = sum(len(name) + len(value) for name, value in (of.headers or {}).items() if not isinstance(value, bool))
    assert size >= len(of.body) + of.id_length + written


@pytest.mark.parametrize("protocol", MAKERS)
def test_a_row_in_a_task_takes_no_more_than_it_counts_for(protocol: str) -> None:
    decoder, make = MAKERS[protocol]
    for shape in SHAPES.values():
        raws = [make(tag, f"{tag}".rjust(shape.id_length, "x"), shape) for tag in range(1, ROWS + 1)]
        _, block = make_block(decoder.batches.of(raws), IDS, BUILDER.block_schema)
        stream = BUILDER.serialize([*BUILDER.build(BlockRows.of(block.rows), "orders")])
        assert stream.size <= sum(block.sizes)


# -- partitions --------------------------------------------------------------------------------------


def partitions(shape: Shape, count: int, **options: str) -> list[Rows]:
    """What so many messages become for a cluster."""
    given = {"broker": "rabbitmq", "url": "amqp://host", "queue": "orders", **options}
    reader = MqStreamReader(parse_options(given), SCHEMA)
    raws = [amqp091(tag, f"id-{tag}", shape) for tag in range(1, count + 1)]
    _, block = make_block(Amqp091Batch.of(raws), IDS, BUILDER.block_schema)
    made = reader._split([Run("orders", BlockRows.of(block.rows))], TaskTransport())
    assert all(isinstance(one, Rows) for one in made)
    return made  # type: ignore[return-value]


def test_headers_split_an_epoch_into_more_partitions() -> None:
    made = partitions(SHAPES["one large header"], 200, numPartitions="1", maxPartitionBytes="1m")
    assert max(one.stream.size for one in made) <= 1 << 20
    assert sum(one.stream.size for one in made) > 6_000_000
    ids = []
    for one in made:
        with one.opened() as stream:
            ids += stream.read_all().column("messageId").to_pylist()
    assert ids == [f"id-{tag}" for tag in range(1, 201)]


def test_a_message_that_no_task_can_carry_is_named_with_what_to_set() -> None:
    large = Shape(headers={"large": "a" * 1_100_000})
    with pytest.raises(MessageError) as caught:
        partitions(large, 1, maxPartitionBytes="1m")
    for words in ("'orders'", "'id-1'", "1,048,576", "maxPartitionBytes", "spark.rpc.message.maxSize"):
        assert words in str(caught.value)
    assert len(partitions(large, 1, maxPartitionBytes="2m")) == 1


def test_an_epoch_of_many_queues_is_split_as_each_takes_something_besides() -> None:
    given = {"broker": "rabbitmq", "url": "amqp://host", "queue": "orders", "maxPartitionBytes": "64k"}
    reader = MqStreamReader(parse_options(given), SCHEMA)
    runs = []
    for number in range(64):
        _, block = make_block(
            Amqp091Batch.of([amqp091(1, f"id-{number}", SHAPES["nothing"])]), IDS, BUILDER.block_schema
        )
        runs.append(Run(f"queue-{number}", BlockRows.of(block.rows)))
    made = reader._split(runs, TaskTransport())
    assert len(made) > 1
    ids = []
    for one in made:
        assert isinstance(one, Rows)
        assert one.stream.size <= 64 << 10
        with one.opened() as stream:
            ids += stream.read_all().column("messageId").to_pylist()
    assert ids == [f"id-{number}" for number in range(64)]
