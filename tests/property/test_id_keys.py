"""Keys of any IDs: the way for whole lists of text gives what the way for single values gives."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_mq.dedup import content_digest, id_keys
from pyspark_mq.dedup.identity import ID_CHARS_MAX, LONG_ID_BYTES

#: The same examples in every run, whatever the speed of the machine.
DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=100)

ANY_CHARACTER = st.characters(exclude_categories=())
SHORT = st.text(ANY_CHARACTER, max_size=10)
LONG = st.builds(lambda text, size: (text * size)[:size], st.text(ANY_CHARACTER, min_size=1, max_size=5),
                 st.integers(ID_CHARS_MAX - 2, ID_CHARS_MAX + 3))  # fmt: skip
TEXT = SHORT | LONG
ANY_ID = TEXT | st.binary(max_size=30) | st.integers() | st.none() | st.uuids()


@DETERMINISTIC
@given(st.lists(TEXT))
@example(["x" * ID_CHARS_MAX])
@example(["x" * (ID_CHARS_MAX + 1), "y"])
@example(["x", ""])
def test_a_list_of_text_has_the_keys_of_a_list_that_is_not_only_text(texts: list[str]) -> None:
    assert id_keys(texts) == id_keys([*texts, 0])[:-1]


@DETERMINISTIC
@given(st.lists(ANY_ID))
def test_a_key_does_not_depend_on_its_neighbours(values: list[object]) -> None:
    assert id_keys(values) == [key for value in values for key in id_keys([value])]


@DETERMINISTIC
@given(st.lists(ANY_ID))
def test_a_key_is_nothing_or_short_text_or_a_digest(values: list[object]) -> None:
    for value, key in zip(values, id_keys(values), strict=True):
        if key is None:
            assert value is None or value in ("", b"")
        elif isinstance(key, str):
            assert key == str(value)
            assert 0 < len(key) <= ID_CHARS_MAX
        else:
            assert isinstance(value, bytes) or len(str(value)) > ID_CHARS_MAX
            assert len(key) == LONG_ID_BYTES


@DETERMINISTIC
@given(TEXT, TEXT)
def test_two_texts_have_the_same_key_if_and_only_if_they_are_the_same(one: str, two: str) -> None:
    keys = id_keys([one, two, one])
    assert (keys[0] == keys[1]) == (one == two)
    assert keys[0] == keys[2]


@DETERMINISTIC
@given(*[st.tuples(st.binary(max_size=5), st.binary(max_size=5))] * 2)
def test_two_contents_have_the_same_digest_if_and_only_if_they_are_the_same(
    one: tuple[bytes, bytes], two: tuple[bytes, bytes]
) -> None:
    assert (content_digest(*one) == content_digest(*two)) == (one == two)
