"""Messages of real JMS clients: the broker's own, and Qpid JMS. Each kind, with everything JMS can put on it."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.brokers.facts import version_of
from pyspark_mq.cli.main import main
from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import MessageError
from pyspark_mq.spark_source.schema import ALL_COLUMNS, BatchBuilder
from testbed.process import NodeError, poll
from tests.contract.test_sink import read, settings_of, write
from tests.plugin import missing
from tests.support import jms
from tests.support.columns import built
from tests.support.effort import each_of
from tests.support.engine import ReaderError
from tests.support.entries import LiveEntry

pytestmark = pytest.mark.protocols(AMQP_1_0, STOMP)
READING = pytest.mark.contract("JMS messages read")
CLIENTS = pytest.mark.parametrize("client", ["own", "qpid"])

BODIES = {"text": "täxt €".encode(), "bytes": bytes([0, 1, 2, 255])}
JAVA_SERIALISATION = b"\xac\xed\x00\x05"


def sent(entry: LiveEntry, client: str) -> list[dict[str, Any]]:
    if entry.is_plugin:
        pytest.skip("no JMS: Qpid JMS waits for ever for an answer of RabbitMQ 3's plugin")
    if entry.entry.broker == "rabbitmq" and client == "own":
        pytest.skip("RabbitMQ has no JMS client of its own for this protocol")
    if entry.entry.protocol == STOMP and client == "qpid" and entry.entry.broker == "activemq":
        pytest.skip("Classic gives STOMP clients the encoded AMQP message as its body: read those over AMQP 1.0")
    if entry.entry.protocol == STOMP and entry.entry.broker == "rabbitmq":
        pytest.skip("RabbitMQ gives STOMP clients the encoded AMQP section as the body: read those over AMQP 1.0")
    try:
        return jms.send(entry.node, entry.queue if client == "own" else entry.amqp10_address(), client)
    except NodeError as absent:
        if "not installed" in str(absent):
            missing(str(absent))
        raise


#: By the name of the matrix entry and the client.
_RECEIVED: dict[tuple[str, str], tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}


def received(entry: LiveEntry, client: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what a client told of its messages, and their rows. It sends once for all tests of a matrix entry."""
    key = entry.entry.name, client
    if key not in _RECEIVED:
        told = sent(entry, client)
        if entry.entry.protocol == AMQP_1_0:
            found = rows(entry, len(jms.KINDS))
            assert poll(lambda: entry.total() == 0, 30)
        else:
            found = rows(entry, 2)  # of maps, streams and objects something may follow, or nothing
        _RECEIVED[key] = told, found
    return _RECEIVED[key]


def rows(entry: LiveEntry, count: int) -> list[dict[str, Any]]:
    """All columns of the messages in the queue, and their IDs."""
    with entry.session() as session:
        session.take_any(count, window=100)
        session.idle(0.5)
        decoder, raws = session.decoder, session.raws
        found = [{name: make([raw])[0] for name, make in decoder.columns.items()} for raw in raws]
        ids = decoder.ids(raws, IdSource("message-id"))
        for row, key, body in zip(found, ids, decoder.bodies(raws), strict=True):
            row |= {"id": key, "body": body}
        session.acknowledge(upto=session.tags()[-1])
        return found


@READING
@CLIENTS
def test_every_column_is_right(entry: LiveEntry, client: str) -> None:
    told, (row, *_) = received(entry, client)
    assert row["body"] == BODIES["text"]
    assert row["correlationId"] == jms.CORRELATION_ID
    assert str(row["replyTo"]).rpartition("/")[2] == jms.REPLY_TO
    assert (row["type"], row["priority"]) == (jms.TYPE, jms.PRIORITY)
    assert row["timestamp"] == told[0]["timestamp"] * 1000
    assert row["expiration"] == told[0]["expiration"] * 1000
    assert row["redelivered"] is False
    properties = dict(row["properties"])
    assert {name: properties.get(name) for name in jms.PROPERTIES} == jms.PROPERTIES
    if entry.entry.protocol == AMQP_1_0:
        assert properties["JMSXGroupID"] == jms.GROUP_ID
        assert row["id"] == told[0]["id"]


