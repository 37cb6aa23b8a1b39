"""What a write owes: every row is a message with its columns and a stable ID, confirmed, or an error that says why."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pika
import pyarrow as pa
import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MqError, RefusedError, RowError, WriteError
from pyspark_mq.sink import publisher
from pyspark_mq.sink.columns import COLUMNS, ColumnPlan
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.publisher import write_rows
from pyspark_mq.sink.settings import COPY_ID, NO_DESTINATION, NO_MESSAGE, OnUnwritable, Remarks, SinkSettings
from pyspark_mq.spark_source.schema import ALL_COLUMNS, BatchBuilder
from pyspark_mq.wire.endpoint import Tls
from pyspark_mq.wire.url import parse_urls
from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.ports import ReservedPort
from testbed.process import poll
from tests.support.certificates import Certificates
from tests.support.columns import built
from tests.support.entries import LiveEntry
from tests.support.sink import batch_of, fields_of
from tests.support.sockets import mute_address_first

pytestmark = [pytest.mark.contract("rows written"), pytest.mark.network, pytest.mark.writes]

MOMENT = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
#: A row with every column.
FULL: Mapping[str, Any] = {
    "body": b"\x00body\xff",
    "messageId": "m:1\n",
    "correlationId": "c",
    "replyTo": "r",
    "contentType": "text/plain",
    "contentEncoding": "gzip",
    "type": "t",
    "priority": 7,
    "timestamp": MOMENT,
    "appId": "app",
    "groupId": "g",
    "groupSequence": 3,
    "persistent": True,
    "properties": [("own", "täxt"), ("empty", ""), ("a:b", "c\nd")],
}


def settings_of(entry: LiveEntry, proxy: FaultProxy | None = None, **changes: Any) -> SinkSettings:
    own = {name: changes.pop(name) for name in ("username", "password", "connect_timeout_s") if name in changes}
    endpoint = entry.endpoint(urls=parse_urls(entry.url(proxy)), **own)
    return SinkSettings(endpoint, **{"queue": entry.queue, **changes})


def write(
    entry: LiveEntry,
    *batches: Sequence[Mapping[str, Any]],
    settings: SinkSettings | None = None,
    body: str = "binary",
    writer: Sequence[str] = ("query", "q", "1"),
    pause_s: float = 0.0,
    remarks: Remarks | None = None,
) -> int:
    """Write batches of rows as one task."""
    chosen = settings or settings_of(entry)
    names = [name for name in COLUMNS if any(name in row for rows in batches for row in rows)]
    fields = fields_of(names, body)

    def paused() -> Iterator[pa.RecordBatch]:
        for number, rows in enumerate(batches):
            time.sleep(pause_s if number else 0.0)
            yield batch_of(rows, fields)

    return write_rows(paused(), chosen, ColumnPlan(fields, chosen), Identity(writer, 0), remarks=remarks)


def bodies(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"body": b"row %d" % number} for number in range(start, start + count)]


def read(entry: LiveEntry, count: int, queue: str = "") -> list[dict[str, Any]]:
    """The messages of a queue as the source has them, with those of properties that the sink adds."""
    with entry.session(**({"queue": queue} if queue else {})) as session:
        session.take_any(count, window=count + 10)
        session.idle(0.3)
        rows: list[dict[str, Any]] = built(BatchBuilder(ALL_COLUMNS), session.raws, session.decoder).to_pylist()
        session.acknowledge(upto=session.tags()[-1])
    for row in rows:
        row["properties"] = dict(row["properties"])
    return rows


def id_of(entry: LiveEntry, row: Mapping[str, Any]) -> str:
    """The ID of a message, where a reader finds it."""
    native = entry.entry.broker == "rabbitmq"
    return str(row["messageId"] if native else row["properties"]["mq_id"])


def failure(kind: type[MqError], entry: LiveEntry, *batches: Sequence[Mapping[str, Any]], **how: Any) -> str:
    with pytest.raises(kind) as caught:
        write(entry, *batches, **how)
    text = str(caught.value)
    assert "guest:guest" not in text
    assert "admin:admin" not in text
    assert entry.url().partition("@")[2].rstrip("/") in text or entry.queue in text
    return text


# -- what arrives


def test_every_column_arrives_as_a_reader_has_it(entry: LiveEntry) -> None:
    assert write(entry, [FULL]) == 1
    (row,) = read(entry, 1)
    expected = {name: FULL[name] for name in ALL_COLUMNS.names if name in FULL}
    known = dict(FULL["properties"])
    if entry.entry.protocol == STOMP:
        # STOMP's ID is the broker's. What else a broker keeps to itself is in docs/sinks.md.
        expected.pop("messageId")
        for name in ("contentEncoding", "groupId", "groupSequence", "appId"):
            assert row[name] in (None, FULL[name])
            expected.pop(name)
        if entry.entry.broker == "artemis":
            expected.pop("timestamp")  # its own, whatever the header says
    elif entry.entry.broker == "activemq":
        expected.pop("messageId")
    assert known.items() <= row["properties"].items()
    expected.pop("properties")
    assert {name: row[name] for name in expected} == expected
    assert id_of(entry, row) == FULL["messageId"]
    if entry.entry.broker == "artemis" and entry.entry.protocol == AMQP_1_0:
        assert row["messageId"] == FULL["messageId"]


def test_texts_and_bytes_and_nothing(entry: LiveEntry) -> None:
    write(entry, [{"body": "täxt"}, {"body": ""}], body="string")
    write(entry, [{"body": b"\0\xff"}, {"body": b""}])
    assert [row["body"] for row in read(entry, 4)] == ["täxt".encode(), b"", b"\0\xff", b""]


def test_rows_arrive_in_order_over_windows_and_batches(entry: LiveEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "WINDOW_MESSAGES", 50)
    assert write(entry, bodies(300), bodies(200, 300)) == 500
    assert [row["body"] for row in read(entry, 500)] == [b"row %d" % number for number in range(500)]


def test_large_bodies_are_bounded_in_bytes(entry: LiveEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "WINDOW_BYTES", 1 << 20)
    sizes = [1, 3 << 20, 700_000, 700_000, 10]
    write(entry, [{"body": bytes([number]) * size} for number, size in enumerate(sizes)])
    assert [len(row["body"]) for row in read(entry, 5)] == sizes


def test_a_batch_of_large_rows_is_taken_in_parts(entry: LiveEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "_COPIED_BYTES", 10_000)
    sizes = [9_000, 1, 50_000, 3]
    assert write(entry, [{"body": bytes([number]) * size} for number, size in enumerate(sizes)]) == 4
    assert [len(row["body"]) for row in read(entry, 4)] == sizes


def test_what_has_expired_is_not_handed_out(entry: LiveEntry) -> None:
    now = datetime.now(timezone.utc)
    write(
        entry,
        [
            {"body": b"gone", "expiration": now - timedelta(seconds=9), "timestamp": MOMENT},
            {"body": b"kept", "expiration": now + timedelta(hours=1), "timestamp": MOMENT},
        ],
    )
    time.sleep(1.0)
    assert [row["body"] for row in read(entry, 1)] == [b"kept"]


def test_over_tls(entry: LiveEntry, certificates: Certificates) -> None:
    settings = settings_of(entry)
    tls = Tls(str(certificates.ca.cert_file))
    endpoint = replace(settings.endpoint, urls=parse_urls(entry.tls_url()), tls=tls)
    write(entry, bodies(300), settings=replace(settings, endpoint=endpoint))
    assert len(read(entry, 300)) == 300
    untrusted = replace(settings, endpoint=replace(endpoint, tls=Tls()))
    with pytest.raises(RefusedError, match=r"tls\.caFile"):
        write(entry, bodies(1), settings=untrusted)


def test_a_property_without_a_value(entry: LiveEntry) -> None:
    write(entry, [{"body": b"x", "properties": [("nothing", None), ("own", "x")]}])
    (row,) = read(entry, 1)
    assert row["properties"]["own"] == "x"
    assert row["properties"].get("nothing") is None
    assert ("nothing" in row["properties"]) == (entry.entry.protocol != STOMP)


def test_a_task_that_is_run_again_writes_the_same_ids(entry: LiveEntry) -> None:
    rows = [*bodies(20), *bodies(5)]
    write(entry, rows)
    first = Counter(id_of(entry, row) for row in read(entry, 25))
    write(entry, rows[::-1])
    assert len(first) == 25
    if entry.entry.broker == "artemis":
        assert entry.total() == 0, "it drops copies"
    else:
        assert Counter(id_of(entry, row) for row in read(entry, 25)) == first
    write(entry, rows, writer=("query", "q", "2"))
    assert not set(first) & {id_of(entry, row) for row in read(entry, 25)}


@pytest.mark.protocols(AMQP_1_0, STOMP)
def test_a_name_with_a_wildcard_is_refused_before_artemis_remembers_its_messages(entry: LiveEntry) -> None:
    if entry.entry.broker != "artemis":
        pytest.skip("of Artemis")
    rows = [{"body": b"x", "queue": f"{entry.queue}.#"}]
    with pytest.raises(RowError, match="has a wildcard"):
        write(entry, rows, settings=settings_of(entry, queue=None))


def test_copies_of_rows_are_dropped_by_artemis_and_rows_of_another_write_are_not(entry: LiveEntry) -> None:
    rows = [*bodies(20), *bodies(5), *({"body": b"own", "messageId": f"m{number}"} for number in range(5))]
    for writer in ("1", "1", "2"):
        write(entry, rows[::-1] if writer == "1" else rows, writer=("query", "q", writer))
    assert len(read(entry, entry.total())) == (60 if entry.entry.broker == "artemis" else 90)


def test_no_row_is_no_connection(entry: LiveEntry) -> None:
    nowhere = replace(settings_of(entry).endpoint, urls=parse_urls("amqp://127.0.0.1:1/"), connect_timeout_s=0.5)
    settings = replace(settings_of(entry), endpoint=nowhere)
    plan = ColumnPlan(fields_of(["body"]), settings)
    for batches in ([], [batch_of([], fields_of(["body"]))]):
        assert write_rows(batches, settings, plan, Identity(("w",), 0)) == 0


def test_rows_name_their_own_queues(entry: LiveEntry) -> None:
    queues = [f"{entry.queue}-{number}" for number in range(3)]
    for queue in queues:
        entry.declare(queue)
    try:
        rows = [{"body": b"%d" % number, "queue": queues[number % 3]} for number in range(30)]
        write(entry, rows, settings=settings_of(entry, queue=None))
        for number, queue in enumerate(queues):
            assert [row["body"] for row in read(entry, 10, queue)] == [b"%d" % one for one in range(number, 30, 3)]
    finally:
        for queue in queues:
            entry.node.delete(queue)


@pytest.mark.protocols(AMQP_1_0)
def test_more_destinations_than_links_at_a_time(entry: LiveEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark_mq.sink import amqp10

    held: list[int] = []

    class Counted(amqp10.Amqp10Publisher):
        """Count the links that proton has at the end, when the broker has had time to close its side of them."""

        def links(self) -> int:
            count, link = 0, self._connection.proton.link_head(0)
            while link is not None:
                count, link = count + 1, link.next(0)
            return count

        def close(self) -> None:
            self._connection.until(lambda: self.links() <= 2, time.monotonic() + 20)
            held.append(self.links())
            super().close()

    monkeypatch.setattr(amqp10, "_LINKS_MAX", 2)
    monkeypatch.setattr(amqp10, "Amqp10Publisher", Counted)
    queues = [f"{entry.queue}-{number}" for number in range(5)]
    for queue in queues:
        entry.declare(queue)
    try:
        rows = [{"body": b"%d" % number, "queue": queues[number % 5]} for number in range(20)]
        assert write(entry, rows, settings=settings_of(entry, queue=None)) == 20
        assert [entry.node.counts(queue).total for queue in queues] == [4] * 5
        assert held
        assert max(held) <= 2
    finally:
        for queue in queues:
            entry.node.delete(queue)


def test_a_name_in_properties_adds_no_header_of_its_own(entry: LiveEntry) -> None:
    other = f"{entry.queue}-other"
    entry.declare(other)
    address = other if entry.entry.broker == "artemis" else f"/queue/{other}"
    names = [f"a\ndestination:{address}", f"b\r\ndestination:{address}", "c:d", "e\\nf", "g\n\nbody"]
    try:
        write(entry, [{"body": b"x", "properties": [(name, f"v\ndestination:{address}") for name in names]}])
        (row,) = read(entry, 1)
        assert set(names) <= set(row["properties"])
        assert entry.node.counts(other).total == 0
    finally:
        entry.node.delete(other)


@pytest.mark.parametrize("name", ["JMSExpiration", "JMSDeliveryMode", "JMSPriority"])
def test_a_property_with_the_name_of_a_header_is_none_or_an_error(entry: LiveEntry, name: str) -> None:
    rows = [{"body": b"x", "properties": [(name, "5")]}]
    if entry.entry.broker == "activemq":
        # It would end the message, or not keep it over a restart.
        with pytest.raises(RowError, match=f"has the name '{name}'"):
            write(entry, rows)
        assert entry.total() == 0
        return
    write(entry, rows)
    (row,) = read(entry, 1)
    assert row["properties"][name] == "5"


@pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0)
def test_an_exchange_routes_by_key(entry: LiveEntry) -> None:
    if not isinstance(entry.node, RabbitNode):
        pytest.skip("only RabbitMQ has exchanges")
    exchange = f"{entry.queue}/ex änge"
    with entry.node._channel() as channel:
        channel.exchange_declare(exchange, "direct")
        channel.queue_bind(entry.queue, exchange, "a/key")
        channel.queue_bind(entry.queue, exchange, "")
    write(entry, bodies(1), settings=settings_of(entry, queue=None, exchange=exchange, routing_key="a/key"))
    rows = [{"body": b"own", "routingKey": "a/key"}, {"body": b"none"}]
    write(entry, rows, settings=settings_of(entry, queue=None, exchange=exchange))
    write(entry, [{**rows[0], "exchange": exchange}], settings=settings_of(entry, queue=None))
    assert [row["body"] for row in read(entry, 4)] == [b"row 0", b"own", b"none", b"own"]
    unroutable = settings_of(entry, queue=None, exchange=exchange, routing_key="nowhere")
    assert (
        "routingKey" in failure(WriteError, entry, bodies(3), settings=unroutable) or entry.entry.protocol == AMQP_1_0
    )
    missing = settings_of(entry, queue=None, exchange="missing")
    assert "exchange 'missing'" in failure(DestinationError, entry, bodies(1), settings=missing)
    with entry.node._channel() as channel:
        channel.exchange_delete(exchange)


@pytest.mark.protocols(AMQP_1_0, STOMP)
def test_a_topic_reaches_its_subscriptions(entry: LiveEntry) -> None:
    if entry.entry.broker == "rabbitmq":
        pytest.skip("its topics are exchanges")
    topic = entry.topic()
    with entry.session(queue=None, topic=topic) as session:
        session.consume(10)
        session.idle(0.5)
        write(entry, bodies(3), settings=settings_of(entry, queue=None, topic=topic))
        assert session.take(3, window=10) == ["row 0", "row 1", "row 2"]


@pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0)
def test_a_direct_reply_reaches_its_asker_and_nobody_once_that_is_gone(entry: LiveEntry) -> None:
    if not isinstance(entry.node, RabbitNode):
        pytest.skip("of RabbitMQ")
    if entry.entry.protocol == AMQP_1_0 and entry.entry.version == "4.0":
        pytest.skip("RabbitMQ 4.0 knows direct replies over AMQP 0-9-1 only")
    connection = pika.BlockingConnection(pika.URLParameters(entry.node.url(AMQP_0_9_1)))
    channel = connection.channel()
    answers = channel.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=30)
    next(channel.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=0.1))
    asked = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", message_id="m", correlation_id="c", delivery_mode=2)
    channel.basic_publish("", entry.queue, b"ask", asked)
    (request,) = read(entry, 1)
    rows = [{"body": b"re", "queue": request["replyTo"], "correlationId": request["correlationId"]}]
    settings = settings_of(entry, queue=None)
    assert write(entry, rows, settings=settings) == 1
    _, properties, body = next(answers)
    assert (properties.correlation_id, body) == ("c", b"re")
    connection.close()
    assert poll(lambda: _written_to_nobody(entry, rows, settings), 10)


def _written_to_nobody(entry: LiveEntry, rows: Sequence[Mapping[str, Any]], settings: SinkSettings) -> bool:
    """As RabbitMQ defines it, an answer that is too late is dropped; over AMQP 1.0 the asker's queue is missing."""
    try:
        return write(entry, rows, settings=settings) == 1
    except DestinationError as gone:
        return entry.entry.protocol == AMQP_1_0 and "does not exist" in str(gone)


