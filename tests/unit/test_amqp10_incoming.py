"""Receiving by what lies below proton's classes: two engines of the library, joined in memory; its classes send."""

from __future__ import annotations

import base64
import gc
import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from proton import Data, Delivery, Endpoint, Receiver, Sender

from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import MissingExtraError
from pyspark_mq.sources.amqp10 import incoming
from pyspark_mq.sources.amqp10.incoming import Incoming
from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.wire.amqp10.engine import state_unsettled
from tests.support.amqp10_engines import engines
from tests.support.amqp10_messages import Message, V
from tests.support.decoding import Asked

_FRAME_BYTES = 1 << 10


def dispositions(frames: bytes) -> list[list[Any]]:
    """The fields of the dispositions among these frames, by proton's own decoder."""
    found, at = [], 0
    while at < len(frames):
        size, offset = int.from_bytes(frames[at : at + 4], "big"), 4 * frames[at + 4]
        data = Data()
        data.decode(frames[at + offset : at + size])
        data.rewind()
        data.next()
        described = data.get_object()
        if described.descriptor == 0x15:
            found.append(described.value)
        at += size
    return found


class Pair:
    """A sender and a receiver."""

    def __init__(self) -> None:
        self.ends, self.connections = engines(_FRAME_BYTES)
        session = self.connections[0].session()
        session.incoming_capacity = 1 << 20
        session.open()
        self.receiver: Receiver = session.receiver("link")
        self.receiver.source.address = "queue"
        self.receiver.open()
        self.receiver.flow(10_000)
        self.pump()
        session = self.connections[1].session_head(Endpoint.REMOTE_ACTIVE)
        session.open()
        found = self.connections[1].link_head(Endpoint.REMOTE_ACTIVE)
        assert isinstance(found, Sender)
        self.sender: Sender = found
        self.sender.open()
        self.pump()
        self._tags = iter(range(1_000_000))
        self.sent: list[Delivery] = []

    def pump(self) -> list[bytes]:
        """Pass all bytes on; what the receiver wrote."""
        wrote = []
        moved = True
        while moved:
            moved = False
            for source, sink in (self.ends, self.ends[::-1]):
                while (pending := source.pending()) > 0:
                    data = source.peek(min(pending, sink.capacity()))
                    assert data
                    sink.push(bytes(data))
                    source.pop(len(data))
                    moved = True
                    if source is self.ends[0]:
                        wrote.append(bytes(data))
        return wrote

    def send(self, data: bytes, *, finish: bool = True) -> Delivery:
        delivery = self.sender.delivery(str(next(self._tags)))
        self.sent.append(delivery)
        self.sender.stream(data)
        if finish:
            self.sender.advance()
        return delivery


@pytest.fixture
def pair() -> Pair:
    return Pair()


# -- what RabbitMQ reads of a disposition


@pytest.mark.parametrize(
    "accepted",
    [[0], [1, 2, 3], [0, 2, 5], [*range(300, 310)], [*range(0, 600, 2)]],
    ids=["the first", "a range", "several", "large numbers", "very many"],
)
def test_an_acceptance_says_that_it_is_not_settled(pair: Pair, accepted: list[int]) -> None:
    side = Incoming(pair.receiver)
    for _ in range(600):
        pair.send(b"body")
    pair.pump()
    handles, _ = taken(side)
    side.accept([handles[at] for at in accepted])
    frames = bytearray()
    while (pending := pair.ends[0].pending()) > 0:
        frames += pair.ends[0].peek(pending) or b""
        pair.ends[0].pop(pending)
    before = bytes(frames)
    state_unsettled(frames)
    said = [decoded[3] for decoded in dispositions(bytes(frames))]
    assert said
    assert all(one is False for one in said)
    assert {decoded[3] for decoded in dispositions(before)} == {None}
    assert [decoded[:3] for decoded in dispositions(bytes(frames))] == [one[:3] for one in dispositions(before)]
    pair.ends[1].push(bytes(frames))
    seen = [at for at, delivery in enumerate(pair.sent) if delivery.remote_state == Delivery.ACCEPTED]
    assert seen == accepted
    assert not any(delivery.settled for delivery in pair.sent)