def headed(entry: LiveEntry, *properties: tuple[str, str]) -> None:
    """Send texts with a property each, of names that are headers of STOMP."""
    if entry.entry.broker != "activemq":
        pytest.skip("only the JMS client of ActiveMQ Classic takes such names, and only that broker puts them first")
    texts(entry, *properties)


def texts(entry: LiveEntry, *properties: tuple[str, str]) -> None:
    try:
        jms.send(entry.node, entry.queue, "own", *properties)
    except NodeError as absent:
        if "not installed" in str(absent):
            missing(str(absent))
        raise


@READING
@pytest.mark.protocols(STOMP)
def test_a_property_that_hides_the_id_makes_no_two_messages_one(entry: LiveEntry) -> None:
    headed(entry, ("message-id", "the same"), ("message-id", "the same"), ("colour", "red"))
    with entry.session() as session:
        session.take(3)
        ids = session.decoder.ids(session.raws, IdSource("message-id"))
        assert ids[:2] == [None, None]
        assert str(ids[2]).startswith("ID:")
        assert session.decoder.hidden(session.raws) == ["the same"] * 2
        # Under another `messageIdFrom` they are messages like any other.
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)
    headed(entry, ("message-id", "the same"))
    with entry.engine() as engine, pytest.raises(ReaderError, match=r"'the same'.*another protocol"):
        engine.batch()
    assert poll(lambda: entry.counts().ready == 1, 30)
    with entry.engine(messageIdFrom="content") as engine:
        assert engine.batch() == 1


@READING
@pytest.mark.protocols(STOMP)
@pytest.mark.parametrize("length", each_of(["3", "1000000", "three"], 3))
def test_a_property_that_hides_the_length_makes_one_message_unreadable(entry: LiveEntry, length: str) -> None:
    headed(entry, ("content-length", length), ("colour", "red"))
    with entry.session(heartbeat_s=1.0) as session, pytest.raises(MessageError, match=r"'ID:.*body|'ID:.*length"):
        session.take(1)
    assert poll(lambda: entry.counts().ready == 2, 30)
    with entry.session(heartbeat_s=1.0, keeps_unreadable=True) as session:
        session.take_any(2)
        assert session.decoder.bodies(session.raws) == [b"text 0", b"text 1"]
        (odd,) = session.decoder.unreadable(session.raws)
        assert odd.known["message-id"].startswith("ID:")
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@READING
@pytest.mark.protocols(STOMP)
@pytest.mark.parametrize("text", each_of(["a\0b", "a\0\nb", "\0", "a\0Most", "a\0\nMESSAGES\n\n\0"]))
def test_a_text_with_a_nul_is_whole_or_unreadable_and_never_cut(entry: LiveEntry, text: str) -> None:
    if entry.entry.broker == "rabbitmq":
        pytest.skip("RabbitMQ has no JMS client of its own for this protocol")
    texts(entry, ("text", text.replace("\0", "\\0")), ("text", "good"))
    with entry.session(keeps_unreadable=True) as session:
        session.take_any(2)
        # Artemis tells the length of a text, Classic does not. Classic 5 has no NUL in it: it is in Java's own UTF-8.
        odd = [one.tag for one in session.decoder.unreadable(session.raws)]
        javas = text.encode().replace(b"\0", b"\xc0\x80")
        expected = {"artemis": (text.encode(), []), "activemq": (text.encode(), session.tags()[:1])}[entry.entry.broker]
        assert ((session.decoder.bodies(session.raws)[0]), odd) in (expected, (javas, []))
        assert session.decoder.bodies(session.raws)[1] == b"good"
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


FRAMES = [
    "a\0\nMESSAGE\nack:1\nmessage-id:ID:fake-1:1:1:1:1\nsubscription:000000\n\nfake",
    "a\0\nMESSAGE\nx:y",
    "a\0\nERROR\nmessage:fake\n\nfake\0\n",
    "a\0RECEIPT\nreceipt-id:proved\n\n",
    "a\0\nCONNECTED\nversion:1.2\n\n",
]


