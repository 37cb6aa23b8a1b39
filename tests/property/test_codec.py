"""The compact form of ID lists: nothing is changed, little is needed, and damage is noticed or harmless."""

from __future__ import annotations

import contextlib
import json
import random
import time
import tracemalloc
import uuid
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_mq.dedup import CodecError, Key, decode_ids, encode_ids
from pyspark_mq.dedup.identity import DIGEST_BYTES
from tests.support.effort import part_of

#: The same examples in every run, whatever the speed of the machine.
DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=part_of(100))

# -- any list ---------------------------------------------------------------------------------

UUID_FORMS: list[Callable[[uuid.UUID], str]] = [
    str,
    lambda it: it.hex,
    lambda it: str(it).upper(),
    lambda it: it.hex.upper(),
    lambda it: f"ID:{it}",
    lambda it: f"ID:{it}".upper(),
    lambda it: f"id:{it}",
    lambda it: it.urn,
    lambda it: f"{{{it}}}",
    lambda it: str(it).title(),
    lambda it: f"{it}1",
    lambda it: f"{it}\n",
    lambda it: str(it)[:-1],
]
#: Any character, lone surrogates and beyond the basic plane included.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
AWKWARD = ["", " ", "0", "00", "-", "-1", "+1", "1.0", "ID:", "ID:0", "\0", "\n", "a\nb", "a\0", '"', "\\",
           "'", "٣", "a٣", "²", "\ud800", "\udfff", "\ud83d\udc07", "🐇", "🐇1", "é" * 255, "9" * 255,
           "0" * 255, "1" + "0" * 255]  # fmt: skip
PREFIXES = [
    "",
    "0",
    "00",
    "a",
    "a0",
    "ID:",
    "ID:host-40021-1700000000000-1:1:1:1:",
    "order-",
    "é🐇",
    "\ud800",
]
NUMBERS = st.integers(0, 20) | st.integers(0, 10**20) | st.sampled_from(
    [10**17, 10**18 - 1, 10**18, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**40]
)  # fmt: skip

UUIDS = st.builds(lambda form, it: form(it), st.sampled_from(UUID_FORMS), st.uuids())
COUNTERS = st.builds(lambda prefix, number: f"{prefix}{number}", st.sampled_from(PREFIXES), NUMBERS)
PADDED = st.builds(
    lambda prefix, number, width: prefix + str(number).zfill(width),
    st.sampled_from(PREFIXES), NUMBERS, st.integers(1, 22),
)  # fmt: skip
DIGESTS = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
KINDS: list[st.SearchStrategy[Key]] = [UUIDS, COUNTERS, PADDED, DIGESTS, ANY_TEXT, st.sampled_from(AWKWARD)]

#: Of one kind, of any kinds, and with repetitions.
KEY_LISTS: st.SearchStrategy[list[Key]] = st.one_of(
    *(st.lists(kind, max_size=40) for kind in KINDS),
    st.lists(st.one_of(*KINDS), max_size=40),
    st.lists(st.one_of(*KINDS), min_size=1, max_size=5).flatmap(
        lambda few: st.lists(st.sampled_from(few), max_size=40)
    ),
)


@DETERMINISTIC
@given(KEY_LISTS)
@example([])
@example([""])
@example(AWKWARD)
@example([str(uuid.UUID(int=0)), str(uuid.UUID(int=2**128 - 1)).upper()])
@example(["x0", "x00", "x000", "x1", "x01", "x10"])
@example([f"p{10**18 - 1}", "p0", f"p{10**18 - 1}"])
@example(["t" * DIGEST_BYTES, b"t" * DIGEST_BYTES])
def test_any_list_comes_back_in_its_order(keys: list[Key]) -> None:
    decoded = decode_ids(encode_ids(keys))
    assert decoded == keys
    assert list(map(type, decoded)) == list(map(type, keys))


@DETERMINISTIC
@given(KEY_LISTS)
def test_the_text_needs_no_escapes(keys: list[Key]) -> None:
    text = encode_ids(keys)
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set("\"'\\ ")
    assert json.dumps(text) == f'"{text}"'


@DETERMINISTIC
@given(KEY_LISTS, KEY_LISTS)
def test_different_lists_have_different_texts(one: list[Key], two: list[Key]) -> None:
    assert (encode_ids(one) == encode_ids(two)) == (one == two)


@DETERMINISTIC
@given(KEY_LISTS)
def test_tuples_are_lists(keys: list[Key]) -> None:
    assert encode_ids(tuple(keys)) == encode_ids(keys)


def test_a_list_may_be_longer_than_16_bits_count() -> None:
    keys: list[Key] = [f"k{number}" for number in range(66_000)]
    assert decode_ids(encode_ids(keys)) == keys


def test_a_counter_may_have_more_prefixes_than_16_bits_count() -> None:
    keys: list[Key] = [f"p{number}:{item}" for number in range(66_000) for item in (1, 2)]
    assert decode_ids(encode_ids(keys)) == keys


