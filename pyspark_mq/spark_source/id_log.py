"""The ID log: message IDs in files beside the checkpoint, so that an offset has a name instead of a megabyte.

Spark writes an offset into its log, into each progress report and into its event log, and prints it with an exception
of the user's own. With option `idLog` the IDs of an epoch go into a file, durable before the offset is returned, and
the offset has the file's name and digest. A file is written once and never changed; what a crash leaves between file
and offset is never asked for, and goes when it is old.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.url import redact_in
from pyspark_mq.spark_source.folders import Folder, above, is_uri, open_folder, shown_place

__all__ = ["IdLog", "public_place"]

#: Spark keeps a hundred offsets unless told otherwise (`spark.sql.streaming.minBatchesToRetain`).
_EPOCHS_KEPT = 120
#: What is older was not written a moment ago by a process that has not come to name it in an offset.
_LEFT_S = 86_400.0
_FILE = re.compile(r"([0-9a-f]{8})-[0-9]{12,}-[0-9a-f]{32}\.json")
#: As :mod:`.folders` names what it has begun to write.
_DRAFT = re.compile(r"\..+\.json\.[0-9a-f]{8}")
#: Pauses between attempts to read a file.
_RESTS_S = (0.2, 1.0)
_DIGEST_BYTES = 16
#: What is known to be on the disks. One for a folder: before Spark 4.2 the first offset of a process has a token of its
#: own, as it is written before another was seen.
_SYNCED = "synced.json"
_TOKEN_BYTES = 4
#: A file that every checkpoint of Spark has.
_METADATA = "metadata"
#: Of an epoch in the name of a record: before Spark 4.2 it may be a time in microseconds.
_NUMBER_DIGITS = 20
#: Parameters of a URI that an offset may show: some stores take a secret as one.
_PUBLIC = frozenset({"endpoint_override", "region", "scheme", "user"})


class IdLog:
    """Files of one source in a folder, which may have those of others too.

    A file has in its name the token of the source and checkpoint it belongs to. So a new checkpoint over an old folder,
    and another source of a query, have files of their own.

    Args:
        place: the folder: an absolute path, or a URI that `pyarrow.fs` opens. It is made for the first file.
        destination: the queue or topic as errors call it.
        token: see there; a new one if None.

    Attributes:
        token: of the checkpoint, until an offset has shown another. Empty for none.
    """

    def __init__(self, place: str, destination: str, token: str | None = None) -> None:
        self._place = place
        self._destination = destination
        self._folder: Folder | None = None
        self.token = secrets.token_hex(_TOKEN_BYTES) if token is None else token
        #: Who notes what is synced, and has it begun?
        self._writer = secrets.token_hex(_TOKEN_BYTES)
        self._noting = False
        #: All offsets of the checkpoint, as they were when that was asked first.
        self._named: bytes | None = None
        #: Of the files there that are ours; None before the first is written.
        self._names: list[str] | None = None

    @property
    def public_place(self) -> str:
        """The folder as anybody may see it, see :func:`public_place`."""
        return public_place(self._place)

    def write(self, epoch: int, data: bytes) -> str:
        """Keep the IDs of an epoch; the file's name, which has their digest.

        Raises:
            CheckpointError: they cannot be kept.
        """
        name = f"{self.token}-{epoch:012d}-{_digest(data)}.json"
        with self._or_say(
            f"the IDs of epoch {epoch} cannot be written",
            "Nothing was acknowledged for it. Correct 'checkpointLocation' or 'idLog', or make room and give the "
            "user of the driver the right to write there",
        ):
            folder = self._opened()
            if self._names is None:
                self._remove_left(folder)
            names = folder.names() if self._names is None else self._names
            if name not in names:
                folder.write(name, data)
            self._names = self._forget(folder, epoch, {*names, name})
        return name

    def _forget(self, folder: Folder, epoch: int, names: Iterable[str]) -> list[str]:
        """Remove what Spark has forgotten as well; the names that are left.

        Files of later epochs are those of a future that this checkpoint, which was restored, does not know: they stay,
        and count for nothing. A file that cannot be removed does no harm.
        """
        ours = re.compile(f"{self.token}-([0-9]{{12,}})-[0-9a-f]{{{2 * _DIGEST_BYTES}}}\\.json")
        numbers = {name: int(found[1]) for name in names if (found := ours.fullmatch(name))}
        past = sorted({number for number in numbers.values() if number <= epoch})
        forgotten = set(past[:-_EPOCHS_KEPT])
        for name in [name for name, number in numbers.items() if number in forgotten]:
            with contextlib.suppress(OSError):
                folder.remove(name)
            del numbers[name]
        return list(numbers)

    def _remove_left(self, folder: Folder) -> None:
        """Remove what crashes have left: drafts, and files of first epochs that came into no offset.

        Such a file is the only one with its token. One that an offset of the checkpoint names stays, and so does
        everything in a folder that is not a checkpoint's own. What cannot be removed does no harm.
        """
        with contextlib.suppress(Exception):
            old_s = time.time() - _LEFT_S
            written_s = folder.written_s()
            lone = Counter(found[1] for name in written_s if (found := _FILE.fullmatch(name)))
            lone.pop(self.token, None)
            for name in [name for name, at_s in written_s.items() if at_s < old_s]:
                found = _FILE.fullmatch(name)
                if _DRAFT.fullmatch(name) or (found and lone[found[1]] == 1 and not self._is_named(name)):
                    folder.remove(name)

    def _is_named(self, name: str) -> bool:
        """Does an offset of the checkpoint that has this folder name a file? Taken for yes where that is not known."""
        if self._named is None:
            root = above(self._place)
            if root is None or _METADATA not in open_folder(root).names():
                return True
            offsets = open_folder(root, "offsets")
            self._named = b"".join(map(offsets.read, offsets.names()))
        return name.encode() in self._named

    # -- what was given up: Records -----------------------------------------------------------

    def write_record(self, end: Position, given_up: Mapping[str, str]) -> None:
        """Keep what an epoch is run without, see :class:`Records <pyspark_mq.sources.position.Records>`."""
        with self._or_say(
            f"what epoch {end.epoch} is run without cannot be written down",
            "Nothing of it was emitted or acknowledged. Make room and give the user of the driver the right to write "
            "there",
        ):
            folder, name = self._opened(), self._record(end)
            data = json.dumps({"epoch": end.epoch, "queues": dict(given_up)}).encode()
            names = sorted(found for found in folder.names() if found.startswith(self._records))
            (folder.replace if name in names else folder.write)(name, data)
            for old in [found for found in names if found != name][: 1 - _EPOCHS_KEPT]:
                with contextlib.suppress(OSError):
                    folder.remove(old)

    def forget_records(self, epoch: int) -> None:
        """Forget what was given up from an epoch on, see :class:`Records <pyspark_mq.sources.position.Records>`."""
        with self._or_say(
            f"what was given up from epoch {epoch} on cannot be removed",
            "Give the user of the driver the right to list and delete there",
        ):
            folder = self._opened()
            for name in folder.names():
                number = name.removeprefix(self._records)[:_NUMBER_DIGITS]
                if name.startswith(self._records) and number >= f"{epoch:0{_NUMBER_DIGITS}d}":
                    folder.remove(name)

    def read_record(self, end: Position) -> Mapping[str, str]:
        """Messages that an epoch was run without, see :class:`Records <pyspark_mq.sources.position.Records>`."""
        with self._or_say(
            f"what epoch {end.epoch} was run without cannot be looked up",
            "Have the folder readable for the user of the driver, or restore the file",
        ):
            folder, name = self._opened(), self._record(end)
            found: Mapping[str, str] = json.loads(folder.read(name))["queues"] if name in folder.names() else {}
        return found

    def note_synced(self, epoch: int) -> None:
        """Note what is on the disks, see :class:`Records <pyspark_mq.sources.position.Records>`."""
        with self._or_say(
            f"that epoch {epoch} is on the disks cannot be noted",
            "Nothing of it was acknowledged. Make room and give the user of the driver the right to write there",
        ):
            folder = self._opened()
            noted = self._note() if self._noting else None
            if noted is None or noted["writer"] == self._writer:
                data = {"epoch": epoch, "boot": _boot(), "writer": self._writer}
                folder.replace(_SYNCED, json.dumps(data).encode())
                self._noting = True
                return
        raise CheckpointError(
            f"{self._destination}: another source of the query notes what is on the disks, too. Option 'settleAfter' "
            "can be 'synced' where a query has one source: set it to 'committed'"
        )

    def lost_power(self, epoch: int) -> bool:
        """Is an epoch another than the noted one, and the machine another start of it?

        Before Spark 4.2 numbers are times, and a clock may have gone back: which is later they do not say.

        See :class:`Records <pyspark_mq.sources.position.Records>`. Without a note it is not known, and taken for no.
        """
        noted = self._note()
        return noted is not None and bool(noted["epoch"] != epoch and noted["boot"] != _boot())

    def synced(self) -> int | None:
        """The epoch of the note; None for none."""
        noted = self._note()
        return None if noted is None else noted["epoch"]

    def forget_synced(self) -> None:
        """Remove the note, see :class:`Records <pyspark_mq.sources.position.Records>`."""
        if is_uri(self._place):
            return
        with self._or_say("the note of what is on the disks cannot be removed", "Have the folder writable"):
            folder = self._opened()
            if _SYNCED in folder.names():
                folder.remove(_SYNCED)
                os.sync()

    def _note(self) -> dict[str, Any] | None:
        with self._or_say(
            f"the note of what is on the disks, '{_SYNCED}', cannot be read",
            "Have the folder readable for the user of the driver, or restore the file",
        ):
            folder = self._opened()
            if _SYNCED not in folder.names():
                return None
            noted = json.loads(folder.read(_SYNCED))
            return {"epoch": int(noted["epoch"]), "boot": str(noted["boot"]), "writer": str(noted["writer"])}

    @property
    def _records(self) -> str:
        return f"{self.token}-given-up-".lstrip("-")

    def _record(self, end: Position) -> str:
        planned = json.dumps(sorted((name, part.planned) for name, part in end.parts.items() if part.planned))
        return f"{self._records}{end.epoch:0{_NUMBER_DIGITS}d}-{_digest(planned.encode())}.json"

    def has(self, name: str) -> bool:
        """Is the file there, as far as that can be told?"""
        try:
            return name in self._opened().names()
        except Exception:  # noqa: BLE001 - to read it says why not
            return False

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            CheckpointError: it is not there, or not what was written.
        """
        advice = (
            "Set 'checkpointLocation' or 'idLog' to the place that the query had, restore the file, or start with a "
            "new checkpointLocation"
        )
        with self._or_say(f"the offset names the file '{name}', which cannot be read", advice):
            data = self._read_patiently(name)
        if not name.endswith(f"-{_digest(data)}.json"):
            raise self._error(f"the file '{name}' was changed after it was written", "another digest", advice)
        return data

    def _read_patiently(self, name: str) -> bytes:
        """The content of a file; a store that fails for a moment is asked again."""
        for rest_s in _RESTS_S:
            try:
                return self._opened().read(name)
            except FileNotFoundError:
                raise
            except OSError:
                time.sleep(rest_s)
        return self._opened().read(name)

    @contextlib.contextmanager
    def _or_say(self, problem: str, advice: str) -> Iterator[None]:
        """Whatever the store has against what is done here is an error in our words."""
        try:
            yield
        except Exception as failed:
            raise self._error(problem, failed, advice) from failed

    def _error(self, problem: str, why: object, advice: str) -> CheckpointError:
        reason = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        reason = redact_in(reason, self._place)
        return CheckpointError(
            f"{self._destination}: the ID log in '{shown_place(self._place)}': {problem} ({reason}). {advice}"
        )

    def _opened(self) -> Folder:
        if self._folder is None:
            self._folder = open_folder(self._place)
        return self._folder


def public_place(place: str) -> str:
    """The same, as it may be written into an offset; empty if there are, or may be, credentials in it."""
    if not is_uri(place):
        return place
    parameters = dict(parse_qsl(place.partition("?")[2], keep_blank_values=True))
    return "" if "@" in place or parameters.keys() - _PUBLIC else place


def _boot() -> str:
    """Another text after each start of this machine (random(4)); always empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