@READING
@pytest.mark.protocols(STOMP)
@pytest.mark.parametrize("text", each_of(FRAMES))
def test_a_frame_in_a_text_is_part_of_the_text(entry: LiveEntry, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    if entry.entry.broker == "rabbitmq":
        pytest.skip("RabbitMQ has no JMS client of its own for this protocol")
    framed = ("text", text.replace("\0", "\\0"))
    texts(entry, framed, ("text", "good"), framed)
    with entry.session(keeps_unreadable=True) as session:
        session.take_any(3)
        odd = {one.tag: one for one in session.decoder.unreadable(session.raws)}
        bodies = session.decoder.bodies(session.raws)
        assert bodies[1] == b"good"
        # As for texts with a NUL.
        if bodies[0] == text.encode() and entry.entry.broker == "activemq":
            assert list(odd) == [session.tags()[0], session.tags()[2]]
            assert all(one.known["message-id"].startswith("ID:") for one in odd.values())
        else:
            assert odd == {}
        assert bodies[0] == bodies[2]
        assert bodies[0].replace(b"\xc0\x80", b"\0") == text.encode()
    assert poll(lambda: entry.counts().ready == 3, 30)
    options = [f"{name}={value}" for name, value in entry.options(onUnreadableMessage="row").items()]
    assert main(["peek", "--json", *options]) == 0
    shown = [json.loads(line)["body"] for line in capsys.readouterr().out.splitlines()]
    assert "good" in shown
    assert len(shown) == 3
    with entry.engine(onUnreadableMessage="reject") as engine:
        engine.drain(1 if odd else 3)
        assert poll(lambda: engine.trigger() == 0 and entry.total() == 0, 30)


@READING
@pytest.mark.protocols(STOMP)
def test_properties_of_the_names_of_headers_lose_nothing(entry: LiveEntry) -> None:
    names = ("ack", "subscription", "destination", "receipt", "redelivered", "persistent", "priority", "timestamp",
             "expires", "correlation-id", "reply-to", "type", "JMS_AMQP_NATIVE")  # fmt: skip
    headed(entry, *((name, "odd") for name in names))
    with entry.session() as session:
        assert session.take(len(names)) == [f"text {number}" for number in range(len(names))]
        ids = session.decoder.ids(session.raws, IdSource("message-id"))
        assert None not in ids
        assert len(set(ids)) == len(names)
        for make in session.decoder.columns.values():
            make(session.raws)
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@READING
@CLIENTS
def test_text_and_bytes_are_bodies_and_every_message_has_an_id(entry: LiveEntry, client: str) -> None:
    _, found = received(entry, client)
    assert [row["body"] for row in found[:2]] == [BODIES["text"], BODIES["bytes"]]
    ids = [row["id"] for row in found]
    assert all(ids)
    assert len(set(ids)) == len(ids)


@READING
@CLIENTS
def test_maps_and_streams_become_json_and_objects_are_passed_through(entry: LiveEntry, client: str) -> None:
    _, found = received(entry, client)
    if entry.entry.protocol == STOMP:
        pytest.skip("no broker sends maps, streams and objects over STOMP in a form of use: see docs/protocols.md")
    bodies = dict(zip(jms.KINDS, (row["body"] for row in found), strict=True))
    assert json.loads(bodies["map"]) == {"name": "value", "number": 5, "flag": True}
    assert json.loads(bodies["stream"]) == ["one", 2]
    # Never deserialised: what Java wrote is what the row has.
    assert bodies["object"].startswith(JAVA_SERIALISATION)
    assert found[-1]["contentType"] == "application/x-java-serialized-object"


#: "AMQP JMS Mapping", 3.2.1.
JMS_KINDS = {"object": "1", "map": "2", "bytes": "3", "stream": "4", "text": "5"}


@READING
@CLIENTS
@pytest.mark.protocols(AMQP_1_0)
def test_the_kinds_of_jms_messages_are_told_apart(entry: LiveEntry, client: str) -> None:
    _, found = received(entry, client)
    kinds = [dict(row["properties"]).get("x-opt-jms-msg-type") for row in found]
    if entry.entry.broker == "activemq" and client == "own":
        assert kinds == [None] * len(jms.KINDS)
        pytest.skip("ActiveMQ Classic does not say the kind of what came over OpenWire")
    assert kinds == [JMS_KINDS[kind] for kind in jms.KINDS]


# -- request and reply


def shown(entry: LiveEntry, client: str, text: str) -> str:
    """What a client makes of a text that is written over the entry's protocol."""
    # As delivered, Classic hands OpenWire clients the encoded AMQP message (`transport.transformer=native`).
    encoded = (entry.entry.broker, entry.entry.protocol, client) == ("activemq", AMQP_1_0, "own")
    return "not a text" if encoded else text


def marks(entry: LiveEntry, client: str) -> list[tuple[str, str]]:
    """Properties of a text. The JMS client of RabbitMQ goes by a header, and not by the type of the content."""
    return [("JMSType", "TextMessage")] if (entry.entry.broker, client) == ("rabbitmq", "own") else []


def version(entry: LiveEntry) -> tuple[int, int]:
    return version_of(f"broker/{entry.node.version}")


def peer(entry: LiveEntry, what: str, client: str, *more: str) -> jms.Peer:
    if entry.entry.broker == "rabbitmq" and client == "qpid" and version(entry) < (4, 0):
        pytest.skip("Qpid JMS waits for ever for an answer of RabbitMQ 3's plugin")
    if what != "read" and (entry.entry.protocol, client) == (AMQP_0_9_1, "qpid"):
        pytest.skip("RabbitMQ gives AMQP 0-9-1 clients the encoded AMQP section as the body")
    if what != "read" and (entry.entry.broker, entry.entry.protocol, client) == ("activemq", STOMP, "qpid"):
        pytest.skip("a request of Qpid JMS cannot be settled over Classic's STOMP")
    try:
        return jms.Peer(what, entry.node, entry.queue if client == "own" else entry.amqp10_address(), client, *more)
    except NodeError as absent:
        missing(str(absent))
        raise


@CLIENTS
@pytest.mark.writes
@pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0, STOMP)
@pytest.mark.contract("JMS requests answered")
def test_an_answer_reaches_whoever_asked(entry: LiveEntry, client: str) -> None:
    broker = entry.entry.broker
    kinds = ["queue"]
    # The JMS client of RabbitMQ sends no ID, and only itself can write to its temporary queues. RabbitMQ 4.0 gives Qpid
    # JMS no temporary queue: it waits for ever.
    if broker != "rabbitmq" or (client == "qpid" and version(entry) >= (4, 3)):
        kinds += ["temp-queue"]
        # Over Artemis' STOMP a message's ID is a number of the broker's.
        if (broker, entry.entry.protocol) != ("artemis", STOMP):
            kinds += ["by-id"]
    if broker != "rabbitmq":
        kinds += ["topic", "temp-topic"]
    names = [f"{entry.queue}-{kind}" for kind in kinds]
    if broker == "rabbitmq":
        entry.declare(names[0])
    given = [word for kind, name in zip(kinds, names, strict=True) for word in (kind, name)]
    if client == "qpid" and broker == "rabbitmq":
        given[1] = f"/queues/{names[0]}"
    with closing(peer(entry, "ask", client, *given)) as asker:
        assert asker.line() == {"asked": len(kinds)}
        with entry.session() as session:
            session.take_any(len(kinds), window=100)
            requests = built(BatchBuilder(ALL_COLUMNS), session.raws, session.decoder).to_pylist()
            session.acknowledge(upto=session.tags()[-1])
        assert [row["replyTo"] for row in requests][:1] == [names[0]]
        answers = [
            {
                "body": f"re: {row['body'].decode()}",
                "queue": row["replyTo"],
                "correlationId": row["correlationId"] or row["messageId"],
                "properties": marks(entry, client),
            }
            for row in requests
        ]
        assert write(entry, answers, settings=settings_of(entry, queue=None), body="string") == len(kinds)
        for kind in kinds:
            text = shown(entry, client, f"re: ask {kind}")
            correlation = "its own ID" if kind == "by-id" else f"correlation {kind}"
            assert asker.line() == {"kind": kind, "text": text, "correlation": correlation, "more": False}
    entry.node.delete(names[0])


