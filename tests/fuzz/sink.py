"""What is written is read, and what is read can be written: encoders of messages against the source's decoders.

Rows of every column and any value go through each encoder and through the decoder of that protocol; the columns have
to be those that were written. And what the decoders make of messages from elsewhere, with any bytes changed, goes the
other way: it is written as rows, read again, and has to be the same, or is refused with an error that names the column.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.errors import RowError
from pyspark_mq.sink.columns import COLUMNS, ColumnPlan, RowReader
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.stomp import StompPublisher
from pyspark_mq.spark_source.schema import ALL_COLUMNS, BatchBuilder
from tests.fuzz.columns import makers
from tests.support.columns import built
from tests.support.sink import ENTRIES, as_raw, decoder_of, messages_of, settings_of

__all__ = ["run"]

_ROWS = 40
_BUILDER = BatchBuilder(ALL_COLUMNS)
_FIELDS = [(field.name, field.dataType.simpleString()) for field in ALL_COLUMNS]
_TEXTS = ("", "a", "täxt", "€" * 20, "a:b", "a\\cb", "line\nfeed", "return\r", "\x01", "a,b;c", "🐰", " ", "\\n")
_SYMBOLS = ("text/plain", "gzip", "a", "application/json; charset=utf-8")
_NAMES = ("own", "täxt", "a:b", "a\\n", "line\nfeed\nother:value", "JMSType", "x", "0", " ", "\\c")
_BODIES = (b"", b"a", b"a\0b", b"\n\n\0MESSAGE\n", b"\xff" * 300, bytes(range(256)), b"x" * 5_000)
_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Columns that are compared. Of the others a decoder tells what no writer says.
_WRITTEN = tuple(name for name in COLUMNS if name in ALL_COLUMNS.names and name not in {"messageId", "expiration",
                 "exchange", "routingKey"})  # fmt: skip
#: Properties that the sink adds.
_OWN = {"mq_id", "_AMQ_DUPL_ID"}
_SAME = ["body", "correlationId", "replyTo", "contentType", "contentEncoding", "type", "appId"]
_NEVER = {STOMP: StompPublisher.reserved_properties}


def _maybe(rng: random.Random, value: Any) -> Any:
    return value if rng.random() < 0.6 else None


def _row(rng: random.Random) -> dict[str, Any]:
    def text() -> Any:
        return _maybe(rng, rng.choice(_TEXTS))

    properties = {rng.choice(_NAMES): text() for _ in range(rng.randrange(4))}
    seconds = rng.choice((0, 1, 1_700_000_000, 4_000_000_000))
    return {
        "body": rng.choice(_BODIES),
        "messageId": _maybe(rng, f"id-{rng.getrandbits(64)}{rng.choice(_TEXTS)}"),
        "correlationId": text(),
        "replyTo": _maybe(rng, rng.choice([one for one in _TEXTS if one and "," not in one])),
        "contentType": _maybe(rng, rng.choice(_SYMBOLS)),
        "contentEncoding": _maybe(rng, rng.choice(_SYMBOLS)),
        "type": text(),
        "priority": _maybe(rng, rng.randrange(10)),
        "timestamp": _maybe(rng, _START + timedelta(seconds=seconds)),
        "appId": text(),
        "groupId": text(),
        "groupSequence": _maybe(rng, rng.choice((0, 1, (1 << 32) - 1))),
        "persistent": _maybe(rng, rng.random() < 0.5),
        "properties": _maybe(rng, list(properties.items())),
    }


def _expected(row: Mapping[str, Any], broker: str, protocol: str) -> dict[str, Any]:
    """The row as a source has it."""
    read = dict(row)
    read["persistent"] = row["persistent"] is not False
    known = {name: value for name, value in row["properties"] or [] if name not in BROKERS[broker].steering}
    if protocol == AMQP_1_0:
        read["priority"] = 4 if row["priority"] is None else row["priority"]
        # Seconds since 1970 that are none count as absent there.
        read["timestamp"] = None if row["timestamp"] == _START else row["timestamp"]
        if row["appId"] is not None:
            known["JMSXAppID"] = row["appId"]
        if row["groupId"] is not None:
            known["JMSXGroupID"] = row["groupId"]
    else:
        for name, column in (("JMSXGroupID", "groupId"), ("JMSXGroupSeq", "groupSequence")):
            if row[column] is not None:
                known[name] = str(row[column])
    if protocol == STOMP:
        known = {name: value for name, value in known.items() if value is not None}
        if row["appId"] is not None:
            known["JMSXAppID"] = row["appId"]
        # Of a group each broker says what it says: see tests/integration/test_sink.py.
        read["groupId"] = None
        read["groupSequence"] = row["groupSequence"] if broker == "artemis" else None
        if row["contentEncoding"] is not None:
            known["content-encoding"] = row["contentEncoding"]
    read["properties"] = known
    return read


def _table(messages: Sequence[Any], broker: str, protocol: str) -> Any:
    raws = [as_raw(message, broker, protocol, tag) for tag, message in enumerate(messages, 1)]
    return built(_BUILDER, raws, decoder_of(protocol))


def _write_and_read(rng: random.Random, broker: str, protocol: str) -> int:
    rows = [_row(rng) for _ in range(_ROWS)]
    messages = messages_of(rows, settings_of(broker, protocol))
    for row, message, read in zip(rows, messages, _table(messages, broker, protocol).to_pylist(), strict=True):
        wanted = _expected(row, broker, protocol)
        read["properties"] = {name: value for name, value in read["properties"] if name not in _OWN}
        for name in _WRITTEN:
            assert read[name] == wanted[name], f"{broker} {protocol}: {name} of {row}: {read[name]!r}"
        if protocol == STOMP or broker == "activemq":
            continue
        assert read["messageId"] == message.id
    return len(rows)


def _read_and_write(rng: random.Random, broker: str, protocol: str, make: Any) -> int:
    raws = make(rng, 1)
    decoder = decoder_of(protocol)
    if not raws or decoder.unreadable(raws):
        return 0
    table = built(_BUILDER, raws, decoder)
    plan = ColumnPlan(_FIELDS, settings_of(broker, protocol))
    try:
        messages = [
            message
            for batch in table.to_batches()
            for message in RowReader(plan, Identity(("w",), 0), _NEVER.get(protocol, {})).messages(batch)
        ]
        again = _table(messages, broker, protocol)
    except RowError as refused:
        if "column '" in str(refused):
            return len(raws)
        raise AssertionError(f"an error without a column: {refused}") from refused
    # Not times: others have some that Python has not.
    for first, second in zip(table.select(_SAME).to_pylist(), again.select(_SAME).to_pylist(), strict=True):
        first["replyTo"] = first["replyTo"] or None  # an empty one is none
        assert first == second, f"{broker} {protocol}: {first} {second}"
    return len(raws)


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Write and read rows until the deadline."""
    cases: Counter[str] = Counter()
    sources = {(AMQP_0_9_1, ""): makers["amqp091"], (AMQP_1_0, ""): makers["amqp10"]()}
    sources |= {(STOMP, broker): makers["stomp"](broker) for broker in BROKERS}
    while not cases or time.monotonic() < deadline:
        for broker, protocol in ENTRIES:
            cases[f"{protocol} to {broker}"] += _write_and_read(rng, broker, protocol)
            make = sources.get((protocol, "")) or sources[protocol, broker]
            for _ in range(_ROWS):
                cases[f"{protocol} of others to {broker}"] += _read_and_write(rng, broker, protocol, make)
    return cases
