"""The ID log: a folder, usually in the checkpoint, with one file of message IDs for each epoch.

:mod:`pyspark_mq.sources.journal` decides what the files contain; this module names, writes, reads and removes them.

Spark copies an offset into its log, into each progress report and into its event log, and prints the offset when a
user's own code fails. So an offset must be short: the IDs of its epoch are in a file, and the offset has only the
file's name, which includes a digest of the content. The file is durable before the offset is returned to Spark. It is
written once and never changed.

Several queries and sources may share the folder. A file's name begins with a random token of its process and a number,
so names never conflict. Files are removed by their exact names, when no later epoch's file refers to them.

A crash may leave a file whose offset Spark never logged. The next process finds such a file by its name. The first file
of a process has, in its name, the token and number of the file from which the process resumed, or the state of Spark's
log if Spark showed no file. Each further file of the process has the next number. The first file also records the
state of Spark's log in its content. If two sources of a query wrote files in the same state, the next entry of Spark's
log shows which of these files have an offset.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark_mq.dedup import EpochFile
from pyspark_mq.errors import START_ANEW, CheckpointError
from pyspark_mq.spark_source.folders import Folder, above, is_uri, open_folder, shown_place
from pyspark_mq.spark_source.id_file import decoded, encoded
from pyspark_mq.spark_source.offset_log import OffsetLog
from pyspark_mq.wire.url import redact_in

__all__ = ["IdLog"]

#: Pattern of file names: token, number, digest of the content, and for a note its name. The first file of a process has
#: two tokens: the token of the file from which the process resumed, with the number after that file's number, and then
#: the process's own token. This file counts as number 1 of its process.
_FILE = re.compile(
    r"(?P<stem>(?P<after>[0-9a-f]{16})-(?P<number>[0-9]{6,})(?:-(?P<token>[0-9a-f]{16}))?-[0-9a-f]{32})"
    r"(?:-[a-z0-9-]+)?\.arrow"
)
#: Pauses in seconds between attempts to read a file, or to find the first entry of Spark's log.
_RESTS_S = (0.2, 1.0)
#: Shortest interval between two look-ups in Spark's log of files that Spark showed. These look-ups are needed because
#: with `asyncProgressTrackingEnabled` the log lacks some batches, or has them too late.
_COMPARE_S = 10.0
_DIGEST_BYTES = 16
_HEX = 2 * _DIGEST_BYTES
_END = ".arrow"
#: Name of the note with the last epoch that is on disk (option `settleAfter=synced`). A folder has one such note.
_SYNCED = "synced.json"
_TOKEN_BYTES = 8
_MAKE_ROOM = "Make room, and give the driver's user the right to write there"
_READABLE = "Make the folder readable for the driver's user"
#: Beginning of a note's name -> problem and advice of the error if the note cannot be written. Notes are small files
#: next to the file of an epoch; :mod:`pyspark_mq.sources.journal` lists them.
_WRITTEN = {
    "alone": ("the note that a run begins at '{}' cannot be written", f"Nothing was received. {_MAKE_ROOM}"),
    "abandoned": (
        "the list of the messages that the epoch of '{}' leaves out cannot be written",
        f"The epoch was neither emitted nor acknowledged. {_MAKE_ROOM}",
    ),
    "expected": (
        "the note that this process waits for the messages of the epoch of '{}' cannot be written",
        f"Nothing was received. {_MAKE_ROOM}",
    ),
    "begun": (
        "the note that redeliveries in the epoch of '{}' are acknowledged cannot be written",
        f"The epoch was not emitted. {_MAKE_ROOM}",
    ),
    "replayed": (
        "the note that the epoch of '{}' is replayed cannot be written",
        f"The epoch was not emitted. {_MAKE_ROOM}",
    ),
    "settled": (
        "the note that the epoch of '{}' is settled cannot be written",
        f"Everything committed is acknowledged. {_MAKE_ROOM}",
    ),
    "acknowledged": (
        "the note that the epoch of '{}' is acknowledged cannot be written",
        f"The epoch was not acknowledged. {_MAKE_ROOM}",
    ),
}  # fmt: skip


class IdLog:
    """The files of one source's journal, in a folder that other sources may share.

    The base class :class:`.JournalFiles` describes the methods.

    Args:
        place: the folder: an absolute path, or a URI that `pyarrow.fs` opens. It is created with the first file.
        destination: the queue or topic, in the words of error messages.

    Attributes:
        offsets: Spark's log in the same checkpoint; None for a folder outside a checkpoint.
    """

    def __init__(self, place: str, destination: str) -> None:
        self._place = place
        self._destination = destination
        checkpoint = above(place)
        self.offsets = None if checkpoint is None else OffsetLog(checkpoint)
        self._token = secrets.token_hex(_TOKEN_BYTES)
        #: How many files of epochs this process has written, and the name of the first of them.
        self._number, self._first = 0, ""
        #: Files named by offsets that Spark has shown, the newest last. None once this process's own first file was
        #: shown: after that, files left by former processes no longer matter.
        self._shown: dict[str, None] | None = {}
        #: The last file that was looked up in Spark's log, and the time of this check.
        self._compared, self._compared_s = "", -math.inf
        #: Files without an offset, which crashed processes wrote, and which `left_by_crashes` has not returned yet.
        self._left: list[str] = []
        #: Whether this process has written the note of the last epoch on disk.
        self._noting = False
        #: Name and content of the last file that was read or written.
        self._last: tuple[str, EpochFile] | None = None

    def show(self, file: str) -> None:
        """Record that Spark has passed an offset that names this file.

        Raises:
            CheckpointError: the folder is in a checkpoint, and Spark's log there has no offset that names the file.
        """
        now_s = time.monotonic()
        known = file == self._compared if self._shown is None else file in self._shown
        if not file or known or (self._shown is None and now_s - self._compared_s < _COMPARE_S):
            return
        self._check_home(file)
        self._compared = file
        if self._shown is None:
            self._compared_s = now_s
            return
        self._shown[file] = None
        found = _FILE.fullmatch(file)
        if self.offsets is not None and found is not None and found["token"] is not None:
            self._left += self._unlogged(file, self.offsets)

    def _unlogged(self, file: str, offsets: OffsetLog) -> list[str]:
        """Return the files that were written in the same state of Spark's log as `file`, but that no offset names.

        Crashed processes wrote these files. `file` is the first file of its process.

        Each entry of Spark's log has the offsets of all sources of the query. So if the first entry that names `file`
        does not name another file of the same state, no entry names that other file.
        """
        with contextlib.suppress(CheckpointError):  # an unreadable file raises this error again when it is needed
            state = self.read(file).state
            others = {f"{_stem(name)}{_END}" for name in self._names if name.lstrip(".").startswith(f"{state}-")}
            entry = offsets.first_naming(file) if others - {file} else b""
            return [name for name in sorted(others) if entry and name.encode() not in entry]
        return []

    def left_by_crashes(self) -> list[str]:
        left, self._left = self._left, []
        if self._shown is not None:
            named = {*self._shown, self._first}
            left += [name for file in self._shown for name in self._after(file) if name not in named]
            if self._first in self._shown:
                self._shown = None  # all later files are this process's own
        return left

    def _after(self, file: str) -> list[str]:
        """Return the files of epochs that were written after the epoch of `file`.

        These are the later files of the same process, and all files of processes that resumed from `file` or from one
        of the later files. The name of a process's first file tells from which file the process resumed.
        """
        every = [found for name in self._names if (found := _FILE.fullmatch(name.lstrip(".")))]
        after: set[str] = set()
        chains = [_place_of(file)]
        while chains:
            token, number = chains.pop()
            for found in every:
                if found["after"] == token and int(found["number"]) > number:
                    after.add(f"{found['stem']}{_END}")
                    chains += [(found["token"], 1)] if found["token"] else []
        return sorted(after)

    def _check_home(self, file: str) -> None:
        if self.offsets is None:
            return
        with self._or_say("Spark's log, in the folder 'offsets' of the checkpoint, cannot be read", _READABLE):
            named = self.offsets.names(file)
            # With `asyncProgressTrackingEnabled` Spark may be writing the entry just now. Then the file must stay.
            for rest_s in _RESTS_S if file == self._first else ():
                if not named:
                    time.sleep(rest_s)
                    named = self.offsets.names(file)
        if not named:
            if file == self._first and not self._shown:
                self._remove(file)  # nothing was emitted, and the next start writes a new file
            place = shown_place(above(self._place) or self._place)
            raise CheckpointError(
                f"{self._destination}: {place!r}, the 'checkpointLocation' of the source, is not this query's "
                "checkpoint: its folder 'offsets' does not have the offset of this batch. The batch was neither "
                "emitted nor acknowledged. Set the same 'checkpointLocation' on writeStream: without this option Spark "
                "uses a temporary folder, as it does for the sinks 'console' and 'memory'. Each query needs its own "
                "load() and 'checkpointLocation'. If both options are already equal, leave out "
                "'asyncProgressTrackingEnabled', because this option makes Spark write offsets too late. To look at "
                "messages without consuming them, use 'pyspark-mq peek'"
            )

    # -- files of epochs

    def put(self, content: EpochFile, of: str = "", note: str = "") -> str:
        if note:
            name, data = f"{_stem(of)}-{note}{_END}", encoded(content)
            problem, advice = next(texts for kind, texts in _WRITTEN.items() if note.startswith(kind))
            with self._or_say(problem.format(of), advice):
                self._write(name, data + _digest(f"{_stem(of)}-{note}".encode() + data).encode())
            return name
        with self._or_say(
            f"the IDs of epoch {content.epoch} cannot be written",
            "The epoch was not acknowledged. Correct 'checkpointLocation' or 'idLog', or make room and give the "
            "driver's user the right to write there",
        ):
            begin = f"{self._token}-{self._number + 1:06d}"
            if not self._first:
                state = self._token if self.offsets is None else self.offsets.state()
                content = replace(content, state=state)
                token, number = _place_of([*self._shown][-1]) if self._shown else (state, 0)
                begin = f"{token}-{number + 1:06d}-{self._token}"
            data = encoded(content)
            name = f"{begin}-{_digest(data)}{_END}"
            self._write(name, data)
        self._number += 1
        self._first = self._first or name
        self._last = name, content
        return name

    def read(self, file: str, note: str = "") -> EpochFile:
        name = f"{_stem(file)}-{note}{_END}" if note else file
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        advice = f"Set 'checkpointLocation' or 'idLog' to their former values, restore the file, or {START_ANEW}"
        with self._or_say(f"the offset names the file '{name}', which cannot be read", advice):
            data = self._read_patiently(name)
            if note:
                data, digest = data[:-_HEX], data[-_HEX:]
                whole = digest.decode("ascii", "replace") == _digest(f"{_stem(file)}-{note}".encode() + data)
            else:
                whole = name.endswith(f"-{_digest(data)}{_END}")
        if not whole:
            raise self._error(f"the file '{name}' was changed after it was written", "its digest differs", advice)
        try:
            content = decoded(data)
        except ValueError as unknown:
            other = f"Use the version of pyspark-mq that wrote it, or {START_ANEW}"
            raise self._error(f"the file '{name}' has the format of another version", unknown, other) from None
        self._last = name, content
        return content

    def notes(self, file: str) -> list[str]:
        with self._or_say(f"the files that belong to '{file}' cannot be listed", _READABLE):
            begin = f"{_stem(file)}-"
            return sorted(name[len(begin) : -len(_END)] for name in self._names if name.startswith(begin))

    def has_note(self, file: str, note: str) -> bool:
        with self._or_say(f"the notes about '{file}' cannot be listed", _READABLE):
            return f"{_stem(file)}-{note}{_END}" in self._folder.names()

    def remove(self, files: Collection[str], note: str = "") -> None:
        # The names come from a file, which could have been forged: an empty name would be the beginning of all names,
        # and a path could lead to another folder. So only names of the right form are accepted.
        for file in filter(_FILE.fullmatch, files):
            every = [name for name in self._names if name.lstrip(".").startswith(_stem(file))]
            for name in [f"{_stem(file)}-{note}{_END}"] if note else every:
                self._remove(name)

    def _write(self, name: str, data: bytes) -> None:
        if name not in self._names:  # else the same content was written before
            self._folder.write(name, data)
            self._names.add(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._folder.remove(name)
            self._names.discard(name)

    @cached_property
    def _names(self) -> set[str]:
        """Names of the files in the folder."""
        return set(self._folder.names())

    # -- the note of the last epoch on disk

    def note_synced(self, epoch: int) -> None:
        with self._or_say(
            f"the note that epoch {epoch} is on disk cannot be written",
            f"The epoch was not acknowledged. {_MAKE_ROOM}",
        ):
            folder = self._folder
            noted = self._note() if self._noting else None
            if noted is None or noted["writer"] == self._token:
                data = {"epoch": epoch, "boot": _boot(), "writer": self._token}
                folder.replace(_SYNCED, json.dumps(data).encode())
                self._noting = True
                return
        raise CheckpointError(
            f"{self._destination}: another source of the query has 'settleAfter=synced' too, but only one source can "
            "record in this folder which epoch is on disk: set 'settleAfter' to 'committed'"
        )

    def lost_power(self, epoch: int) -> bool:
        # An epoch later than the noted one was not on disk when the note was written. An earlier epoch shows that this
        # is not the checkpoint for which the note was written. So every epoch but the noted one counts.
        noted = self._note()
        return noted is not None and bool(noted["epoch"] != epoch and noted["boot"] != _boot())

    def synced(self) -> int | None:
        """Return the number of the last epoch that is on disk according to the note; None if there is no note."""
        noted = self._note()
        return None if noted is None else noted["epoch"]

    def forget_synced(self) -> None:
        if is_uri(self._place):
            return
        with self._or_say("the note of the epoch on disk cannot be removed", "Make the folder writable"):
            folder = self._folder
            if _SYNCED in folder.names():
                folder.remove(_SYNCED)
                os.sync()

    def _note(self) -> dict[str, Any] | None:
        with self._or_say(
            f"the note of the epoch on disk, '{_SYNCED}', cannot be read",
            "Make the folder readable for the driver's user, or restore the file",
        ):
            folder = self._folder
            if _SYNCED not in folder.names():
                return None
            noted = json.loads(folder.read(_SYNCED))
            return {"epoch": int(noted["epoch"]), "boot": str(noted["boot"]), "writer": str(noted["writer"])}

    def _read_patiently(self, name: str) -> bytes:
        """Return the bytes of a file. Retry twice if the store fails, but not if the file does not exist."""
        for rest_s in _RESTS_S:
            try:
                return self._folder.read(name)
            except FileNotFoundError:
                raise
            except OSError:
                time.sleep(rest_s)
        return self._folder.read(name)

    @contextlib.contextmanager
    def _or_say(self, problem: str, advice: str) -> Iterator[None]:
        """Turn errors of the file system into a CheckpointError with this problem and advice."""
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

    @cached_property
    def _folder(self) -> Folder:
        return open_folder(self._place)


def _stem(file: str) -> str:
    found = _FILE.fullmatch(file.lstrip("."))
    return file.removesuffix(_END) if found is None else found["stem"]


def _place_of(file: str) -> tuple[str, int]:
    """Return the token of the process that wrote a file, and the number that this process gave to the file."""
    found = _FILE.fullmatch(file)
    if found is None:
        return _digest(file.encode())[: 2 * _TOKEN_BYTES], 1
    return (found["token"], 1) if found["token"] else (found["after"], int(found["number"]))


def _boot() -> str:
    """Return the machine's boot ID, which changes with each boot (random(4)); empty on systems without a boot ID."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
