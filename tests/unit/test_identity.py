"""Keys: what identifies a message, and that nothing else ever looks like it."""

from __future__ import annotations

import uuid
from hashlib import sha256

import pytest

from pyspark_mq.dedup import CheckpointOnly, IdSource, Key, OnMissing, content_digest, id_keys, is_content, key_text
from pyspark_mq.dedup.identity import ID_CHARS_MAX, LONG_ID_BYTES


def key(value: object) -> Key | None:
    (found,) = id_keys([value])
    return found


# -- IDs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, "", b"", bytearray(), memoryview(b""), memoryview(bytearray())])
def test_a_missing_or_empty_id_has_no_key(nothing: object) -> None:
    assert key(nothing) is None
    assert id_keys(["a", nothing, "b"]) == ["a", None, "b"]


@pytest.mark.parametrize(
    "text",
    [
        "a",
        " ",
        "\n",
        "a\nb",
        "\0",
        "a\0",
        "0",
        "None",
        "é",
        "🐇",
        "\ud800",
        "x" * ID_CHARS_MAX,
        "🐇" * ID_CHARS_MAX,
    ],
)
def test_text_is_its_own_key(text: str) -> None:
    assert key(text) == text
    assert id_keys([text, "other"]) == [text, "other"]
    assert id_keys([text, None]) == [text, None]


def test_texts_that_differ_in_a_newline_or_nul_have_different_keys() -> None:
    texts = ["a", "a\n", "a\0", "\na", " a", "a ", "A", "á", "a\u0301"]
    assert len(set(id_keys(texts))) == len(texts)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (7, "7"), (-1, "-1"), (2**64, "18446744073709551616"), (1.5, "1.5")]
)
def test_a_number_counts_by_its_decimal_text(number: float, text: str) -> None:
    assert key(number) == text
    assert id_keys([number, text]) == [text, text]


def test_a_uuid_counts_by_its_text() -> None:
    assert key(uuid.UUID(int=1)) == "00000000-0000-0000-0000-000000000001"


def test_a_subclass_of_text_is_text() -> None:
    class Name(str):
        __slots__ = ()

    assert id_keys([Name("a"), Name("")]) == ["a", None]


def test_zero_and_false_are_ids() -> None:
    assert None not in id_keys([0, 0.0, False, " ", b"\0"])


@pytest.mark.parametrize("data", [b"a", b"\0", b"\xff", b"t" * LONG_ID_BYTES, bytes(10_000)])
def test_bytes_have_a_digest(data: bytes) -> None:
    found = key(data)
    assert isinstance(found, bytes)
    assert len(found) == LONG_ID_BYTES
    assert found != data
    assert id_keys([data, bytearray(data), memoryview(data), "a"]) == [found, found, found, "a"]


@pytest.mark.parametrize("character", ["a", "é", "🐇", "\ud800", "\n"])
def test_text_of_more_than_255_characters_has_a_digest(character: str) -> None:
    longer = character * (ID_CHARS_MAX + 1)
    found = key(longer)
    assert isinstance(found, bytes)
    assert len(found) == LONG_ID_BYTES
    assert id_keys([longer, "a", None]) == [found, "a", None]
    assert key(longer + character) != found


def test_no_text_has_the_key_of_a_longer_one() -> None:
    digest = key("x" * 1000)
    assert isinstance(digest, bytes)
    texts = [digest.hex(), digest.decode("latin-1"), digest.decode("ascii", "backslashreplace"), str(digest)]
    assert id_keys(texts) == texts
    assert digest not in texts


def test_the_same_bytes_as_id_as_long_text_and_as_content_have_different_keys() -> None:
    data = b"x" * 1000
    assert len({key(data), key(data.decode()), content_digest(b"", data)}) == 3


def test_no_ids_have_no_keys() -> None:
    assert id_keys([]) == []
    assert id_keys(()) == []


# -- contents ---------------------------------------------------------------------------------


def test_equal_contents_have_equal_digests() -> None:
    one, two, again = content_digest(b"", b"one"), content_digest(b"", b"two"), content_digest(b"", b"one")
    assert one == again
    assert one != two


def test_what_stands_beside_a_body_is_no_part_of_it() -> None:
    assert content_digest(b"a", b"b") != content_digest(b"", b"ab")
    assert content_digest(b"ab", b"") != content_digest(b"a", b"b")


def test_a_body_of_any_size_has_a_digest() -> None:
    bodies = [b"", b"\0", b"\0\0", b"a", b"a" * 100_000]
    assert {len(found) for found in {content_digest(b"", body) for body in bodies}} == {16}
    assert len({content_digest(b"", body) for body in bodies}) == len(bodies)


def test_digests_are_the_same_in_every_process_and_version() -> None:
    # They are in files: another function would make every redelivery a new message.
    assert content_digest(b"", b"hello") == sha256(b"\0\0\0\0hello").digest()[:16]
    assert key(b"hello").hex() == "90e62f5c522371844619cd1193ce26a9de474cff"  # type: ignore[union-attr]
    assert key("hello" * 100).hex() == "70dcb306277b38f18b6249c02df98c1079577a00"  # type: ignore[union-attr]


def test_keys_of_contents_are_no_others() -> None:
    assert all(map(is_content, [bytes(24), bytes(16)]))
    assert not any(map(is_content, ["a" * 24, "a" * 16, bytes(20)]))


# -- the rest ---------------------------------------------------------------------------------


def test_a_key_is_shown_as_text_or_as_hexadecimal_digits() -> None:
    assert key_text("ID:1") == "ID:1"
    assert key_text(b"\x00\xff" * 10) == "00ff" * 10


def test_a_source_of_ids_is_shown_as_the_option_is_written() -> None:
    assert str(IdSource("message-id")) == "message-id"
    assert str(IdSource("property", "key")) == "property:key"
    assert IdSource("property", "key") != IdSource("property", "Key")


def test_there_are_four_things_to_do_without_an_id() -> None:
    assert {kind.value for kind in OnMissing} == {"content", "fail", "reject", "row"}


def test_without_a_shared_store_nothing_is_known_however_much_was_remembered() -> None:
    store = CheckpointOnly()
    store.remember(["a", b"b" * LONG_ID_BYTES])
    assert store.known(["a", b"b" * LONG_ID_BYTES]) == set()
    store.close()
