"""Settling over STOMP, frame by frame, and against what a broker makes of the frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.sources.stomp.settling import StompSettling


def settling(deliveries: int, *, cumulative: bool) -> StompSettling:
    made = StompSettling(cumulative=cumulative, reject_headers={"requeue": "false"})
    made.open.update((tag, f"T\\c{tag}".encode()) for tag in range(1, deliveries + 1))
    return made


def frames(data: bytes) -> list[str]:
    return [frame.replace("\n", " ").strip() for frame in data.decode().split("\0")[:-1]]


def test_one_by_one_every_delivery_has_its_frame_and_the_last_asks_for_a_receipt() -> None:
    made = settling(5, cumulative=False)
    assert frames(made.acknowledge(7, 2, [5])) == [
        "ACK id:T\\c1",
        "ACK id:T\\c2",
        "ACK id:T\\c5 receipt:settled-1",
    ]
    assert list(made.open) == [3, 4]
    assert made.unconfirmed
    assert made.confirmed("settled-1") == [7]
    assert not made.unconfirmed


def test_one_by_one_a_refusal_has_its_headers_and_asks_for_a_receipt_that_confirms_nothing() -> None:
    made = settling(3, cumulative=False)
    assert frames(made.reject([2])) == ["NACK id:T\\c2 requeue:false receipt:settled-1"]
    assert list(made.open) == [1, 3]
    assert made.unconfirmed
    assert made.confirmed("settled-1") == []
    assert not made.unconfirmed


def test_cumulative_one_frame_takes_all_before_it_along() -> None:
    made = settling(1_000, cumulative=True)
    assert frames(made.acknowledge(7, 999, [])) == ["ACK id:T\\c999 receipt:settled-1"]
    assert list(made.open) == [1_000]
    assert made.confirmed("settled-1") == [7]


def test_cumulative_what_is_in_the_middle_waits_for_the_ones_before_it() -> None:
    made = settling(6, cumulative=True)
    assert made.acknowledge(1, 0, [3, 5]) == b""
    assert made.reject([4]) == b""
    assert made.waiting == 3
    assert frames(made.acknowledge(2, 2, [])) == [
        "ACK id:T\\c3",
        "NACK id:T\\c4 requeue:false",
        "ACK id:T\\c5 receipt:settled-1",
    ]
    assert made.waiting == 0
    assert made.confirmed("settled-1") == [1, 2]
    assert list(made.open) == [6]


def test_cumulative_a_request_is_not_confirmed_before_all_of_it_is_settled() -> None:
    made = settling(4, cumulative=True)
    assert made.acknowledge(1, 0, [2, 4]) == b""
    assert frames(made.acknowledge(2, 1, [])) == ["ACK id:T\\c2 receipt:settled-1"]
    assert made.confirmed("settled-1") == [2]
    assert frames(made.acknowledge(3, 3, [])) == ["ACK id:T\\c4 receipt:settled-2"]
    assert made.confirmed("settled-2") == [1, 3]


def test_a_receipt_nobody_asked_for_confirms_nothing() -> None:
    assert settling(1, cumulative=True).confirmed("settled-1") == []


@given(st.booleans(), st.lists(st.sets(st.integers(1, 12)), max_size=6), st.data())
def test_a_broker_settles_what_was_asked_for_and_confirms_it_after_that(
    cumulative: bool, rounds: list[set[int]], data: st.DataObject
) -> None:
    made = settling(12, cumulative=cumulative)
    held = list(range(1, 13))
    asked: dict[int, set[int]] = {}
    refused: set[int] = set()
    gone: set[int] = set()
    for number, wanted in enumerate(rounds):
        tags = sorted(wanted - set().union(*asked.values(), refused))
        if not tags:
            continue
        if data.draw(st.booleans()):
            refused.update(tags)
            written = made.reject(tags)
        else:
            asked[number] = set(tags)
            written = made.acknowledge(number, 0, tags)
        for frame in frames(written):
            command, name, *more = frame.split(" ")
            tag = int(name.removeprefix("id:T\\c"))
            taken = [item for item in held if item <= tag] if cumulative and command == "ACK" else [tag]
            assert set(taken) <= (refused if command == "NACK" else set().union(*asked.values()))
            held = [item for item in held if item not in taken]
            gone.update(taken)
            for header in more:
                if header.startswith("receipt:"):
                    assert all(asked[done] <= gone for done in made.confirmed(header.removeprefix("receipt:")))
    assert list(made.open) == held
    if not cumulative:
        assert gone == set().union(*asked.values(), refused)