@CLIENTS
@pytest.mark.writes
@pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0, STOMP)
@pytest.mark.contract("JMS services asked")
def test_a_service_answers_to_where_a_row_wants_it(entry: LiveEntry, client: str) -> None:
    if (entry.entry.broker, entry.entry.protocol, client) == ("rabbitmq", AMQP_1_0, "own") and version(entry) < (4, 3):
        pytest.skip("before RabbitMQ 4.3, AMQP 0-9-1 clients get a reply-to of AMQP 1.0 as an address")
    wanted = [f"{entry.queue}-answers"]
    entry.declare(wanted[0])
    if entry.entry.broker != "rabbitmq":
        wanted.append(f"topic://{entry.queue}-answers-topic")
    rows = [
        {"body": f"ask {number}", "replyTo": to, "correlationId": f"c{number}", "properties": marks(entry, client)}
        for number, to in enumerate(wanted)
    ]
    with ExitStack() as stack:
        subscribed = None
        if len(wanted) > 1:
            subscribed = stack.enter_context(entry.session(queue=None, topic=f"{entry.queue}-answers-topic"))
            subscribed.consume(10)
            subscribed.idle(0.5)
        write(entry, rows, body="string")
        service = stack.enter_context(closing(peer(entry, "serve", client, str(len(wanted)))))
        for number, to in enumerate(wanted):
            if subscribed is not None:
                subscribed.idle(0.1)  # it has to send heartbeats meanwhile
            kind = "topic" if to.startswith("topic") else "queue"
            assert service.line() == {"text": shown(entry, client, f"ask {number}"), "kind": kind}
        if shown(entry, client, "") != "":
            return  # the service has no text to answer to
        (answer,) = read(entry, 1, wanted[0])
        assert (answer["body"], answer["correlationId"]) == (b"re: ask 0", "c0")
        if subscribed is not None:
            assert subscribed.take(1, window=10) == ["re: ask 1"]
    entry.node.delete(wanted[0])