@pytest.mark.parametrize("name", ["/exchanges/amq.fanout", "/queue/x", "/amq/queue/x", "/exchange/e/k"])
def test_a_row_names_no_exchange_by_an_address(entry: LiveEntry, name: str) -> None:
    if entry.entry.broker != "rabbitmq":
        pytest.skip("of RabbitMQ")
    rows = [{"body": b"x", "queue": name}]
    with pytest.raises(RowError, match=r"an address of AMQP 1\.0 or STOMP"):
        write(entry, rows, settings=settings_of(entry, queue=None))


def test_rows_that_cannot_be_written_are_dropped_if_that_is_wanted(entry: LiveEntry) -> None:
    gone = {"rabbitmq": f"{entry.queue}-gone", "activemq": "temp-queue://ID:gone-1:2:3"}.get(entry.entry.broker)
    good = [{"body": b"good %d" % number, "queue": entry.queue, "replyTo": ""} for number in range(600)]
    bad = [
        {"body": None, "queue": entry.queue},
        {"body": b"x", "queue": ""},
        {"body": b"x", "queue": entry.queue, "properties": [("", "x")]},
    ]
    lost = [{"body": b"x", "queue": gone}] * 3 if gone else []
    if entry.entry.protocol == AMQP_0_9_1:
        lost[2] = {"body": b"x", "queue": "ü" * 127}  # RabbitMQ fails where it would say that it is missing
    elif entry.entry.protocol == AMQP_1_0 and entry.entry.broker != "rabbitmq":
        odd = (f"{entry.queue}\nodd", "n" * 60_000, f"{entry.queue}\nodd")
        lost = [{"body": b"x", "queue": name} for name in odd]
    for one in (*bad, *lost[:1], *lost[2:]):
        with pytest.raises(MqError) as refusal:
            write(entry, [one], settings=settings_of(entry, queue=None))
        assert "'onUnwritableRow'" in str(refusal.value) or entry.entry.protocol == STOMP
    remarks, settings = Remarks(), settings_of(entry, queue=None, on_unwritable=OnUnwritable.DROP)
    rows = [*good[:200], *bad, *lost[:1], *good[200:400], *lost[1:2], *good[400:], *lost[2:]]
    assert write(entry, rows, bad[:2], settings=settings, remarks=remarks) == 600
    assert remarks.dropped == Counter({NO_MESSAGE: 5, **({NO_DESTINATION: 3} if lost else {})})
    assert remarks.first
    if entry.entry.protocol == AMQP_1_0 and entry.entry.version == "4.0":
        # A missing queue ends the session there, so what was not confirmed is sent again, with the same IDs.
        found = list({id_of(entry, row): row for row in read(entry, entry.total())}.values())
    else:
        found = read(entry, 600)
    assert sorted(row["body"] for row in found) == sorted(row["body"] for row in good)
    assert poll(lambda: entry.total() == 0, 30)