def test_a_body_that_reads_like_a_disposition_stays_as_it_is(pair: Pair) -> None:
    frames = bytearray(b"AMQP\0\1\0\0")
    look = b"\0\x53\x15\xc0\x08\x05\x41\x43\x43\x40\0\x53\x24\x45"
    pair.send(look)
    while (pending := pair.ends[1].pending()) > 0:
        frames += pair.ends[1].peek(pending) or b""
        pair.ends[1].pop(pending)
    before = bytes(frames)
    assert look in before
    state_unsettled(frames)
    assert frames == before


@pytest.fixture
def side(pair: Pair) -> Incoming:
    return Incoming(pair.receiver)


def taken(side: Incoming) -> tuple[list[Any], list[bytes]]:
    pairs = list(side.messages())
    return [handle for handle, _ in pairs], [data for _, data in pairs]


def test_a_version_of_the_library_that_works_otherwise_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("pyspark_mq.sources.amqp10")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cproton_ffi", None)
    with pytest.raises(MissingExtraError, match=r"0\.39 and 0\.40, but .* is installed; run: .*'pyspark-mq\[amqp10\]'"):
        session_class("amqp-1.0")


@pytest.mark.parametrize("size", [1, 500, _FRAME_BYTES, 5_000, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 300_000])
def test_a_message_of_any_size_comes_whole_between_others(size: int, side: Incoming, pair: Pair) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for message in (b"before", data, b"behind"):
        pair.send(message)
    pair.pump()
    handles, messages = taken(side)
    assert messages == [b"before", data, b"behind"]
    assert all(type(message) is bytes for message in messages)
    assert len(handles) == 3
    assert taken(side) == ([], [])


def test_what_was_read_stays_when_the_memory_of_the_library_is_used_again(side: Incoming, pair: Pair) -> None:
    reader, decoder = SectionReader(counts_acquirers=False), Asked(Amqp10Batch)
    own = [bytes([65 + number]) * 40 for number in range(20)]
    for text in own:
        parts = [V("list", [V("binary", text)]), V("list", [V("binary", text)])]
        message = Message(properties=[V("binary", text)], application=[(V("string", "own"), V("binary", text))])
        pair.send(replace(message, body="amqp-sequence", contents=parts).encode())
    pair.pump()
    raws = [reader.read(number, data) for number, data in enumerate(taken(side)[1])]
    for number in range(50):
        pair.send(bytes([number]) * 500)
        pair.pump()
        taken(side)
    incoming.ffi.memmove(side._buffer, b"!" * len(side._buffer), len(side._buffer))
    for text, raw in zip(own, raws, strict=True):
        encoded = base64.b64encode(text).decode()
        assert json.loads(raw.body) == [encoded, encoded]
        assert decoder.ids([raw], IdSource("message-id")) == [text]
        assert decoder.columns["properties"]([raw]) == [[("own", text.decode())]]


def test_a_message_of_no_bytes_is_one(side: Incoming, pair: Pair) -> None:
    for message in (b"", b"behind"):
        pair.send(message)
    pair.pump()
    assert taken(side)[1] == [b"", b"behind"]


def test_a_message_in_parts_comes_when_it_is_complete(side: Incoming, pair: Pair) -> None:
    pair.send(b"a" * 3_000, finish=False)
    for _ in range(2):
        pair.pump()
        assert taken(side) == ([], [])
    pair.sender.stream(b"b" * 3_000)
    pair.pump()
    assert taken(side) == ([], [])
    pair.sender.advance()
    pair.send(b"next")
    pair.pump()
    assert taken(side)[1] == [b"a" * 3_000 + b"b" * 3_000, b"next"]


@pytest.mark.parametrize("seen", [False, True])
def test_an_aborted_message_is_passed_over(seen: bool, side: Incoming, pair: Pair) -> None:
    aborted = pair.send(b"x" * 3_000, finish=False)
    pair.pump()
    if seen:
        assert taken(side) == ([], [])
    aborted.abort()
    pair.send(b"next")
    pair.pump()
    assert taken(side)[1] == [b"next"]