@CLIENTS
@pytest.mark.writes
@pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0, STOMP)
@pytest.mark.contract("JMS messages written")
def test_what_is_written_is_what_a_jms_client_reads(entry: LiveEntry, client: str) -> None:
    common = {
        "correlationId": "c-1", "replyTo": "answers", "type": "kind-1", "priority": 7, "persistent": True,
        "expiration": datetime.now(timezone.utc) + timedelta(hours=1), "properties": [("colour", "grün")],
    }  # fmt: skip
    properties = [*common["properties"], *marks(entry, client)]
    write(entry, [{"body": "täxt €", **common, "properties": properties}], body="string")
    write(entry, [{"body": BODIES["bytes"], **common}])
    with closing(peer(entry, "read", client, "2")) as reader:
        text, data = reader.line(), reader.line()
        reader.end()
    if shown(entry, client, ""):  # a client that does not get what was written
        assert text["text"] == data["text"] == "not a text"
        assert BODIES["text"].hex() in text["bytes"]
        return
    seen = {
        "correlation": "c-1", "replyTo": "queue", "type": "kind-1", "priority": 7, "persistent": True, "expires": True,
        "colour": "grün",
    }  # fmt: skip
    if entry.entry.broker == "rabbitmq" and client == "own":
        assert (text.pop("type"), data.pop("type")) == ("TextMessage", "BytesMessage")
        del seen["type"]
    elif entry.entry.protocol == AMQP_0_9_1:
        seen["type"] = None  # RabbitMQ keeps it in an annotation
    assert text == {"text": "täxt €", "bytes": None, **seen}
    assert data == {"text": "not a text", "bytes": BODIES["bytes"].hex(), **seen}
    assert poll(lambda: entry.total() == 0, 30)
