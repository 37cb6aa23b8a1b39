"""Columns that are made of many messages at once are those that reading each alone gives, whatever the bytes are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_mq.decode.amqp10_columns import walked_groups
from pyspark_mq.decode.amqp10_sections import SectionReader
from tests.support.effort import part_of
from tests.support.stream_messages import FORMS, assert_as_read, joined, message, mutated


def assert_as_all_read(messages: Sequence[bytes]) -> None:
    for counts_acquirers, names_annotations in ((False, True), (True, False), (False, False)):
        assert_as_read(messages, SectionReader(counts_acquirers=counts_acquirers, names_annotations=names_annotations))


@pytest.mark.parametrize("form", FORMS)
@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_messages_of_a_form_have_the_columns_of_each(form: str, seed: int) -> None:
    rng = random.Random(seed)
    assert_as_all_read([message(rng, form) for _ in range(60)])


@pytest.mark.parametrize("form", FORMS)
@settings(derandomize=True, deadline=None, max_examples=part_of(40))
@given(seed=st.integers(0, 2**32))
def test_broken_messages_have_the_columns_of_each(form: str, seed: int) -> None:
    rng = random.Random(seed)
    messages = [message(rng, form) for _ in range(60)]
    assert_as_all_read([one if rng.random() < 0.5 else mutated(rng, one) for one in messages])


@settings(derandomize=True, deadline=None, max_examples=part_of(100))
@given(st.lists(st.binary(max_size=40), min_size=16, max_size=40))
def test_any_bytes_have_the_columns_of_each(messages: list[bytes]) -> None:
    assert_as_all_read(messages)


@pytest.mark.parametrize("form", ["data", "id", "properties", "application", "header"])
def test_messages_as_most_are_take_the_walk(form: str) -> None:
    rng = random.Random(7)
    messages = joined([message(rng, form) for _ in range(1_000)])
    _, left = walked_groups(messages, SectionReader(counts_acquirers=False))
    assert len(left) < 300