def test_properties_that_steer_a_broker_are_left_out_unless_they_are_asked_for(entry: LiveEntry) -> None:
    steering = entry.broker.steering
    name = {"rabbitmq": "x-delay", "activemq": "AMQ_SCHEDULED_REPEAT", "artemis": "_AMQ_LVQ_NAME"}[entry.entry.broker]
    rows = [{"body": b"x", "properties": [*((one, "1000") for one in sorted(steering)), ("own", "1")]}]
    remarks = Remarks()
    assert write(entry, rows, remarks=remarks) == 1
    assert remarks.properties == steering - {COPY_ID}
    (row,) = read(entry, 1)
    assert row["properties"].keys().isdisjoint(steering - {COPY_ID})
    assert row["properties"]["own"] == "1"
    assert poll(lambda: entry.total() == 0, 30)
    asked = settings_of(entry, broker_properties=frozenset({name}))
    assert write(entry, [{"body": b"x", "properties": [(name, "1000")]}], settings=asked) == 1
    with entry.session() as session:
        session.take_any(1, window=10)
        (raw,) = session.raws
        assert name in repr(raw) or entry.entry.broker == "artemis"  # whose own names the source does not show
        session.acknowledge(upto=session.tags()[-1])


@pytest.mark.protocols(AMQP_0_9_1)
def test_rows_to_exchanges_that_are_not_there_are_dropped_if_that_is_wanted(entry: LiveEntry) -> None:
    rows = [
        {"body": b"%d" % number, "exchange": "nowhere" if number % 10 == 5 else "amq.direct", "routingKey": entry.queue}
        for number in range(100)
    ]
    assert isinstance(entry.node, RabbitNode)
    with entry.node._channel() as channel:
        channel.queue_bind(entry.queue, "amq.direct", entry.queue)
    remarks, settings = Remarks(), settings_of(entry, queue=None, on_unwritable=OnUnwritable.DROP)
    assert write(entry, rows, settings=settings, remarks=remarks) == 90
    assert remarks.dropped == Counter({NO_DESTINATION: 10})
    assert "no exchange 'nowhere'" in remarks.first
    found = {row["body"] for row in read(entry, entry.total())}
    assert found == {row["body"] for row in rows if row["exchange"] != "nowhere"}


