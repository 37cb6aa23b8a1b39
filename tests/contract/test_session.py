"""What every consumer owes the receiver, on every broker and protocol: one session, no Spark."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.decode.batch import ROW_BYTES
from pyspark_mq.decode.stomp_headers import parse
from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.connections.session import SessionLostError
from pyspark_mq.wire.endpoint import Tls
from pyspark_mq.wire.url import parse_urls
from testbed.process import poll
from tests.support.certificates import Certificates
from tests.support.effort import part_of
from tests.support.engine import At, Crashed, Engine
from tests.support.entries import LiveEntry, SessionRun

MESSAGE_ID = IdSource("message-id")


@pytest.mark.contract("deliver")
def test_messages_come_with_their_bodies_and_stay_unacknowledged(entry: LiveEntry) -> None:
    sent = entry.publish(50)
    with entry.session() as session:
        assert session.take(50, window=100) == sent
        assert session.tags() == sorted(set(session.tags()))
        assert poll(lambda: entry.total() == 50, 30)
    assert poll(lambda: entry.counts().ready == 50, 30)


@pytest.mark.thorough
@pytest.mark.contract("deliver")
def test_messages_sent_later_come_without_being_asked_for(entry: LiveEntry) -> None:
    with entry.session() as session:
        session.consume(100)
        session.idle(0.5)
        assert session.raws == []
        sent = entry.publish(3)
        assert session.take(3, window=100) == sent


@pytest.mark.contract("deliver")
def test_any_bytes_are_a_body(entry: LiveEntry) -> None:
    odd = [b"", b"\x00", b"a\x00b\n\r\n", bytes(range(256)), b"\n\n", "äöü".encode(), bytes(range(256)) * 300]
    entry.node.publish(entry.queue, odd, protocol=entry.entry.protocol)
    with entry.session() as session:
        session.consume(10)
        assert session.turn(lambda: len(session.raws) == len(odd))
        assert session.decoder.bodies(session.raws) == odd


@pytest.mark.contract("order")
def test_they_come_in_the_order_they_were_sent(entry: LiveEntry) -> None:
    sent = entry.publish(3_000)
    with entry.session() as session:
        assert session.take(3_000, window=5_000) == sent


@pytest.mark.contract("IDs")
def test_ids_are_there_and_differ(entry: LiveEntry) -> None:
    entry.publish(100)
    with entry.session() as session:
        session.take(100)
        ids = session.decoder.ids(session.raws, MESSAGE_ID)
        assert all(isinstance(key, str) and key for key in ids)
        assert len(set(ids)) == 100


@pytest.mark.contract("IDs")
@pytest.mark.parametrize("end", ["close", "cut"])
def test_ids_are_the_same_when_messages_come_again(entry: LiveEntry, end: str) -> None:
    entry.publish(20)
    with entry.proxy() as proxy, entry.session(**entry.through(proxy)) as session:
        session.take(20)
        ids = session.decoder.ids(session.raws, MESSAGE_ID)
        if end == "close":
            session.close()
        else:
            proxy.cut()
    with entry.session() as again:
        again.take(20)
        assert sorted(map(str, again.decoder.ids(again.raws, MESSAGE_ID))) == sorted(map(str, ids))


@pytest.mark.contract("IDs")
@pytest.mark.protocols(STOMP)
def test_a_producer_cannot_put_an_id_into_the_place_of_the_brokers(entry: LiveEntry) -> None:
    if entry.entry.broker != "rabbitmq":
        pytest.skip("the broker gives the IDs here, or overwrites them itself: see docs/protocols.md")
    entry.node.publish(entry.queue, [b"a", b"b"], headers={"amqp-message-id": "the same"})
    with entry.session() as session:
        session.take(2)
        ids = session.decoder.ids(session.raws, MESSAGE_ID)
        assert len(set(ids)) == 2
        assert "the same" not in ids


@pytest.mark.contract("acknowledge no more than the epoch")
@pytest.mark.parametrize("window", [100, 40])
def test_a_request_that_acknowledges_nothing_is_confirmed_again_and_again(entry: LiveEntry, window: int) -> None:
    # The horizon goes by these answers, whether there is room or not.
    sent = entry.publish(40)
    with entry.session() as session:
        assert session.take(40, window=window) == sent
        for number in range(-1, -41, -1):
            session.consumer.acknowledge(number, 0, ())
            assert session.turn(lambda: number in session.confirmed)  # noqa: B023 - called at once
        assert poll(lambda: entry.total() == 40, 30)
        # It goes on as before.
        more = entry.publish(3) if window > 40 else []
        assert session.turn(lambda: len(session.raws) == 40 + len(more))
        session.acknowledge(session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.contract("acknowledge no more than the epoch")
def test_such_a_request_is_confirmed_behind_what_the_broker_had_handed_out(entry: LiveEntry) -> None:
    sent = entry.publish(500)
    with entry.proxy() as proxy, entry.session(**entry.through(proxy)) as session:
        session.consume(3_000)
        session.idle(0.5)
        session.consumer.acknowledge(-1, 0, ())
        assert session.turn(lambda: -1 in session.confirmed)
        assert session.decoder.bodies(session.raws) == [body.encode() for body in sent]


@pytest.mark.contract("redeliver")
def test_what_was_not_acknowledged_comes_again_first_and_in_order(entry: LiveEntry) -> None:
    sent = entry.publish(100)
    with entry.session() as session:
        assert session.take(40, window=40)[:40] == sent[:40]
    assert poll(lambda: entry.counts().ready == 100, 30)
    with entry.session() as again:
        bodies = again.take(100, window=200)
        assert sorted(bodies) == sorted(sent)
        assert bodies == sent or not entry.keeps_order


@pytest.mark.contract("redeliver")
def test_a_session_ends_when_its_connection_is_cut(entry: LiveEntry) -> None:
    entry.publish(5)
    with entry.proxy() as proxy, entry.session(**entry.through(proxy)) as session:
        session.take(5)
        proxy.cut()
        with pytest.raises(SessionLostError):
            session.idle(10)


@pytest.mark.contract("redeliver")
@pytest.mark.protocols(AMQP_0_9_1, STOMP)
def test_an_end_that_the_broker_gives_a_reason_for_is_told_from_one_of_the_network(entry: LiveEntry) -> None:
    if entry.entry.broker == "artemis":
        pytest.skip("the broker closes the connection without a word")
    entry.publish(5)
    with entry.session() as session:
        session.take(5)
        consumer: Any = session.consumer
        if entry.entry.protocol == AMQP_0_9_1:
            consumer._channel.basic_ack(1_000)
        else:
            consumer._connection.protocol.transport.send(b"ACK\nid:nobody\n\n\0")
        with pytest.raises(SessionLostError) as lost:
            session.idle(10)
        assert lost.value.stated
    with entry.proxy() as proxy, entry.session(**entry.through(proxy)) as session:
        session.take(5)
        proxy.cut()
        with pytest.raises(SessionLostError) as lost:
            session.idle(10)
        assert not lost.value.stated


@pytest.mark.contract("redeliver")
@pytest.mark.protocols(AMQP_1_0, STOMP)
def test_silence_is_no_reason_that_the_broker_gives(entry: LiveEntry) -> None:
    entry.publish(5)
    with entry.proxy() as proxy, entry.session(heartbeat_s=1.0, **entry.through(proxy)) as session:
        session.take(5, window=10)  # a full one is not read on Artemis
        proxy.mute()
        with pytest.raises(SessionLostError, match="nothing was heard from the broker") as lost:
            session.idle(10)
        assert not lost.value.stated


@pytest.mark.contract("acknowledge no more than the epoch")
def test_an_acknowledgement_up_to_a_message_leaves_the_later_ones(entry: LiveEntry) -> None:
    sent = entry.publish(30)
    with entry.session() as session:
        session.take(30)
        session.acknowledge(upto=session.tags()[9])
        assert poll(lambda: entry.total() == 20, 30)
    with entry.session() as again:
        assert sorted(again.take(20)) == sorted(sent[10:])
        again.idle(0.5)
        assert len(again.raws) == 20


@pytest.mark.contract("acknowledge no more than the epoch")
def test_a_single_message_takes_no_other_along(entry: LiveEntry) -> None:
    # Where acknowledgements are cumulative it waits for the ones before it.
    sent = entry.publish(30)
    with entry.session() as session:
        session.take(30)
        tags = session.tags()
        session.consumer.acknowledge(100, 0, [tags[7], tags[29]])
        session.idle(0.5)
        assert entry.total() >= 28
        session.acknowledge(upto=tags[6])
        assert poll(lambda: entry.total() <= 22, 30)
        session.idle(0.2)
        assert entry.total() >= 21
    with entry.session() as again:
        assert set(again.take(21)) >= set(sent[8:29])


@pytest.mark.contract("acknowledge no more than the epoch")
@pytest.mark.protocols(STOMP)
@pytest.mark.parametrize("over", [None, AMQP_1_0])
def test_a_property_of_the_name_ack_settles_no_other_message(entry: LiveEntry, over: str | None) -> None:
    if entry.entry.broker == "rabbitmq" and over is not None:
        pytest.skip("one test with a publisher of RabbitMQ is enough")
    entry.publish(1)
    with entry.session() as session:
        session.take(1, window=10)
        handle = parse(session.raws[0][1])["ack"]
        entry.node.publish(entry.queue, [b"x"], ids=[None], headers={"ack": handle}, protocol=over)
        assert session.turn(lambda: len(session.raws) == 2)
        first, second = session.tags()
        if entry.broker.stomp is not None and not entry.broker.stomp.cumulative:
            session.acknowledge(singles=[second])
            assert poll(lambda: entry.total() == 1, 30)
            session.acknowledge(upto=first)
        else:
            session.acknowledge(upto=second)
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.thorough
@pytest.mark.contract("acknowledge no more than the epoch")
def test_acknowledgements_arrive_in_thousands(entry: LiveEntry) -> None:
    entry.publish(5_000)
    with entry.session() as session:
        session.take(5_000, window=6_000)
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.contract("prefetch")
def test_no_more_is_handed_out_than_the_window(entry: LiveEntry) -> None:
    sent = entry.publish(50)
    with entry.session() as session:
        session.take(10, window=10)
        session.idle(0.7)
        if entry.counts_bytes:
            assert len(session.raws) <= 2 * 10
            pytest.skip("the broker counts bytes over this protocol, not messages: the window is about right")
        assert session.bodies() == sent[:10]
        session.acknowledge(upto=session.tags()[4])
        assert session.turn(lambda: len(session.raws) == 15)
        session.idle(0.5)
        assert session.bodies() == sent[:15]


@pytest.mark.contract("pauses")
def test_what_arrives_counts_as_what_is_taken_also_without_a_body(entry: LiveEntry) -> None:
    # What counts for less when it is taken may not add up to a pause that never ends.
    entry.node.publish(entry.queue, (b"" for _ in range(30)), protocol=entry.entry.protocol)
    with entry.session() as session:
        session.take(30, window=100)
        assert session.consumer.buffer.bytes_arrived == session.decoder.size_bytes(session.raws) >= 30 * ROW_BYTES
        assert session.consumer.buffer.deliveries == 30
        assert not any(session.bodies())


@pytest.mark.contract("prefetch")
def test_a_full_window_is_extended_by_the_difference_and_no_more(entry: LiveEntry) -> None:
    if entry.counts_bytes:
        pytest.skip("the window counts bytes")
    sent = entry.publish(50)
    with entry.session() as session:
        session.take(10, window=10)
        session.consumer.extend(15)
        assert session.turn(lambda: len(session.raws) >= 15)
        session.idle(0.5)
        assert session.bodies() == sent[:15]
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 35, 30)


@pytest.mark.contract("prefetch")
def test_a_window_is_widened_and_keeps_what_it_holds(entry: LiveEntry) -> None:
    sent = entry.publish(50)
    with entry.session() as session:
        session.take(10, window=10)
        session.consume(40)
        assert session.turn(lambda: len(session.raws) >= 40)
        assert session.bodies()[:40] == sent[:40]
        session.acknowledge(upto=session.tags()[39])
        assert poll(lambda: entry.total() == 10, 30)


@pytest.mark.contract("prefetch")
def test_a_window_of_thousands_is_filled_though_nothing_is_acknowledged(entry: LiveEntry) -> None:
    # A broker that hands out a page and waits for an acknowledgement would stop every epoch there.
    entry.publish(8_000)
    with entry.session() as session:
        session.take(8_000, window=8_000)


@pytest.mark.contract("big message")
def test_a_message_of_many_frames(entry: LiveEntry) -> None:
    big = bytes(range(256)) * (20 << 12)  # 20 MiB
    entry.node.publish(entry.queue, [b"before", big, b"after"], protocol=entry.entry.protocol)
    with entry.session() as session:
        session.consume(10)
        assert session.turn(lambda: len(session.raws) == 3)
        assert session.decoder.bodies(session.raws) == [b"before", big, b"after"]
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.contract("big message")
def test_too_many_bytes_pause_the_consumer_until_they_are_taken(entry: LiveEntry) -> None:
    body = bytes(1 << 20)
    entry.node.publish(entry.queue, [body] * 60, protocol=entry.entry.protocol)
    # RabbitMQ reads no heartbeats over STOMP while it cannot write, and then gives up the connection.
    patient = 10.0 if entry.entry.broker == "rabbitmq" and entry.entry.protocol == STOMP else 2.0
    with entry.session(heartbeat_s=patient) as session:
        consumer = session.consumer
        consumer.buffer.bytes_allowed = 5 << 20
        session.consume(60)
        assert session.turn(lambda: consumer.paused)
        session.idle(5)  # several heartbeats
        held = len(session.raws)
        assert held < 45
        consumer.acknowledge(100, session.tags()[held // 2], [])
        session.idle(0.5)
        consumer.buffer.bytes_allowed = float("inf")
        consumer.resume()
        assert session.turn(lambda: len(session.raws) == 60)
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.thorough
@pytest.mark.contract("big message")
def test_a_pause_holds_over_tls(entry: LiveEntry, certificates: Certificates) -> None:
    body = bytes(200_000)
    entry.node.publish(entry.queue, [body] * 300, protocol=entry.entry.protocol)
    tls = Tls(ca_file=str(certificates.ca.cert_file))
    with entry.session(urls=parse_urls(entry.tls_url()), tls=tls, heartbeat_s=10.0) as session:
        consumer = session.consumer
        consumer.buffer.bytes_allowed = 5 << 20
        session.consume(300)
        assert session.turn(lambda: consumer.paused)
        session.idle(1)
        held = len(session.raws)
        session.idle(1)
        assert held == len(session.raws) < 200
        consumer.buffer.bytes_allowed = float("inf")
        consumer.resume()
        assert session.turn(lambda: len(session.raws) == 300)
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.thorough
@pytest.mark.network
@pytest.mark.contract("pauses")
def test_a_pause_longer_than_a_broker_waits_to_write_ends_nothing(entry: LiveEntry) -> None:
    body = bytes(1 << 20)
    entry.node.publish(entry.queue, [body] * 60, protocol=entry.entry.protocol)
    # Over STOMP RabbitMQ reads no heartbeats while it waits to write, and on a busy machine ends the session after 45 s
    # with 10 s (3.10, 4.0, 4.3: "detected missed client heartbeat(s)").
    waits = entry.entry.broker == "rabbitmq" and entry.entry.protocol == STOMP
    with entry.session(heartbeat_s=60.0 if waits else 10.0) as session:
        consumer = session.consumer
        consumer.buffer.bytes_allowed = 5 << 20
        session.consume(60)
        session.idle(45)  # RabbitMQ and ActiveMQ Classic gave up after 30
        assert consumer.paused
        assert len(session.raws) < 40
        consumer.buffer.bytes_allowed = float("inf")
        consumer.resume()
        assert session.turn(lambda: len(session.raws) == 60)
        assert not any(session.decoder.columns["redelivered"](session.raws))


def pause(entry: LiveEntry, pauses: int) -> None:
    """Pause this often while messages are on their way; the queue dead-letters what comes again twice."""
    entry.node.delete(entry.queue)
    entry.declare(entry.queue, deliveries=1)
    window, body = 20, bytes(2_000)
    messages = 2 * pauses * window  # some pauses come late
    entry.node.publish(entry.queue, [body] * messages, protocol=entry.entry.protocol)
    with entry.session() as session:
        consumer = session.consumer
        consumer.buffer.bytes_allowed = 0
        session.consume(window)
        paused = settled = 0
        while settled < messages:
            deadline = time.monotonic() + 60
            while not consumer.paused:
                assert time.monotonic() < deadline, f"{settled} of {messages} came"
                consumer.run(0.005)
            paused += 1
            came = [consumer.buffer.inbox.popleft() for _ in range(len(consumer.buffer.inbox))]
            settled += len(came)
            # Nothing was handed out before, so nothing was returned.
            assert not any(session.decoder.columns["redelivered"](came))
            consumer.acknowledge(paused, session.decoder.tags(came)[-1], [])
            size = session.decoder.size_bytes(came)
            consumer.buffer.made(size, size)
            consumer.buffer.bytes_taken += size
            consumer.resume()
        assert paused >= pauses
        assert settled == messages
        assert session.turn(lambda: entry.total() == 0, 30)


@pytest.mark.contract("pauses")
def test_pauses_cost_no_delivery(entry: LiveEntry) -> None:
    pause(entry, part_of(300))


@pytest.mark.whole
@pytest.mark.thorough
@pytest.mark.contract("pauses")
def test_a_thousand_pauses_cost_no_delivery(entry: LiveEntry) -> None:
    pause(entry, 1_000)


@pytest.mark.contract("pauses")
def test_a_window_that_is_widened_while_messages_are_on_their_way_costs_no_delivery(entry: LiveEntry) -> None:
    entry.node.delete(entry.queue)
    entry.declare(entry.queue, deliveries=1)
    sent = [number.to_bytes(4, "big") * 1_000 for number in range(4_000)]
    entry.node.publish(entry.queue, sent, protocol=entry.entry.protocol)
    with entry.session() as session:
        for window in range(20, 1_020, 20):
            session.consume(window)
            session.consumer.run(0.002)
        session.consume(5_000)
        assert session.turn(lambda: len(session.raws) == 4_000)
        assert session.decoder.bodies(session.raws) == sent
        assert not any(session.decoder.columns["redelivered"](session.raws))
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.contract("auth")
def test_a_user_who_may_only_read_sees_acknowledgements_confirmed(entry: LiveEntry) -> None:
    with entry.reader() as user:
        entry.publish(30)
        with entry.session(**user) as session:
            session.take(30)
            for upto in session.tags()[9::10]:
                session.acknowledge(upto=upto)
            assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.contract("auth")
def test_a_user_who_may_only_read_can_run_the_source_and_settle_all_of_it(entry: LiveEntry) -> None:
    with entry.reader() as user:
        sent = entry.publish(60)
        with entry.engine(maxMessagesPerTrigger=20, settleGrace="500ms", **user) as engine:
            with pytest.raises(Crashed):
                engine.batch(At.AFTER_COMMIT_LOG)
            engine.drain(60)
            assert sorted(engine.output) == sorted(sent)
            assert poll(lambda: settled(engine)["carried"] == 0, 30)
            counters = settled(engine)
            assert counters["settled"] == counters["received"] >= 60
            assert entry.total() == 0


def settled(engine: Engine) -> dict[str, int]:
    """The counters, after it has looked at what was confirmed."""
    engine.trigger()
    return engine.counters()


@pytest.mark.contract("acknowledge no more than the epoch")
@pytest.mark.protocols(AMQP_1_0)
def test_acknowledgements_leave_no_links_behind(entry: LiveEntry) -> None:
    entry.publish(150)
    with entry.session() as session:
        session.take(150)
        for tag in session.tags():
            session.acknowledge(upto=tag)
        session.idle(0.5)
        ends = [link for link in links(session) if link.name.startswith("pyspark-mq-flush-marker")]
        # The plugin never answers that it has closed a link, so the library lets go of none by itself.
        assert len(ends) <= (101 if entry.is_plugin else 2)
        assert poll(lambda: entry.total() == 0, 30)


def links(session: SessionRun) -> list[Any]:
    """The links of a connection over AMQP 1.0 that the library has not freed."""
    found, link = [], session.consumer._connection.proton.link_head(0)  # type: ignore[attr-defined]
    while link is not None:
        found.append(link)
        link = link.next(0)
    return found


@pytest.mark.contract("reject")
def test_a_rejected_message_does_not_come_again_and_takes_no_other_along(entry: LiveEntry) -> None:
    sent = entry.publish(3)
    with entry.session() as session:
        session.take(3)
        session.consumer.reject([session.tags()[1]])
        session.acknowledge(upto=session.tags()[0])
        assert session.turn(lambda: entry.total() == 1)
    with entry.session() as again:
        assert again.take(1) == [sent[2]]
        again.idle(0.5)
        assert len(again.raws) == 1
