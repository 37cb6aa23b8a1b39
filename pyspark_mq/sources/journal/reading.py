"""Reader of the journal's files, which :mod:`pyspark_mq.sources.journal.memory` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark_mq.ack.copies import is_nameless
from pyspark_mq.dedup import Key, encode_ids
from pyspark_mq.sources.journal.lists import PLANNED, Kind
from pyspark_mq.sources.position import JournalFiles, decode

__all__ = ["BESIDE", "keys_of", "planned_in", "remembered_in", "texts_of"]

#: How names of segments begin that are in the file beside that of their epoch.
BESIDE = "beside: "


def planned_in(files: JournalFiles, file: str, destination: str) -> dict[str, list[Key]]:
    """Read the IDs of an epoch: queue -> IDs in order, without those that it is run without.

    Args:
        file: of the epoch; empty for none.
        destination: what errors call what is read.

    Raises:
        CheckpointError: they cannot be read.
    """
    found = keys_of(texts_of(files, file, PLANNED, destination), destination) if file else {}
    # What is not distinguished is not waited for: it comes in later epochs.
    return {queue: [key for key in keys if not is_nameless(key)] for queue, keys in found.items()}


def remembered_in(files: JournalFiles, file: str) -> dict[str, int]:
    """Count the segments that are remembered besides an epoch, by what they are: under way, settled, left.

    Raises:
        CheckpointError: its file cannot be read.
    """
    content = files.read(file) if file else {"open": []}
    if content.get("blind") and files.has(files.beside(file)):
        content = files.read(files.beside(file))
    kinds = [kind for _, _, kind, *_ in content["open"]]
    return {kind.value: kinds.count(kind.value) for kind in Kind}


def texts_of(files: JournalFiles, file: str, name: str, destination: str) -> Mapping[str, Sequence[str]]:
    """Read a segment: queue -> IDs, encoded in pieces; without what was given up of it."""
    content = files.read(files.beside(file) if name.startswith(BESIDE) else file)
    texts: Mapping[str, Sequence[str]] = content["parts"].get(name, {})
    given_up = files.given_up(file) if name == PLANNED else {}
    if not given_up:
        return texts
    left: dict[str, list[str]] = {}
    for queue, pieces in texts.items():
        without = set(decode(given_up.get(queue, ""), destination))
        left[queue] = [
            encode_ids([key for piece in pieces for key in decode(piece, destination) if key not in without])
        ]
    return left


def keys_of(texts: Mapping[str, Sequence[str]], destination: str) -> dict[str, list[Key]]:
    """Decode a segment: queue -> distinct IDs, in order. Pieces are joined as they are, and an ID may be in several."""
    return {
        queue: list(dict.fromkeys(key for piece in pieces for key in decode(piece, destination)))
        for queue, pieces in texts.items()
    }