# -- what does not


def test_a_missing_queue_is_an_error_or_made(entry: LiveEntry) -> None:
    name = f"{entry.queue}-missing"
    settings = settings_of(entry, queue=name)
    if entry.entry.broker == "rabbitmq":
        text = failure(DestinationError, entry, bodies(3), settings=settings)
        assert f"queue '{name}' does not exist" in text
        assert "option" in text
        kinds = (WriteError, DestinationError)
        rows = [{"body": b"x", "queue": name}]
        with pytest.raises(kinds, match=f"'{name}' does not exist"):
            write(entry, rows, settings=settings_of(entry, queue=None))
        return
    write(entry, bodies(3), settings=settings)
    assert len(read(entry, 3, name)) == 3
    entry.node.delete(name)


def test_a_wrong_password_is_refused_without_being_shown(entry: LiveEntry) -> None:
    wrong = settings_of(entry, username="nobody", password="s3cret-pw")
    text = failure(RefusedError, entry, bodies(1), settings=wrong)
    assert "'username' and 'password'" in text
    assert "s3cret-pw" not in text


def test_who_may_only_read_may_not_write(entry: LiveEntry) -> None:
    with entry.reader() as login:
        # Over STOMP Artemis does not say why.
        silent = (entry.entry.broker, entry.entry.protocol) == ("artemis", STOMP)
        kind = WriteError if silent else DestinationError
        text = failure(kind, entry, bodies(10), settings=settings_of(entry, **login))
    assert f"user '{login['username']}'" in text
    assert "permission to write" in text
    assert entry.total() == 0