def test_a_list_too_large_to_be_compressed_comes_back() -> None:
    keys: list[Key] = ["é" * 255] * 135_000  # 69 MB
    assert decode_ids(encode_ids(keys)) == keys


# -- sizes ------------------------------------------------------------------------------------


def jms_id(producer: int, number: int) -> str:
    """As ActiveMQ writes it: host, port, start time, and counters of what is in what."""
    return f"ID:host{producer}-4002{producer}-17000000{producer}0000-1:1:{producer}:1:{number}"


def counting(generator: random.Random, count: int, producers: int, step_max: int) -> Iterator[Key]:
    numbers = [0] * producers
    for _ in range(count):
        producer = generator.randrange(producers)
        numbers[producer] += generator.randint(1, step_max)
        yield jms_id(producer, numbers[producer])


@pytest.mark.parametrize("count", [1000, 50_000])
@pytest.mark.parametrize(("producers", "step_max"), [(1, 1), (8, 1), (1, 10), (8, 10), (1, 1000), (8, 1000)])
def test_ids_that_count_take_at_most_6_bytes_each(count: int, producers: int, step_max: int) -> None:
    keys = list(counting(random.Random(1), count, producers, step_max))
    text = encode_ids(keys)
    assert decode_ids(text) == keys
    assert len(text) / count <= 6


@pytest.mark.parametrize("count", [1000, 50_000])
def test_ids_that_count_in_any_order_take_at_most_6_bytes_each(count: int) -> None:
    keys: list[Key] = [jms_id(1, number) for number in range(count)]
    random.Random(1).shuffle(keys)
    text = encode_ids(keys)
    assert decode_ids(text) == keys
    assert len(text) / count <= 6


@pytest.mark.parametrize("count", [1000, 50_000])
@pytest.mark.parametrize(
    "form", [str, lambda it: it.hex, lambda it: str(it).upper(), lambda it: f"ID:{it}"],
    ids=["dashes", "hex", "capitals", "ID:"],
)  # fmt: skip
def test_random_uuids_take_at_most_24_bytes_each(form: Callable[[uuid.UUID], str], count: int) -> None:
    bits = random.Random(1).getrandbits
    keys: list[Key] = [form(uuid.UUID(int=bits(128), version=4)) for _ in range(count)]
    text = encode_ids(keys)
    assert decode_ids(text) == keys
    assert len(text) / count <= 24


@pytest.mark.parametrize("count", [1000, 50_000])
def test_digests_take_at_most_28_bytes_each(count: int) -> None:
    generator = random.Random(1)
    keys: list[Key] = [generator.randbytes(DIGEST_BYTES) for _ in range(count)]
    text = encode_ids(keys)
    assert decode_ids(text) == keys
    assert len(text) / count <= 28


def test_text_that_cannot_be_compressed_takes_little_more_than_base64_does() -> None:
    bits = random.Random(1).getrandbits
    keys: list[Key] = ["".join(chr(32 + bits(6) % 64) for _ in range(30)) for _ in range(1000)]
    assert len(encode_ids(keys)) / 1000 <= 34 * 4 / 3 + 1


# -- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "A",
        "AA",
        "AAA",
        "====",
        "AAA=",
        "é",
        "\ud800",
        "\0",
        " ",
        "\n",
        '"',
        "not base64!",
        "-_-_",
        "AA==AA==",
    ],
)
def test_text_of_another_origin_is_refused(text: str) -> None:
    with pytest.raises(CodecError, match="not a list of message IDs"):
        decode_ids(text)


@DETERMINISTIC
@given(ANY_TEXT | st.binary(max_size=60).map(lambda data: b64encode(data).decode()))
def test_any_text_decodes_or_is_refused(text: str) -> None:
    assert_decodes_or_is_refused(text)


def assert_decodes_or_is_refused(text: str) -> None:
    with contextlib.suppress(CodecError):
        assert all(isinstance(key, str | bytes) for key in decode_ids(text))


