"""Columns that are made of many messages at once are those that the scanner makes of each, whatever the bytes are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_mq.sources.amqp10.arrays import COLUMN_TYPES, arrays_of
from pyspark_mq.sources.amqp10.columns import message_columns, walked_groups
from pyspark_mq.sources.amqp10.decoder import Amqp10Decoder
from pyspark_mq.sources.amqp10.sections import SectionReader
from tests.support.effort import part_of
from tests.support.stream_messages import FORMS, joined, message, mutated

NAMES = list(COLUMN_TYPES)


def assert_as_scanned(messages: Sequence[bytes]) -> None:
    for counts_acquirers, names_annotations in ((False, True), (True, False), (False, False)):
        assert_as_read(messages, SectionReader(counts_acquirers=counts_acquirers, names_annotations=names_annotations))


def assert_as_read(messages: Sequence[bytes], reader: SectionReader) -> None:
    found, odd = message_columns(joined(messages), NAMES, reader)
    raws = [reader.read(number, data) for number, data in enumerate(messages)]
    expected = arrays_of(raws, NAMES)
    assert [one.tag for one in odd] == [one.tag for one in Amqp10Decoder().unreadable(raws)]
    for name in NAMES:
        found[name].validate(full=True)
        assert found[name].equals(expected[name]), name


@pytest.mark.parametrize("form", FORMS)
@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_messages_of_a_form_have_the_columns_of_the_scanner(form: str, seed: int) -> None:
    rng = random.Random(seed)
    assert_as_scanned([message(rng, form) for _ in range(60)])


@pytest.mark.parametrize("form", FORMS)
@settings(derandomize=True, deadline=None, max_examples=part_of(40))
@given(seed=st.integers(0, 2**32))
def test_broken_messages_have_the_columns_of_the_scanner(form: str, seed: int) -> None:
    rng = random.Random(seed)
    messages = [message(rng, form) for _ in range(60)]
    assert_as_scanned([one if rng.random() < 0.5 else mutated(rng, one) for one in messages])


@settings(derandomize=True, deadline=None, max_examples=part_of(100))
@given(st.lists(st.binary(max_size=40), min_size=16, max_size=40))
def test_any_bytes_have_the_columns_of_the_scanner(messages: list[bytes]) -> None:
    assert_as_scanned(messages)


@pytest.mark.parametrize("form", ["data", "id", "properties", "application", "header"])
def test_messages_as_most_are_take_the_walk(form: str) -> None:
    rng = random.Random(7)
    messages = joined([message(rng, form) for _ in range(1_000)])
    _, left = walked_groups(messages, SectionReader(counts_acquirers=False))
    assert len(left) < 300


@settings(derandomize=True, deadline=None, max_examples=part_of(200))
@given(seed=st.integers(0, 2**32), changed=st.booleans())
def test_the_scan_has_what_is_decoded_in_full(seed: int, changed: bool) -> None:
    rng = random.Random(seed)
    reader = SectionReader(counts_acquirers=False, names_annotations=True)
    for _ in range(20):
        data = message(rng, "named")
        data = mutated(rng, data) if changed else data
        raws = [[reader.read(0, data)], [reader.decode(0, data)]]
        quick, full = (arrays_of(one, NAMES) for one in raws)
        assert all(quick[name].equals(full[name]) for name in NAMES), data