def test_nobody_there_is_said_within_the_time(entry: LiveEntry) -> None:
    with entry.proxy() as proxy:
        settings = settings_of(entry, proxy, connect_timeout_s=1.5)
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError):
        write(entry, bodies(1), settings=settings)
    assert 1.0 <= time.monotonic() - began < 8.0


def test_a_proxy_without_a_broker_behind_it_is_nobody(entry: LiveEntry) -> None:
    """It resets each connection, at any moment of its opening."""
    with entry.proxy() as proxy, closing(ReservedPort()) as nobody:
        proxy.retarget(nobody.number)
        settings = settings_of(entry, proxy, connect_timeout_s=0.2)
        for _ in range(3):
            with pytest.raises(BrokerUnavailableError):
                write(entry, bodies(1), settings=settings)


def test_a_second_url_is_tried(entry: LiveEntry) -> None:
    settings = settings_of(entry)
    own = settings.endpoint.urls[0]
    endpoint = replace(settings.endpoint, urls=(replace(own, port=1), own))
    assert write(entry, bodies(3), settings=replace(settings, endpoint=endpoint)) == 3


def test_a_silent_host_leaves_time_for_the_next(entry: LiveEntry) -> None:
    with entry.proxy() as proxy:
        proxy.mute(new=True)
        settings = settings_of(entry, proxy, connect_timeout_s=6.0)
        endpoint = replace(settings.endpoint, urls=(settings.endpoint.urls[0], parse_urls(entry.url())[0]))
        assert write(entry, bodies(3), settings=replace(settings, endpoint=endpoint)) == 3


