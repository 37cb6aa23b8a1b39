"""Payloads that are taken before proton: what comes out of any conversation is what was sent, message by message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("proton")

from proton import SASL, Endpoint, LinkException, Sender

from pyspark_mq.sources.amqp10.incoming import Incoming
from pyspark_mq.sources.amqp10.transfers import Transfers
from tests.support.amqp10_engines import engines

_FRAME_BYTES = 1 << 10
_LINK = "queue"


class Conversation:
    """A sender of proton, and a receiver whose bytes go through what is tested."""

    def __init__(self) -> None:
        self.transfers = Transfers(_LINK, _FRAME_BYTES)
        self.take, self.piece = True, 1 << 20
        self.ends, self.connections = engines(_FRAME_BYTES)
        for transport in self.ends:
            SASL(transport).allowed_mechs("ANONYMOUS")
        session = self.connections[0].session()
        session.incoming_capacity = 1 << 24
        session.open()
        links = [session.receiver(name) for name in ("another", _LINK)]
        for link in links:
            link.source.address = link.name
            link.open()
            link.flow(100_000)
        self.side = Incoming(links[1], self.transfers)
        self.pump()
        self.connections[1].session_head(Endpoint.REMOTE_ACTIVE).open()
        self.senders: dict[str, Sender] = {}
        found: Any = self.connections[1].link_head(Endpoint.REMOTE_ACTIVE)
        while found is not None:
            found.open()
            self.senders[found.name] = found
            found = found.next(Endpoint.REMOTE_ACTIVE)
        self.pump()
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self._open: tuple[Any, bytes] | None = None
        self._tags = iter(range(1 << 30))

    def pump(self) -> None:
        moved = True
        while moved:
            moved = False
            ours, theirs = self.ends
            for source, sink in ((ours, theirs), (theirs, ours)):
                while (pending := source.pending()) > 0:
                    data = bytes(source.peek(min(pending, self.piece, sink.capacity())) or b"")
                    source.pop(len(data))
                    moved = True
                    handed = self.transfers.cut(data, take=self.take) if sink is ours else data
                    while handed:
                        room = sink.capacity()
                        sink.push(handed[:room])
                        handed = handed[room:]

    def send(self, data: bytes) -> None:
        """Send a message, or the rest of the one that is open."""
        begun = self.begun
        self.extend(data)
        assert self._open is not None
        self.senders[_LINK].advance()
        self.sent.append(begun + data)
        self._open = None

    @property
    def begun(self) -> bytes:
        return b"" if self._open is None else self._open[1]

    def extend(self, data: bytes) -> None:
        sender = self.senders[_LINK]
        delivery = sender.delivery(f"{next(self._tags)}") if self._open is None else self._open[0]
        sender.stream(data)
        self._open = delivery, self.begun + data

    def abort(self) -> None:
        if self._open is not None:
            self._open[0].abort()
            self._open = None

    def beside(self, data: bytes) -> None:
        """Send a message on another link of the session."""
        sender = self.senders["another"]
        sender.delivery(f"{next(self._tags)}")
        sender.stream(data)
        sender.advance()

    def read(self) -> None:
        came = [*self.side.messages()]
        self.side.check()
        for handle, data in came:
            self.received.append(data)
            self.side.accept([handle])
            self.side.settle([handle])


_STEPS = st.one_of(
    st.tuples(st.just("send"), st.binary(max_size=40), st.integers(0, 4_000)),
    st.tuples(st.just("many"), st.binary(max_size=40), st.integers(1, 400)),
    st.tuples(st.just("extend"), st.binary(max_size=40), st.integers(0, 2_500)),
    st.tuples(st.just("abort"), st.just(b""), st.just(0)),
    st.tuples(st.just("beside"), st.binary(max_size=40), st.integers(0, 900)),
    st.tuples(st.just("take"), st.just(b""), st.integers(0, 1)),
    st.tuples(st.just("piece"), st.just(b""), st.integers(1, 5_000)),
    st.tuples(st.just("pump"), st.just(b""), st.just(0)),
    st.tuples(st.just("read"), st.just(b""), st.just(0)),
)


@given(st.lists(_STEPS, max_size=30))
def test_what_comes_is_what_was_sent_in_order(steps: list[tuple[str, bytes, int]]) -> None:
    one = Conversation()
    for step, data, number in steps:
        if step == "send":
            one.send(data + bytes(number))
        elif step == "many":
            for count in range(number):
                one.send(data + b"%d" % count)
        elif step == "extend":
            one.extend(data + bytes(number))
        elif step == "abort":
            one.abort()
        elif step == "beside":
            one.beside(data + bytes(number))
        elif step == "take":
            one.take = bool(number)
        elif step == "piece":
            one.piece = number
        elif step == "pump":
            one.pump()
        else:
            one.read()
    one.pump()
    one.read()
    assert one.received == one.sent
    assert not one.transfers.taken


@pytest.mark.parametrize("piece", [7, 1_000, 1 << 20])
def test_a_message_in_one_frame_never_gets_to_proton(piece: int) -> None:
    one = Conversation()
    one.piece = piece
    for number in range(1_000):
        one.send(b"%d" % number * 50)
    one.send(bytes(5_000))
    one.send(b"last")
    one.pump()
    assert [data is None for data in one.transfers.taken] == [False] * 1_000 + [True, False]
    one.read()
    assert one.received == one.sent


@pytest.mark.parametrize(("count", "read"), [(2, 1), (1_000, 1), (1_000, 500), (1_000, 999)])
def test_a_payload_beside_another_delivery_is_noticed_before_it_is_passed_on(count: int, read: int) -> None:
    one = Conversation()
    for number in range(count):
        one.send(b"%d" % number)
    one.pump()
    one.transfers.taken.popleft()  # as if proton had a delivery more
    came = one.side.messages()
    for _ in range(read):
        next(came)
    with pytest.raises(LinkException, match="belongs to another delivery"):
        one.side.check()


def transfer(*fields: bytes, payload: bytes, descriptor: bytes = b"\x53\x14") -> bytes:
    inside = b"".join(fields)
    performative = b"\x00" + descriptor + b"\xc0" + bytes([len(inside) + 1, len(fields)]) + inside
    return (8 + len(performative) + len(payload)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + performative + payload


_ATTACH = transfer(b"\xa1\x05queue", b"\x52\x03", b"\x42", payload=b"", descriptor=b"\x53\x12")
_OPENING = b"AMQP\x00\x01\x00\x00" + _ATTACH
_ID, _TAG, _REST = b"\x52\x07", b"\xa0\x01t", (b"\x43", b"\x42", b"\x42")


def test_what_brokers_may_leave_out_or_write_at_length_is_known() -> None:
    transfers = Transfers("queue", _FRAME_BYTES)
    transfers.cut(_OPENING, take=True)
    begin = transfer(b"\x52\x03", _ID, _TAG, b"\x43", b"\x42", b"\x56\x01", payload=b"half")
    long_tag = transfer(b"\x70\0\0\0\3", b"\x43", b"\xb0\0\0\0\1t", payload=b"payload")
    end = transfer(b"\x52\x03", payload=b"half")
    assert transfers.cut(begin + end, take=True) == begin + end
    assert transfers.cut(long_tag, take=True) == transfer(b"\x70\0\0\0\3", b"\x43", b"\xb0\0\0\0\1t", payload=b"")
    assert [*transfers.taken] == [None, b"payload"]


def test_transfers_that_differ_in_turns_are_all_taken() -> None:
    transfers = Transfers("queue", _FRAME_BYTES)
    transfers.cut(_OPENING, take=True)
    frames = [
        (b"\x52\x03", b"\x52" + bytes([number]), _TAG, b"\x43", b"\x41" if number % every == 0 else b"\x42")
        for every in (1, 2, 9, 20)
        for number in range(200)
    ]
    came = b"".join(transfer(*fields, payload=b"%d" % number) for number, fields in enumerate(frames))
    assert transfers.cut(came, take=True) == b"".join(transfer(*fields, payload=b"") for fields in frames)
    assert [*transfers.taken] == [b"%d" % number for number in range(len(frames))]


def test_a_part_of_a_frame_is_a_sign_of_life() -> None:
    transfers = Transfers("queue", _FRAME_BYTES)
    transfers.cut(_OPENING, take=True)
    frame = transfer(b"\x52\x03", _ID, _TAG, *_REST, payload=b"payload")
    empty = b"\x00\x00\x00\x08\x02\x00\x00\x00"
    assert [transfers.cut(frame[at : at + 10], take=True) for at in (0, 10, 20)] == [empty, empty, empty]
    transfers.cut(frame[30:], take=True)
    assert [*transfers.taken] == [b"payload"]


@pytest.mark.parametrize(
    "unknown",
    [
        transfer(b"\x52\x03", _ID, _TAG, *_REST, payload=b"x", descriptor=b"\x80" + (0x14).to_bytes(8, "big")),
        transfer(b"\x52\x03", b"\x53\x07", _TAG, *_REST, payload=b"x"),
        transfer(b"\x52\x03", _ID, _TAG, b"\x43", b"\x42", b"\x56\x02", payload=b"x"),
        transfer(b"\x52\x03", payload=b"x"),
        transfer(b"\x52\x03", _ID, _TAG, *_REST, b"\x40", b"\x00\x53\x24\x45", payload=b"x"),
        b"\xff\xff\xff\xff no frame",
    ],
    ids=["descriptor", "number", "truth", "fields left out", "state", "size"],
)
def test_behind_what_is_encoded_otherwise_all_is_left_to_proton(unknown: bytes) -> None:
    common = transfer(b"\x52\x03", _ID, _TAG, *_REST, payload=b"payload")
    transfers = Transfers("queue", _FRAME_BYTES)
    bare = transfer(b"\x52\x03", _ID, _TAG, *_REST, payload=b"")
    assert transfers.cut(_OPENING + common, take=True) == _OPENING + bare
    assert transfers.cut(unknown + common, take=True) == unknown + common
    assert transfers.cut(common[:10], take=True) == common[:10]
    assert [*transfers.taken] == [b"payload"]


def test_what_does_not_speak_amqp_is_passed_on_at_once() -> None:
    alert = b"\x15\x03\x03\x00"
    assert Transfers("queue", _FRAME_BYTES).cut(alert, take=True) == alert


def test_transfers_of_other_links_and_channels_are_left_alone() -> None:
    transfers = Transfers("queue", _FRAME_BYTES)
    other = transfer(b"\x52\x04", _ID, _TAG, *_REST, payload=b"payload")
    assert transfers.cut(_OPENING + other, take=True) == _OPENING + other
    ours = transfer(b"\x52\x03", _ID, _TAG, *_REST, payload=b"payload")
    elsewhere = ours[:7] + b"\x01" + ours[8:]
    assert transfers.cut(elsewhere, take=True) == elsewhere
    assert not transfers.taken
