"""Deliveries of AMQP 1.0 that are looked at together, beside those that are not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from proton import ProtonException

from pyspark_mq.decode.amqp10 import Amqp10Batch, WalkedBatch, find_batches
from pyspark_mq.decode.amqp10_message import DECODERS, OF_PROPERTIES, Raw, Sections, UnreadableMessage
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.sources.amqp10.session import Amqp10Session
from pyspark_mq.sources.connections.session import ReceiveBuffer, SessionLostError
from pyspark_mq.spark_source.options import parse_options
from tests.support.amqp10_peer import peer
from tests.support.decoding import Asked
from tests.support.sockets import LIMIT_S
from tests.support.stream_messages import message


def read(messages: list[bytes], first: int = 1) -> list[Any]:
    return list(find_batches(first, messages, SectionReader(counts_acquirers=False)))


def messages(count: int, form: str = "id") -> list[bytes]:
    rng = random.Random(count)
    return [message(rng, form) for _ in range(count)]


def tags(items: list[Any]) -> list[int]:
    return [tag for item in items for tag in (item.tags.tolist() if isinstance(item, WalkedBatch) else [item.tag])]


def test_many_are_one_batch_and_few_are_not() -> None:
    (batch,) = read(messages(500), first=7)
    assert tags([batch]) == [*range(7, 507)]
    assert {type(item) for item in read(messages(20))} == {Raw}


def test_two_producers_are_one_batch() -> None:
    plain, named = messages(200, "data"), messages(200, "header")
    mixed = [one for pair in zip(plain, named, strict=True) for one in pair]
    items = read(mixed)
    assert tags(items) == [*range(1, 401)]
    assert sum(len(item) for item in items if isinstance(item, WalkedBatch)) > 200


def test_one_that_cannot_be_read_is_a_delivery_between_batches() -> None:
    broken = [*messages(100), b"\xff", *messages(100)]
    before, one, behind = read(broken)
    assert (len(before), len(behind)) == (100, 100)
    assert type(one) is UnreadableMessage
    assert tags([before, one, behind]) == [*range(1, 202)]


def test_no_more_is_put_together_than_may_be() -> None:
    batches = [item for begin in range(1, 601, 100) for item in read(messages(100), begin)]
    size = int(batches[0].sizes.sum())
    parts = [*Asked(Amqp10Batch).gather(batches, 2 * size)]
    assert len(parts) > 1
    assert max(int(part.sizes.sum()) for part in parts) <= 3 * size
    assert tags(parts) == [*range(1, 601)]


def test_properties_that_all_have_come_behind_those_of_each() -> None:
    def symbol(text: bytes) -> bytes:
        return bytes((0xA3, len(text))) + text

    kind = symbol(b"x-opt-jms-msg-type") + b"\x54\x05"
    annotations = b"\x00\x53\x72\xc1" + bytes((len(kind) + 1, 2)) + kind
    texts = [f"{number:05}".encode() for number in range(100)]
    application = [
        b"\x00\x53\x74\xc1\x0d\x02\xa1\x03key\xa1\x05" + text if place % 3 else b"" for place, text in enumerate(texts)
    ]
    encoded = [annotations + one + b"\x00\x53\x75\xa0\x01x" for one in application]
    (batch,) = read(encoded)
    known = [("x-opt-jms-msg-type", "5")]
    expected = [[("key", text.decode()), *known] if place % 3 else known for place, text in enumerate(texts)]
    assert batch.column("properties").to_pylist() == expected


@pytest.mark.parametrize("maximum", [10, 2_000])
def test_a_session_hands_over_batches_in_order(maximum: int) -> None:
    bodies = [f"body {number}" for number in range(2_000)]
    with peer(bodies) as at:
        options = {"broker": "artemis", "url": at.url(), "queue": "q", "protocol": "amqp-1.0"}
        session = Amqp10Session(parse_options(options).settings.endpoint, 1, ReceiveBuffer())
        session.open(session.endpoint.urls[0], LIMIT_S)
        session.consume(len(bodies))
        items: list[Any] = []
        while sum(len(item) if isinstance(item, WalkedBatch) else 1 for item in items) < len(bodies):
            session.run(0.1)
            items += session.buffer.take(maximum)
        session.close()
    assert any(isinstance(item, WalkedBatch) for item in items)
    decoder = Asked(Amqp10Batch)
    found = [body for raws in decoder.gather(items, 4 << 20) for body in decoder.bodies(raws)]
    assert [body.decode() for body in found] == bodies
    assert tags(items) == [*range(1, len(bodies) + 1)]
    assert session.buffer.deliveries == len(bodies)
    size = sum(map(decoder.size_bytes, decoder.gather(items, 4 << 20)))
    assert session.buffer.bytes_arrived == size


def test_one_in_a_hundred_that_is_read_alone_leaves_the_others_together() -> None:
    def named(key: bytes, value: bytes) -> bytes:
        pair = b"\xa1" + bytes((len(key),)) + key + b"\xa1" + bytes((len(value),)) + value
        return b"\x00\x53\x74\xc1" + bytes((len(pair) + 1, 2)) + pair + b"\x00\x53\x75\xa0\x01x"

    of_columns = [named(name.encode(), b"a") for name in OF_PROPERTIES.values()]
    for odd in (*of_columns, named(b"key", b"\xff"), named(b"\xfe", b"a")):
        items = read([odd if number % 100 == 70 else named(b"key", b"value") for number in range(300)])
        assert tags(items) == [*range(1, 301)]
        # Two runs of 99, one of 70, and what is behind the last.
        assert [len(item) for item in items if isinstance(item, WalkedBatch)] == [70, 99, 99]


class _Asked(dict[str, object]):
    """Application properties that know which of them were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
        self.names.add(name)
        return super().get(name, default)


def test_a_column_made_of_a_property_keeps_its_message_out_of_batches() -> None:
    for column, decode in DECODERS.items():
        asked = _Asked()
        decode([Raw(1, b"", 0, Sections(application=asked))])
        assert asked.names == {*filter(None, [OF_PROPERTIES.get(column)])}


def test_what_came_before_a_connection_broke_is_passed_on_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [f"body {number}" for number in range(200)]
    with peer(bodies) as at:
        options = {"broker": "artemis", "url": at.url(), "queue": "q", "protocol": "amqp-1.0"}
        session = Amqp10Session(parse_options(options).settings.endpoint, 1, ReceiveBuffer())
        session.open(session.endpoint.urls[0], LIMIT_S)
        take = session._take_deliveries

        def take_and_break() -> None:
            take()
            if session._taken:
                raise ProtonException

        monkeypatch.setattr(session, "_take_deliveries", take_and_break)
        session.consume(len(bodies))
        with pytest.raises(SessionLostError):
            _run(session)
        session.close()
    assert session._newest > 0
    assert tags(session.buffer.take()) == [*range(1, session._newest + 1)]


def _run(session: Amqp10Session) -> None:
    while True:
        session.run(0.1)
