"""IDs of rows: the frozen format, and what they do not depend on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.errors import RowError
from pyspark_mq.sink import ids
from pyspark_mq.sink.ids import Identity, Seen, field, pairs
from tests.support.sink import messages_of, settings_of

ALL: Mapping[str, Any] = {
    "body": b"{}",
    "correlationId": "c",
    "replyTo": "r",
    "contentType": "application/json",
    "contentEncoding": "gzip",
    "type": "t",
    "priority": 4,
    "timestamp": datetime.fromtimestamp(1_700_000_000, timezone.utc),
    "appId": "a",
    "groupId": "g",
    "groupSequence": 2,
    "persistent": False,
    "properties": [("b", ""), ("a", None), ("é", "x")],
}


def ids_of(rows: Sequence[Mapping[str, Any]], **how: Any) -> list[str]:
    return [message.id for message in messages_of(rows, **how)]


def bodies(*texts: bytes) -> list[dict[str, Any]]:
    return [{"body": text} for text in texts]


# -- the format, which an upgrade must not change: a retry after it has to give the same IDs


def test_the_ids_of_texts() -> None:
    assert ids_of([{"body": "a"}, {"body": "b"}, {"body": "a"}], body="string") == [
        "bd181b37-8534-8a6b-a9ef-64ebf032c469",
        "b41cf6fe-ab4a-82a1-9119-5f0bf5be9240",
        "cf4acccd-312e-86f2-9c91-e31b463f6942",
    ]


def test_the_ids_of_bytes() -> None:
    assert ids_of(bodies(b"a", b"b", b"a")) == [
        "ca86ebdc-c6f0-8bac-8db6-30e61f9668e0",
        "88663b2e-b498-85f7-87e3-7d9113f256fa",
        "aee07b42-eb12-80fc-a5b2-7b755306cfb6",
    ]


def test_the_id_of_a_row_with_every_column() -> None:
    assert ids_of([ALL]) == ["45df6d18-a733-818f-b3cd-93bc0300c3b9"]


def test_the_id_of_a_write_with_a_name_to_an_exchange() -> None:
    settings = settings_of(queue=None, exchange="ex", routing_key="k")
    assert ids_of([ALL], settings=settings, writer=("write", "nightly"), partition=3) == [
        "d82e39c3-9b91-817c-a98a-fcfcaed62c5f"
    ]


def test_the_fields_that_a_digest_is_made_of() -> None:
    assert field(3, b"abc") == b"\x03\x00\x00\x00\x03abc"
    assert pairs([("b", ""), ("a", None)]) == b"\0\0\0\x01a\xff\xff\xff\xff\0\0\0\x01b\0\0\0\0"


# -- what they depend on


def test_ids_are_uuids_of_version_8() -> None:
    for text in ids_of(bodies(*(b"%d" % number for number in range(100)))):
        assert (UUID(text).version, str(UUID(text))) == (8, text)


@pytest.mark.parametrize("name", [name for name in ALL if name != "body"])
def test_every_column_counts(name: str) -> None:
    others = {other: value for other, value in ALL.items() if other != name}
    assert ids_of([ALL]) != ids_of([others])


@pytest.mark.parametrize("name", ["correlationId", "contentType", "type"])
def test_null_is_not_empty_and_a_column_of_nulls_changes_nothing(name: str) -> None:
    (without,) = ids_of(bodies(b"a"))
    assert ids_of([{"body": b"a", name: None}]) == [without]
    assert ids_of([{"body": b"a", name: ""}]) != [without]


def test_neighbours_do_not_flow_into_each_other() -> None:
    assert ids_of([{"body": b"ab", "type": "c"}]) != ids_of([{"body": b"a", "type": "bc"}])
    assert ids_of([{"body": b"", "properties": [("ab", "c")]}]) != ids_of([{"body": b"", "properties": [("a", "bc")]}])


def test_the_order_in_a_map_does_not_count_and_its_nulls_do() -> None:
    one, other = [("a", "1"), ("b", None)], [("b", None), ("a", "1")]
    assert ids_of([{"body": b"", "properties": one}]) == ids_of([{"body": b"", "properties": other}])
    assert ids_of([{"body": b"", "properties": one}]) != ids_of([{"body": b"", "properties": [("a", "1"), ("b", "")]}])


def test_a_moment_of_expiration_does_not_count() -> None:
    moment = datetime(2030, 1, 1, tzinfo=timezone.utc)
    assert ids_of([{"body": b"a", "expiration": moment}]) == ids_of(bodies(b"a"))


def test_what_brokers_add_does_not_count() -> None:
    added = [("x-opt-enqueued-time", "1"), ("_AMQ_X", "2"), ("x-death", "[]"), ("mq_id", "old"), ("own", "kept")]
    assert ids_of([{"body": b"", "properties": added}]) == ids_of([{"body": b"", "properties": [("own", "kept")]}])


@pytest.mark.parametrize(
    "other",
    [
        {"writer": ("query", "q-2", "7")},
        {"writer": ("query", "q-1", "8")},
        {"writer": ("query", "q-17", "")},
        {"writer": ("write", "q-1")},
        {"partition": 1},
        {"settings": settings_of(queue="others")},
        {"settings": settings_of("activemq", "stomp", queue=None, topic="orders")},
    ],
    ids=["query", "batch", "neighbours", "a write", "partition", "queue", "topic"],
)
def test_query_batch_partition_and_destination_count(other: dict[str, Any]) -> None:
    assert not set(ids_of(bodies(b"a", b"b"))) & set(ids_of(bodies(b"a", b"b"), **other))


@given(st.lists(st.sampled_from([b"a", b"b", b"c", b""]), max_size=40), st.randoms())
def test_another_order_has_the_same_ids(texts: list[bytes], shuffle: random.Random) -> None:
    again = texts.copy()
    shuffle.shuffle(again)
    one, other = (Counter(zip(some, ids_of(bodies(*some)), strict=True)) if some else {} for some in (texts, again))
    assert one == other
    assert len(one) == len(texts), "equal rows have different IDs"


# -- counting


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=60), max_size=12))
def test_rows_are_numbered_among_their_equals_over_batches(batches: list[list[int]]) -> None:
    seen, counted = Seen(), Counter[int]()
    for batch in batches:
        expected = []
        for number in batch:
            expected.append(counted[number])
            counted[number] += 1
        assert seen.number([number.to_bytes(16, "big")[::-1] for number in batch]) == expected


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), min_size=1, max_size=20), max_size=6))
def test_a_name_with_other_contents_is_found_where_it_first_comes_again(batches: list[list[tuple[int, int]]]) -> None:
    seen, known = Seen(), dict[int, int]()
    for batch in batches:
        expected = None
        for place, (name, content) in enumerate(batch):
            if known.setdefault(name, content) != content and expected is None:
                expected = place
        names, contents = ([bytes((one[part],)) * 16 for one in batch] for part in (0, 1))
        assert seen.differing(names, contents) == expected
        if expected is not None:
            return


def test_more_rows_than_can_be_counted_are_an_error_that_says_what_to_do() -> None:
    seen = Seen(rows_max=10)
    digests = [bytes((number,)) * 16 for number in range(11)]
    assert seen.number(digests[:10]) == [0] * 10
    assert seen.number(digests[:10]) == [1] * 10
    with pytest.raises(RowError, match=r"repartition.*messageId"):
        seen.number(digests[10:])


def test_names_beyond_the_bound_are_not_looked_at() -> None:
    seen = Seen(rows_max=1)
    assert seen.differing([b"a" * 16], [b"x" * 16]) is None
    assert seen.differing([b"b" * 16], [b"x" * 16]) is None
    assert seen.differing([b"b" * 16], [b"y" * 16]) is None
    assert seen.differing([b"a" * 16], [b"y" * 16]) == 0


def test_counting_takes_few_bytes_a_row() -> None:
    seen = Seen()
    for start in range(0, 100_000, 10_000):
        seen.number([Identity(("w",), 0).digest(b"%d" % row) for row in range(start, start + 10_000)])
    held = sum(part.nbytes for run in seen._runs for part in run)
    assert held == 12 * 100_000
    assert ids.ROWS_MAX * 12 < 256 << 20