def damaged(draw: st.DrawFn, data: bytes, material: st.SearchStrategy[bytes]) -> bytes:
    """With one to three bytes changed, cut off, put in or put behind."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        new = draw(material)
        data = draw(
            st.sampled_from(
                [data[:at] + new + data[at + len(new) :], data[:at], data[at:], data[:at] + new + data[at:],
                 data + new]
            )
        )  # fmt: skip
    return data


def inside(packed: bytes) -> bytes:
    return zlib.decompress(packed[1:]) if packed[0] else packed[1:]


@st.composite
def damaged_texts(draw: st.DrawFn) -> str:
    letters = st.text(st.characters(max_codepoint=0x17F), min_size=1, max_size=4).map(str.encode)
    text = encode_ids(draw(KEY_LISTS.filter(bool))).encode()
    return damaged(draw, text, letters).decode("utf-8", "replace")


@st.composite
def damaged_insides(draw: st.DrawFn) -> str:
    """Damaged in front of the compression, where no checksum helps."""
    packed = b64decode(encode_ids(draw(KEY_LISTS.filter(bool))))
    broken = damaged(draw, inside(packed), st.binary(min_size=1, max_size=4))
    return b64encode(draw(st.sampled_from([b"\0" + broken, b"\1" + zlib.compress(broken)]))).decode()


@DETERMINISTIC
@given(damaged_texts())
def test_a_damaged_text_decodes_or_is_refused(text: str) -> None:
    assert_decodes_or_is_refused(text)


@settings(DETERMINISTIC, max_examples=part_of(250))
@given(damaged_insides())
def test_a_text_damaged_before_compression_decodes_or_is_refused(text: str) -> None:
    assert_decodes_or_is_refused(text)


@DETERMINISTIC
@given(KEY_LISTS.filter(bool), st.data())
def test_a_list_that_was_cut_off_is_refused(keys: list[Key], data: st.DataObject) -> None:
    text = encode_ids(keys)
    with pytest.raises(CodecError):
        decode_ids(text[: data.draw(st.integers(1, len(text) - 1))])


@DETERMINISTIC
@given(KEY_LISTS.filter(bool), st.binary(min_size=1, max_size=4))
def test_a_list_with_something_behind_it_is_refused(keys: list[Key], tail: bytes) -> None:
    packed = b64decode(encode_ids(keys))
    for longer in (
        packed + tail,
        b"\0" + inside(packed) + tail,
        b"\1" + zlib.compress(inside(packed) + tail),
    ):
        with pytest.raises(CodecError):
            decode_ids(b64encode(longer).decode())


@DETERMINISTIC
@given(KEY_LISTS.filter(bool), st.sampled_from([" ", "\n", "!", "-", "_", "\0", "é"]), st.data())
def test_a_list_with_a_foreign_character_in_it_is_refused(keys: list[Key], sign: str, data: st.DataObject) -> None:
    text = encode_ids(keys)
    at = data.draw(st.integers(0, len(text)))
    with pytest.raises(CodecError):
        decode_ids(text[:at] + sign + text[at:])


def test_compressed_text_has_a_checksum() -> None:
    keys: list[Key] = [f"k{number}" for number in range(1000)]
    packed = bytearray(b64decode(encode_ids(keys)))
    assert packed[0] == 1
    for at in range(1, len(packed)):
        broken = packed.copy()
        broken[at] ^= 1
        with contextlib.suppress(CodecError):
            assert decode_ids(b64encode(broken).decode()) == keys


# -- bombs ------------------------------------------------------------------------------------


@contextlib.contextmanager
def bounded(mebibytes: int, seconds: float) -> Iterator[None]:
    tracemalloc.start()
    began = time.process_time()
    try:
        yield
        used = time.process_time() - began
        assert tracemalloc.get_traced_memory()[1] < mebibytes << 20
        assert used < seconds
    finally:
        tracemalloc.stop()


def bomb(mebibytes: int) -> bytes:
    """The beginning of a zlib stream of zeros; a full flush makes its blocks independent of each other."""
    deflater = zlib.compressobj(9)
    first, next_ = (deflater.compress(bytes(1 << 20)) + deflater.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    assert zlib.decompressobj().decompress(first + 2 * next_) == bytes(3 << 20)
    return first + (mebibytes - 1) * next_


def test_a_text_that_inflates_without_end_is_refused_at_once() -> None:
    text = b64encode(b"\1" + bomb(mebibytes=8192)).decode()
    assert len(text) < 16 << 20
    with bounded(mebibytes=256, seconds=5), pytest.raises(CodecError, match="too long"):
        decode_ids(text)


@pytest.mark.parametrize("kind", [0, 1, 2, 10, 11, 12, 13, 14, 255])
@pytest.mark.parametrize("shape", [0, 1])
def test_a_count_that_nothing_follows_is_refused_at_once(shape: int, kind: int) -> None:
    head = (2**32 - 1).to_bytes(4, "big") + bytes([shape, kind])
    with bounded(mebibytes=16, seconds=5), pytest.raises(CodecError):
        decode_ids(b64encode(b"\0" + head + bytes(1000)).decode())


def test_a_length_that_nothing_follows_is_refused_at_once() -> None:
    head = (1).to_bytes(4, "big") + bytes([1, 0]) + (2**32 - 1).to_bytes(4, "little")
    with bounded(mebibytes=16, seconds=5), pytest.raises(CodecError, match="cut off"):
        decode_ids(b64encode(b"\0" + head + bytes(1000)).decode())


@pytest.mark.parametrize("kind", [4, 9, 14, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    head = (1).to_bytes(4, "big") + bytes([1, kind])
    with pytest.raises(CodecError, match="kind"):
        decode_ids(b64encode(b"\0" + head + bytes(100)).decode())