def test_taking_can_be_left_off_and_goes_on_with_the_next(side: Incoming, pair: Pair) -> None:
    for number in range(5):
        pair.send(b"%d" % number)
    pair.pump()
    first = next(iter(side.messages()))
    assert first[1] == b"0"
    assert taken(side)[1] == [b"1", b"2", b"3", b"4"]


def test_neighbours_are_accepted_and_settled_with_one_frame(side: Incoming, pair: Pair) -> None:
    sent = [pair.send(b"%d" % number) for number in range(1_000)]
    pair.pump()
    handles, _ = taken(side)
    side.accept(handles[:900])
    side.settle(handles[:900])
    wrote = pair.pump()
    assert sum(map(len, wrote)) < 100
    assert {delivery.remote_state for delivery in sent[:900]} == {Delivery.ACCEPTED}
    assert all(delivery.settled for delivery in sent[:900])
    assert not any(delivery.settled or delivery.remote_state for delivery in sent[900:])


def test_what_is_accepted_is_settled_when_the_sender_did(side: Incoming, pair: Pair) -> None:
    sent = [pair.send(b"%d" % number) for number in range(10)]
    pair.pump()
    handles, _ = taken(side)
    side.accept(handles)
    pair.pump()
    assert {delivery.remote_state for delivery in sent} == {Delivery.ACCEPTED}
    assert not any(delivery.settled for delivery in sent)
    assert not any(map(side.settled, handles))
    for delivery in sent[:4]:
        delivery.settle()
    pair.pump()
    assert list(map(side.settled, handles)) == [True] * 4 + [False] * 6
    assert not any(map(side.taken_back, handles))


def test_a_message_is_rejected(side: Incoming, pair: Pair) -> None:
    sent = [pair.send(b"%d" % number) for number in range(3)]
    pair.pump()
    handles, _ = taken(side)
    side.reject(handles[1])
    pair.pump()
    assert [delivery.remote_state for delivery in sent] == [0, Delivery.REJECTED, 0]
    assert [delivery.settled for delivery in sent] == [False, True, False]


@pytest.mark.parametrize("outcome", [Delivery.RELEASED, Delivery.MODIFIED])
def test_what_the_sender_takes_back_is_seen(outcome: Any, side: Incoming, pair: Pair) -> None:
    sent = [pair.send(b"%d" % number) for number in range(3)]
    pair.pump()
    handles, _ = taken(side)
    sent[0].update(outcome)
    sent[0].settle()
    pair.pump()
    assert list(map(side.taken_back, handles)) == [True, False, False]
    side.settle(handles[:1])
    pair.pump()


def test_handles_stay_good_while_thousands_come_and_go(side: Incoming, pair: Pair) -> None:
    kept: list[tuple[Any, Delivery]] = []
    for turn in range(50):
        sent = [pair.send(b"%d" % number) for number in range(100)]
        pair.pump()
        handles, messages = taken(side)
        assert messages == [b"%d" % number for number in range(100)]
        kept.append((handles.pop(turn), sent.pop(turn)))
        side.accept(handles)
        side.settle(handles)
        pair.pump()
        for delivery in sent:
            delivery.settle()
    gc.collect()
    side.accept(handle for handle, _ in kept)
    pair.pump()
    assert {delivery.remote_state for _, delivery in kept} == {Delivery.ACCEPTED}
    assert not any(side.settled(handle) for handle, _ in kept)


def test_handles_stay_good_when_the_peer_has_gone(side: Incoming, pair: Pair) -> None:
    for number in range(10):
        pair.send(b"%d" % number)
    pair.pump()
    handles, _ = taken(side)
    pair.sender.close()
    pair.connections[1].close()
    pair.pump()
    pair.ends[0].close_tail()
    pair.receiver = None  # type: ignore[assignment]
    gc.collect()
    assert not any(map(side.taken_back, handles))
    side.accept(handles)
    side.settle(handles)
