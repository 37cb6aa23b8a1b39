"""Encodes an :class:`.EpochFile` as bytes and back: an Arrow IPC record batch with one row, compressed with zstd.

The keys of planned messages are a list of bytes, in which text keys are encoded in UTF-8. If some keys are not text, a
second list says for each key whether it is bytes. All digests of a kind have the same width, so they are joined into
one value. All other fields are in the JSON of column `head`. This JSON also has the number of keys and digests of each
queue or epoch, which decoding needs to split the joined values.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from pyspark_mq.dedup import ByQueue, EpochFile, Key
from pyspark_mq.dedup.digests import from_bytes
from pyspark_mq.dedup.epoch_file import Snapshot
from pyspark_mq.dedup.identity import CONTENT_DIGEST_BYTES, as_text_keys

__all__ = ["decoded", "encoded"]

_SCHEMA = pa.schema(
    [
        ("head", pa.binary()),
        ("keys", pa.list_(pa.binary())),
        ("bytes", pa.list_(pa.bool_())),
        ("left", pa.binary()),
        ("window_part", pa.binary()),
        ("left_part", pa.binary()),
        ("unsettled", pa.binary()),
        ("unsettled_contents", pa.binary()),
        ("contents", pa.binary()),
        ("left_contents", pa.binary()),
        ("echoes", pa.binary()),
        ("repeating", pa.binary()),
        ("repeats", pa.binary()),
    ]
)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
#: Fields that go into the JSON unchanged.
_PLAIN = (
    "epoch", "start", "queues", "connected_s", "left_so_far", "settled", "base", "after", "left_after",
    "window_parts", "left_parts", "gone", "state", "secret",
)  # fmt: skip


def encoded(file: EpochFile) -> bytes:
    """Encode the content of an epoch's file as bytes."""
    keys, are_bytes = _planned(file.planned)
    head = {name: value for name in _PLAIN if (value := getattr(file, name)) not in (None, False, [])}
    head["start"] = file.start  # written even if 0
    head |= {
        "planned": _counts(file.planned),
        "echoes": _counts(file.echoes),
        "unsettled": [[one.number, dict(one.queues), len(one.digests), len(one.contents)] for one in file.unsettled],
        "contents": [[one.number, one.so_far, len(one.contents)] for one in file.contents],
    }
    row = [
        json.dumps(head, separators=(",", ":")).encode(),
        keys,
        are_bytes,
        file.left.tobytes(),
        file.window_part.tobytes(),
        file.left_part.tobytes(),
        b"".join(one.digests.tobytes() for one in file.unsettled),
        b"".join(one.contents.tobytes() for one in file.unsettled),
        b"".join(one.contents.tobytes() for one in file.contents),
        file.left_contents.tobytes(),
        b"".join(key for keys in file.echoes.values() for key in keys if isinstance(key, bytes)),
        file.repeating.tobytes(),
        file.repeats.tobytes(),
    ]
    arrays = [
        value if isinstance(value, pa.Array) else pa.array([value], kind.type)
        for value, kind in zip(row, _SCHEMA, strict=True)
    ]
    batch = pa.record_batch(arrays, _SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=_OPTIONS) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decoded(data: bytes) -> EpochFile:
    """Decode the bytes of an epoch's file. The caller has checked that the bytes are unchanged.

    Raises:
        ValueError: the file has a field that this version of the package does not know, so another version wrote the
            file.
    """
    with pa.ipc.open_stream(data) as stream:
        batch = stream.read_next_batch()
    columns = {name: batch.column(name)[0] for name in _SCHEMA.names}
    head = json.loads(columns["head"].as_py())
    echoes = columns.pop("echoes").as_py()
    parts = {name: from_bytes(columns[name].as_py()) for name in _SCHEMA.names[3:] if name in columns}
    digests, contents, left = (_Pieces(parts.pop(name)) for name in ("unsettled", "unsettled_contents", "contents"))
    unsettled = [
        Snapshot(number, contents.next(more), digests.next(size), queues)
        for number, queues, size, more in head.pop("unsettled")
    ]
    remembered = [Snapshot(number, left.next(size), so_far=so_far) for number, so_far, size in head.pop("contents")]
    planned = _by_queue(head.pop("planned"), iter(_keys(columns["keys"].values, columns["bytes"].as_py())))
    every = (echoes[at : at + CONTENT_DIGEST_BYTES] for at in range(0, len(echoes), CONTENT_DIGEST_BYTES))
    again = _by_queue(head.pop("echoes"), every)
    if unknown := head.keys() - set(_PLAIN):
        raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
    return EpochFile(**head, **parts, planned=planned, echoes=again, unsettled=unsettled, contents=remembered)


class _Pieces:
    """Digests of several epochs in one array, from which :meth:`next` takes them epoch by epoch."""

    def __init__(self, digests: Any) -> None:
        self._digests, self._at = digests, 0

    def next(self, size: int) -> Any:
        self._at += size
        return self._digests[self._at - size : self._at]


def _counts(keys: ByQueue) -> dict[str, int]:
    return {queue: len(some) for queue, some in keys.items()}


def _by_queue(counts: Mapping[str, int], keys: Iterator[Key]) -> dict[str, list[Key]]:
    return {queue: list(islice(keys, count)) for queue, count in counts.items()}


def _planned(planned: ByQueue) -> tuple[pa.Array, list[bool]]:
    """Return all keys as one Arrow list of bytes, and a list that says for each key whether it is bytes, not text.

    The second list is empty if all keys are text.
    """
    texts = [as_text_keys(keys) for keys in planned.values()]
    if None not in texts:
        chunks = [chunk.cast(pa.binary()) for one in texts if one is not None for chunk in one.chunks]
        every, are_bytes = pa.concat_arrays([pa.array([], pa.binary()), *chunks]), []
    else:
        keys = [key for some in planned.values() for key in some]
        are_bytes = [isinstance(key, bytes) for key in keys]
        # An ID taken from a JSON body may contain half a surrogate pair, which plain UTF-8 cannot encode.
        every = pa.array(
            [key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass") for key in keys], pa.binary()
        )
    return pa.ListArray.from_arrays(pa.array([0, len(every)], pa.int32()), every), are_bytes


def _keys(values: pa.Array, are_bytes: Sequence[bool]) -> list[Key]:
    if not are_bytes:
        with contextlib.suppress(pa.ArrowInvalid):  # a key has half a surrogate pair: decode the keys one by one
            texts: list[Key] = values.cast(pa.string()).to_pylist()
            return texts
        are_bytes = [False] * len(values)
    return [
        value if plain else value.decode("utf-8", "surrogatepass")
        for value, plain in zip(values.to_pylist(), are_bytes, strict=True)
    ]