def test_a_queue_that_is_full_and_rejects_is_an_error(entry: LiveEntry) -> None:
    if not isinstance(entry.node, RabbitNode):
        pytest.skip("such queues are RabbitMQ's")
    full = f"{entry.queue}-full"
    quorum = entry.entry.kind == "quorum"
    entry.node.declare(full, quorum=quorum, arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    try:
        text = failure(WriteError, entry, bodies(2_000), settings=settings_of(entry, queue=full))
        assert "full" in text
        assert full in text
    finally:
        entry.node.delete(full)


def test_a_message_that_is_too_large_is_an_error(entry: LiveEntry) -> None:
    if not isinstance(entry.node, RabbitNode):
        pytest.skip("the limit is set while RabbitMQ runs")
    own = entry.node.eval("persistent_term:get(max_message_size, none).")
    entry.node.eval(
        "application:set_env(rabbit, max_message_size, 10000), persistent_term:put(max_message_size, 10000)."
    )
    try:
        text = failure(WriteError, entry, [{"body": b"x"}, {"body": bytes(20_000)}])
        assert "larger than the broker accepts" in text
        assert "'body'" in text
    finally:
        limit_to(entry.node, int(own) if own.isdecimal() else 128 << 20)


def limit_to(node: RabbitNode, size: int) -> None:
    """Set the largest message for channels and sessions that are opened later."""
    node.eval(f"application:set_env(rabbit, max_message_size, {size}), persistent_term:put(max_message_size, {size}).")


# -- connections that end, and brokers that wait


def test_a_connection_that_is_cut_leaves_only_copies_with_equal_ids(entry: LiveEntry) -> None:
    rows = bodies(3_000)
    with entry.proxy() as proxy:
        for upto in (30_000, 150_000):
            cut = proxy.cut_after(upto, Direction.TO_BROKER)
            assert write(entry, rows, settings=settings_of(entry, proxy)) == 3_000
            assert cut.is_set()
    found = read(entry, entry.total())
    by_id = {id_of(entry, row): row["body"] for row in found}
    assert sorted(by_id.values()) == sorted(row["body"] for row in rows)
    assert all(by_id[id_of(entry, row)] == row["body"] for row in found)


def test_a_write_outlives_a_broker_that_is_killed_and_started_again(
    entry: LiveEntry, caplog: pytest.LogCaptureFixture
) -> None:
    rows = bodies(15_000)
    with entry.proxy() as proxy:
        cut = proxy.cut_after(300_000, Direction.TO_BROKER)
        killer = threading.Thread(target=lambda: cut.wait(60) and entry.kill_and_start())
        killer.start()
        assert write(entry, rows, settings=settings_of(entry, proxy)) == 15_000
        killer.join()
    assert "Reconnecting, to send" in caplog.text
    with entry.session() as session:
        session.consume(20_000)
        assert session.turn(lambda: len(session.raws) >= 15_000 and len(set(session.bodies())) == 15_000)
        found = built(BatchBuilder(ALL_COLUMNS), session.raws, session.decoder).to_pylist()
    # Copies have equal IDs.
    assert len({id_of(entry, {**row, "properties": dict(row["properties"])}) for row in found}) == 15_000


def test_a_connection_that_falls_silent_is_replaced(entry: LiveEntry, caplog: pytest.LogCaptureFixture) -> None:
    with entry.proxy() as proxy:
        found = settings_of(entry, proxy)
        settings = replace(found, endpoint=replace(found.endpoint, heartbeat_s=2.0))
        fields = fields_of(["body"])

        def batches() -> Iterator[pa.RecordBatch]:
            yield batch_of(bodies(1), fields)
            proxy.mute()
            yield batch_of(bodies(10, 1), fields)

        assert write_rows(batches(), settings, ColumnPlan(fields, settings), Identity(("w",), 0)) == 11
    assert "Reconnecting, to send 10 message(s) again" in caplog.text
    assert {row["body"] for row in read(entry, entry.total())} == {row["body"] for row in bodies(11)}


def test_a_write_gives_up_a_broker_that_stays_away(entry: LiveEntry) -> None:
    with entry.proxy() as proxy:
        cut = proxy.cut_after(30_000, Direction.TO_BROKER)
        threading.Thread(target=lambda: cut.wait(60) and proxy.refuse()).start()
        found = settings_of(entry, proxy)
        endpoint = replace(found.endpoint, reconnect_timeout_s=3.0)
        began_s = time.monotonic()
        with pytest.raises(BrokerUnavailableError):
            write(entry, bodies(3_000), settings=replace(found, endpoint=endpoint))
        assert cut.is_set()
        assert 1 < time.monotonic() - began_s < 30


def test_a_connection_that_never_confirms_anything_is_not_replaced_for_ever(entry: LiveEntry) -> None:
    with entry.proxy() as proxy:
        found = settings_of(entry, proxy)
        endpoint = replace(found.endpoint, reconnect_timeout_s=4.0)

        def cut_again() -> None:
            with suppress(RuntimeError):  # the proxy is closed
                while proxy.cut_after(20_000, Direction.TO_BROKER).wait(10):
                    pass

        threading.Thread(target=cut_again).start()
        with pytest.raises(BrokerUnavailableError):
            write(entry, [{"body": b"x" * 30_000}], settings=replace(found, endpoint=endpoint))


def test_an_address_that_accepts_and_says_nothing_leaves_time_for_the_next(
    entry: LiveEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with entry.proxy() as proxy, mute_address_first(proxy, monkeypatch) as host:
        urls = parse_urls(entry.url(proxy).replace("127.0.0.1", host))
        found = settings_of(entry, proxy)
        endpoint = replace(found.endpoint, urls=urls, connect_timeout_s=6.0)
        assert write(entry, bodies(2), settings=replace(found, endpoint=endpoint)) == 2
    assert len(read(entry, 2)) == 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    entry: LiveEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    connect = publisher.connect
    monkeypatch.setattr(publisher, "connect", lambda settings, **how: opened.append(1) or connect(settings, **how))
    write(entry, bodies(2), bodies(2, 2), pause_s=0.05)
    assert len(opened) == 1
    monkeypatch.setattr(publisher, "_GAP_S", 0.2)
    write(entry, bodies(2, 4), bodies(2, 6), pause_s=0.5)
    assert len(opened) == 3
    assert len(read(entry, 8)) == 8


def test_a_broker_that_says_nothing_is_left_after_the_time(entry: LiveEntry, caplog: pytest.LogCaptureFixture) -> None:
    with entry.proxy() as proxy:
        settings = settings_of(entry, proxy, send_timeout_s=2.0)

        muted = threading.Timer(0.5, lambda: proxy.mute(Direction.TO_CLIENT))
        fields = fields_of(["body"])

        def batches() -> Iterator[pa.RecordBatch]:
            yield batch_of(bodies(1), fields)
            muted.start()
            muted.join()
            yield batch_of(bodies(10, 1), fields)

        began = time.monotonic()
        assert write_rows(batches(), settings, ColumnPlan(fields, settings), Identity(("w",), 0)) == 11
        assert 2.0 < time.monotonic() - began < 12.0
    assert "nothing was heard from the broker within sendTimeout=2s" in caplog.text


@pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0)
def test_a_write_waits_for_a_broker_with_an_alarm_and_says_so(
    entry: LiveEntry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not isinstance(entry.node, RabbitNode):
        pytest.skip("of RabbitMQ")
    monkeypatch.setattr(publisher, "_BLOCKED_S", 1.0)
    caplog.set_level(logging.WARNING, "pyspark_mq")
    settings = settings_of(entry, send_timeout_s=3.0)
    entry.node.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        time.sleep(1.0)
        done: list[int] = []
        writing = threading.Thread(target=lambda: done.append(write(entry, bodies(100), settings=settings)))
        writing.start()
        assert poll(lambda: "is not accepting messages at the moment" in caplog.text, 20), caplog.text
        time.sleep(3.5)
        assert not done
        assert writing.is_alive()
    finally:
        entry.node.ctl("set_vm_memory_high_watermark", "0.6")
    writing.join(60)
    assert done == [100]
    assert len(read(entry, 100)) == 100


@pytest.mark.protocols(AMQP_1_0)
def test_a_write_notes_once_a_process_what_readers_over_other_protocols_find(
    entry: LiveEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_mq.sink.publisher._ASKED", set())
    first, second = Remarks(), Remarks()
    assert write(entry, bodies(3), remarks=first) == write(entry, bodies(3, 3), remarks=second) == 3
    assert ("transport.transformer=jms" in first.reading) == (entry.entry.broker == "activemq")
    assert second.reading == ""
    assert [row["body"] for row in read(entry, 6)] == [b"row %d" % number for number in range(6)]
    assert poll(lambda: entry.total() == 0, 30)
