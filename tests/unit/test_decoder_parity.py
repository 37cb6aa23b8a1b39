"""Every decoder has the columns of the schema, with values of their kinds: a forgotten column fails here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pika
import pytest
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, MapType, StringType, TimestampType

from pyspark_mq.brokers import BROKERS
from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import unreadable
from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_message import Raw as Amqp10Raw
from pyspark_mq.decode.amqp10_message import Sections
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.batch import UNREADABLE_PROPERTY
from pyspark_mq.decode.stomp import StompBatch
from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.connections.protocols import SESSIONS, session_class
from pyspark_mq.spark_source.schema import ALL_COLUMNS, SCHEMA, BatchBuilder
from pyspark_mq.wire.stomp.frames import UnreadableHeaders
from tests.support.columns import built
from tests.support.decoding import Asked
from tests.support.memory_broker import MemoryBatch
from tests.support.stomp import block

#: Headers of STOMP that are numbers.
NUMBERS = ("priority", "timestamp", "expires", "expiration", "x-delivery-count")
#: Columns that no decoder has under `columns`: they have methods of their own, or are known without one.
OWN = {"messageId", "body", "destination"}


#: Encoded, exchange `ex` and routing key `orders`.
WHERE = b"\x02ex\x06orders"


def amqp091(tag: int, body: bytes = b"", *, redelivered: bool = False, **properties: Any) -> Any:
    return tag, redelivered, b"".join(pika.BasicProperties(**properties).encode()), body, WHERE


AMQP_0_9_1 = [
    amqp091(1),
    amqp091(
        2,
        b"\x00body\xff",
        redelivered=True,
        message_id="id",
        headers={
            "text": "t", "bytes": b"\xff", "number": -5, "flag": True, "none": None, "table": {"a": [1, b"\xfe"]},
            "decimal": Decimal("1.5"), "time": datetime(2024, 1, 1, tzinfo=timezone.utc), b"\xff": "name",
            "x-delivery-count": 3, "JMSXGroupID": "group", "JMSXGroupSeq": 2**40,
        },
        correlation_id="c",
        reply_to="r",
        content_type="text/plain",
        type="order",
        priority=7,
        timestamp=1_700_000_000,
        expiration="60000",
        user_id="guest",
        app_id=b"\xff",
        content_encoding="gzip",
        delivery_mode=2,
    ),
    amqp091(3, headers={}, message_id=b"\xff", correlation_id=b"\xff", timestamp=2**64 - 1, expiration="never"),
]  # fmt: skip

AMQP_1_0 = [
    Amqp10Raw(1, b"", 0, Sections()),
    Amqp10Raw(
        2, b"\x00body\xff", 0, Sections(
            id="id", correlation_id=UUID(int=5), reply_to="r", content_type="text/plain", subject="order", priority=7,
            created_ms=1_700_000_000_000, expires_ms=1_700_000_060_000, deliveries=3, redelivered=True, durable=True,
            application={
                "text": "t", "bytes": b"\xff", "number": -5, "flag": True, "none": None, "list": [1, {"a": 2.5}],
                "JMSXAppID": "app",
            },
            user=b"\xff", content_encoding="gzip", group="group", group_sequence=2**32 - 1, exchange="ex",
            routing_key="key",
        ),
    ),
    Amqp10Raw(
        3, b"x", 0, Sections(id=b"\xff", correlation_id=7, created_ms=2**63 - 1, expires_ms=-1, redelivered=True)
    ),
]  # fmt: skip


def stomp(broker: str) -> list[Any]:
    dialect = BROKERS[broker].stomp
    headers = {
        "ack": "1", "message-id": "T_1", "amqp-message-id": "id", "content-length": "6", "correlation-id": "c",
        "reply-to": "/queue/r", "content-type": "text/plain", "type": "order", "priority": "7",
        "timestamp": "1700000000", "expires": "1700000060000", "expiration": "60000", "redelivered": "true",
        "x-delivery-count": "3", "own": "a:b", "\udcff": "\udcff", "destination": "/exchange/a%2Fb/%FF",
        "persistent": "true", "user-id": "u", "app-id": "a", "JMSXAppID": "a", "content-encoding": "gzip",
        "_AMQ_GROUP_ID": "g", "JMSXGroupID": "g", "JMSXUserID": "\udcff", "_AMQ_GROUP_SEQUENCE": "7",
        "JMSXGroupSeq": "8",
    }  # fmt: skip
    odd = {"priority": "high", "timestamp": "9" * 40, "expires": "-1", "redelivered": "", "x-delivery-count": "?"}
    return [
        (1, block({}), b"", dialect),
        (2, block(headers), b"\x00body\xff", dialect),
        (3, block(odd), b"x", dialect),
    ]


@dataclass(frozen=True)
class Sample:
    """Deliveries as a protocol brings them: the first has nothing that can be left out.

    Attributes:
        silent: columns that are null whatever a message says, as the broker does not say it.
    """

    decoder: Asked
    raws: Sequence[Any]
    silent: frozenset[str] = frozenset()


SAMPLES = {
    "amqp-0-9-1": Sample(Asked(Amqp091Batch), AMQP_0_9_1),
    "amqp-1.0": Sample(Asked(Amqp10Batch), AMQP_1_0),
    "stomp of rabbitmq": Sample(Asked(StompBatch), stomp("rabbitmq")),
    "stomp of activemq": Sample(
        Asked(StompBatch),
        stomp("activemq"),
        frozenset({"deliveryCount", "routingKey", "exchange", "groupId", "groupSequence"}),
    ),
    "stomp of artemis": Sample(
        Asked(StompBatch), stomp("artemis"), frozenset({"deliveryCount", "routingKey", "exchange"})
    ),
}
SOURCES = [IdSource("message-id"), IdSource("correlation-id"), IdSource("property", "own")]

_ODD_AMQP = b"\x00\x53\x73\xc0\x06\x01\xa1\x03odd" + b"\x00\x53\x77\xa1\x02\xff\xfe"
#: Deliveries that could not be decoded, for each protocol one.
UNREADABLE = {
    "amqp-0-9-1": Sample(
        Asked(Amqp091Batch),
        [
            unreadable(
                (9, False, b"\x20\x80" + bytes(3) + b"\x05\x01aT\0\0" + b"\x03odd", b"x", WHERE),
                "a value is longer than its table",
            )
        ],
    ),
    "amqp-1.0": Sample(Asked(Amqp10Batch), [SectionReader(counts_acquirers=True).read(9, _ODD_AMQP)]),
    "stomp": Sample(
        Asked(StompBatch), [(9, UnreadableHeaders(b"\nmessage-id:odd\n"), b"a\0b", BROKERS["activemq"].stomp)]
    ),
}

samples = pytest.mark.parametrize("sample", SAMPLES.values(), ids=list(SAMPLES))


def is_of(kind: DataType, value: Any) -> bool:
    """Is this what a column of that kind is made of?"""
    if value is None:
        return True
    if isinstance(kind, MapType):
        return type(value) is list and all(
            type(name) is str and (item is None or type(item) is str) for name, item in value
        )
    if isinstance(kind, StringType):
        return isinstance(value, str)
    if isinstance(kind, BooleanType):
        return type(value) is bool
    if isinstance(kind, IntegerType):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31
    assert isinstance(kind, TimestampType | LongType)
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def test_every_protocol_has_samples() -> None:
    assert {session_class(protocol).batches for protocol in SESSIONS} <= {
        sample.decoder.batches for sample in SAMPLES.values()
    }


@samples
def test_a_decoder_has_the_columns_of_the_schema_and_no_others(sample: Sample) -> None:
    assert set(sample.decoder.columns) == set(ALL_COLUMNS.fieldNames()) - OWN


def test_the_decoder_of_the_queue_in_memory_has_them_too() -> None:
    assert set(MemoryBatch.columns) == set(SCHEMA.fieldNames()) - OWN


@samples
@pytest.mark.parametrize("name", sorted(set(ALL_COLUMNS.fieldNames()) - OWN))
def test_a_column_has_values_of_its_kind(sample: Sample, name: str) -> None:
    make, kind = sample.decoder.columns[name], ALL_COLUMNS[name].dataType
    values = make(sample.raws)
    assert len(values) == len(sample.raws)
    assert [value for value in values if not is_of(kind, value)] == []
    assert make([]) == []
    assert (values[1] is None) is (name in sample.silent)


@pytest.mark.parametrize("number", [2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1])
def test_a_number_fits_its_column_or_is_null(number: int) -> None:
    fits = number < 2**31 - 1
    milliseconds = min(number, 2**63 - 1)
    headed = Sections(created_ms=milliseconds, expires_ms=milliseconds, deliveries=number, redelivered=True)
    counted = [
        (
            Asked(Amqp091Batch),
            amqp091(1, headers={"x-delivery-count": milliseconds}, timestamp=number, expiration=str(number)),
        ),
        (
            Asked(Amqp10Batch),
            Amqp10Raw(1, b"", 0, headed),
        ),
        *(
            (Asked(StompBatch), (1, block(dict.fromkeys(NUMBERS, str(number))), b"", BROKERS[broker].stomp))
            for broker in ("rabbitmq", "activemq", "artemis")
        ),
    ]
    for decoder, raw in counted:
        batch = built(BatchBuilder(ALL_COLUMNS), [raw], decoder)
        batch.validate(full=True)
        for name in ("priority", "timestamp", "expiration", "deliveryCount"):
            assert is_of(ALL_COLUMNS[name].dataType, decoder.columns[name]([raw])[0])
    counts = [decoder.columns["deliveryCount"]([raw])[0] for decoder, raw in counted[:3]]
    assert counts == ([number + 1] * 3 if fits else [1, None, 1])


@samples
def test_tags_bodies_and_ids_have_one_value_for_each_delivery(sample: Sample) -> None:
    decoder, raws = sample.decoder, sample.raws
    assert decoder.tags(raws) == [1, 2, 3]
    assert decoder.tags([]) == decoder.bodies([]) == []
    assert all(type(body) is bytes for body in decoder.bodies(raws))
    for source in SOURCES:
        ids = decoder.ids(raws, source)
        assert len(ids) == len(raws)
        assert all(value is None or isinstance(value, str | bytes) for value in ids)
        assert ids[0] is None
        assert decoder.ids([], source) == []


@samples
def test_what_was_decoded_is_readable(sample: Sample) -> None:
    assert sample.decoder.unreadable(sample.raws) == []
    assert sample.decoder.unreadable([]) == []


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_delivery_has_all_columns_and_tells_what_is_known(name: str) -> None:
    sample = UNREADABLE[name]
    (odd,) = sample.decoder.unreadable(sample.raws)
    assert odd.tag == 9
    assert odd.data
    assert odd.error
    assert "'odd'" in str(odd)
    batch = built(BatchBuilder(ALL_COLUMNS), sample.raws, sample.decoder)
    batch.validate(full=True)
    assert dict(batch.column("properties").to_pylist()[0])[UNREADABLE_PROPERTY] == odd.error


@samples
def test_a_batch_of_all_columns_can_be_made(sample: Sample) -> None:
    batch = built(BatchBuilder(ALL_COLUMNS), sample.raws, sample.decoder)
    batch.validate(full=True)
    assert batch.num_rows == len(sample.raws)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (StringType(), b"bytes"),
        (BooleanType(), 1),
        (IntegerType(), 2**31),
        (IntegerType(), True),
        (TimestampType(), 1.5),
        (TimestampType(), 2**63),
        (MapType(StringType(), StringType()), {"a": "b"}),
        (MapType(StringType(), StringType()), [("a", 1)]),
        (MapType(StringType(), StringType()), [(None, "b")]),
    ],
)
def test_a_value_of_another_kind_is_seen(kind: DataType, wrong: Any) -> None:
    assert not is_of(kind, wrong)
