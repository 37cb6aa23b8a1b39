"""The ID log: the files of the journal, beside the checkpoint (:mod:`pyspark_mq.sources.journal.memory`).

Spark writes an offset into its log, into each progress report and into its event log, and prints it with an exception
of the user's own. So the IDs of an epoch go into a file, durable before the offset is returned, and the offset has the
file's name, which has its digest. A file is written once and never changed; what a crash leaves between file and offset
is never asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark_mq.errors import START_ANEW, CheckpointError
from pyspark_mq.sources.url import redact_in
from pyspark_mq.spark_source.folders import Folder, above, is_uri, open_folder, shown_place

__all__ = ["IdLog"]

#: What is older was not written a moment ago by a process that has not come to name it in an offset.
_LEFT_S = 86_400.0
_FILE = re.compile(r"(?P<stem>(?P<token>[0-9a-f]{8})-(?P<epoch>[0-9]{12,})-[0-9a-f]{32})(?:-[a-z0-9-]+)?\.json")
#: As :mod:`.folders` names what it has begun to write.
_DRAFT = re.compile(r"\..+\.json\.[0-9a-f]{8}")
#: Ends of the names of what is kept of an epoch besides.
_BESIDE, _GIVEN_UP, _ACKNOWLEDGED = "-beside", "-given-up", "-acknowledged.json"
#: Pauses between attempts to read a file.
_RESTS_S = (0.2, 1.0)
_DIGEST_BYTES = 16
#: What is known to be on the disks. One for a folder: before Spark 4.2 the first offset of a process has a token of its
#: own, as it is written before another was seen.
_SYNCED = "synced.json"
_TOKEN_BYTES = 4
_MAKE_ROOM = "Make room and give the user of the driver the right to write there"


class IdLog:
    """Files of one source in a folder, which may have those of others too.

    Its methods are described at :class:`.JournalFiles`.

    A file has in its name the token of the source and checkpoint it belongs to. So a new checkpoint over an old folder,
    and another source of a query, have files of their own. No file is ever replaced, as not every store can do that in
    one step.

    Args:
        place: the folder: an absolute path, or a URI that `pyarrow.fs` opens. It is made for the first file.
        destination: the queue or topic as errors call it.
        source: what distinguishes the sources of a checkpoint. In a checkpoint's folder it makes the token, which all
            its processes have then, also those that have seen no offset yet. In another folder there may be files of
            several checkpoints.

    Attributes:
        token: of the checkpoint, until an offset has shown another.
    """

    def __init__(self, place: str, destination: str, source: str = "") -> None:
        self._place = place
        self._destination = destination
        own = source and above(place) is not None
        self.token = _digest(source.encode())[: 2 * _TOKEN_BYTES] if own else secrets.token_hex(_TOKEN_BYTES)
        #: Who notes what is synced, and has it begun?
        self._writer = secrets.token_hex(_TOKEN_BYTES)
        self._noting = False
        #: The file that was read or written last.
        self._last: tuple[str, Mapping[str, Any]] | None = None

    def follow(self, file: str) -> None:
        """Go on with the token of a file that an offset names."""
        found = _FILE.fullmatch(file)
        self.token = self.token if found is None else found["token"]

    # -- files of epochs

    def write(self, epoch: int, content: Mapping[str, Any]) -> str:
        data = json.dumps(content).encode()
        name = f"{self.token}-{epoch:012d}-{_digest(data)}.json"
        with self._or_say(
            f"the IDs of epoch {epoch} cannot be written",
            "Nothing was acknowledged for it. Correct 'checkpointLocation' or 'idLog', or make room and give the "
            "user of the driver the right to write there",
        ):
            self._write(name, data)
        self._last = name, content
        return name

    def read(self, file: str) -> Mapping[str, Any]:
        if self._last is not None and self._last[0] == file:
            return self._last[1]
        advice = (
            f"Set 'checkpointLocation' or 'idLog' to the place that the query had, restore the file, or {START_ANEW}"
        )
        with self._or_say(f"the offset names the file '{file}', which cannot be read", advice):
            data = self._read_patiently(file)
            stem, mark, _ = file.partition(_BESIDE)
            if mark:
                data, _, digest = data.rpartition(b"\n")
                whole = digest.decode("ascii", "replace") == _digest(stem.encode() + data)
            else:
                whole = file.endswith(f"-{_digest(data)}.json")
        if not whole:
            raise self._error(f"the file '{file}' was changed after it was written", "another digest", advice)
        content: Mapping[str, Any] = json.loads(data)
        self._last = file, content
        return content

    def beside(self, file: str) -> str:
        return f"{_stem(file)}{_BESIDE}.json"

    def has(self, file: str) -> bool:
        with self._or_say(
            f"the file '{file}' cannot be looked up", "Have the folder readable for the user of the driver"
        ):
            return file in self._names

    def write_beside(self, file: str, content: Mapping[str, Any]) -> None:
        name, data = self.beside(file), json.dumps(content).encode()
        with self._or_say(
            f"what is remembered beside '{file}' cannot be written",
            f"Nothing of the epoch was emitted. {_MAKE_ROOM}",
        ):
            self._write(name, data + b"\n" + _digest(_stem(file).encode() + data).encode())

    def note_acknowledged(self, file: str) -> None:
        with self._or_say(
            f"that the epoch of '{file}' is acknowledged cannot be noted",
            f"Nothing of it was acknowledged. {_MAKE_ROOM}",
        ):
            self._write(f"{_stem(file)}{_ACKNOWLEDGED}", b"{}")

    def acknowledged(self, file: str) -> bool:
        return self.has(f"{_stem(file)}{_ACKNOWLEDGED}")

    def given_up(self, file: str) -> Mapping[str, str]:
        with self._or_say(
            f"what the epoch of '{file}' was run without cannot be looked up",
            "Have the folder readable for the user of the driver, or restore the file",
        ):
            records = sorted(name for name in self._names if name.startswith(f"{_stem(file)}{_GIVEN_UP}"))
            # Each has what the one before has.
            found: Mapping[str, str] = json.loads(self._read_patiently(records[-1]))["queues"] if records else {}
        return found

    def give_up(self, file: str, ids: Mapping[str, str]) -> None:
        with self._or_say(
            f"what the epoch of '{file}' is run without cannot be written down",
            f"Nothing of it was emitted or acknowledged. {_MAKE_ROOM}",
        ):
            before = sum(name.startswith(f"{_stem(file)}{_GIVEN_UP}") for name in self._names)
            self._write(f"{_stem(file)}{_GIVEN_UP}-{before:06d}.json", json.dumps({"queues": dict(ids)}).encode())

    def remove(self, files: Collection[str]) -> None:
        for file in files:
            for name in [name for name in self._names if name.startswith(_stem(file))]:
                self._remove(name)

    def remove_others(self, kept: Collection[str], epoch: int) -> None:
        # Files of later epochs are of a future that this checkpoint, which was restored, does not know: they stay.
        with contextlib.suppress(Exception):
            self._remove_drafts()
        with contextlib.suppress(Exception):
            stems = set(map(_stem, kept))
            for name in list(self._names):
                found = _FILE.fullmatch(name)
                ours = found is not None and found["token"] == self.token and int(found["epoch"]) <= epoch
                if ours and _stem(name) not in stems:
                    self._remove(name)

    def _write(self, name: str, data: bytes) -> None:
        if name not in self._names:  # else it is the same, as its digest is in its name
            self._folder.write(name, data)
            self._names.add(name)

    def _remove(self, name: str) -> None:
        if name in self._names:
            with contextlib.suppress(OSError):
                self._folder.remove(name)
                self._names.discard(name)

    @cached_property
    def _names(self) -> set[str]:
        """Names of the files there."""
        return set(self._folder.names())

    def _remove_drafts(self) -> None:
        """Remove what was begun to be written a day ago, in whatever process. What cannot be removed does no harm."""
        folder, old_s = self._folder, time.time() - _LEFT_S
        for name, at_s in folder.written_s().items():
            if at_s < old_s and _DRAFT.fullmatch(name):
                folder.remove(name)

    # -- what is on the disks

    def note_synced(self, epoch: int) -> None:
        with self._or_say(
            f"that epoch {epoch} is on the disks cannot be noted",
            f"Nothing of it was acknowledged. {_MAKE_ROOM}",
        ):
            folder = self._folder
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
        # Before Spark 4.2 numbers are times, and a clock may have gone back: which is later they do not say.
        noted = self._note()
        return noted is not None and bool(noted["epoch"] != epoch and noted["boot"] != _boot())

    def synced(self) -> int | None:
        """The epoch of the note; None for none."""
        noted = self._note()
        return None if noted is None else noted["epoch"]

    def forget_synced(self) -> None:
        if is_uri(self._place):
            return
        with self._or_say("the note of what is on the disks cannot be removed", "Have the folder writable"):
            folder = self._folder
            if _SYNCED in folder.names():
                folder.remove(_SYNCED)
                os.sync()

    def _note(self) -> dict[str, Any] | None:
        with self._or_say(
            f"the note of what is on the disks, '{_SYNCED}', cannot be read",
            "Have the folder readable for the user of the driver, or restore the file",
        ):
            folder = self._folder
            if _SYNCED not in folder.names():
                return None
            noted = json.loads(folder.read(_SYNCED))
            return {"epoch": int(noted["epoch"]), "boot": str(noted["boot"]), "writer": str(noted["writer"])}

    def _read_patiently(self, name: str) -> bytes:
        """The content of a file; a store that fails for a moment is asked again."""
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

    @cached_property
    def _folder(self) -> Folder:
        return open_folder(self._place)


def _stem(file: str) -> str:
    found = _FILE.fullmatch(file)
    return file.removesuffix(".json") if found is None else found["stem"]


def _boot() -> str:
    """Another text after each start of this machine (random(4)); always empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
