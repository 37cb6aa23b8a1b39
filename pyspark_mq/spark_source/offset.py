"""The offset: a position as Spark's log keeps it.

One JSON object of fixed key order (Spark compares offsets as text):

=============  ===============================================================================
``v``          version of this format
``broker``     value of the option `broker`
``source``     what is read: virtual host, queue or topic, subscription, selector
``ids``        where message IDs come from, with the protocol where that makes a difference;
               empty for a guarantee without IDs
``identity``   the name the broker gives itself and keeps, empty if unknown
``epoch``      number of the epoch that ends here
``planned``    its message IDs, in order (:mod:`pyspark_mq.dedup.codec`)
``carried``    IDs of earlier epochs that may still come again, in pieces of the same form
``until``      up to when each piece has to be carried, seconds since 1970; null where that is
               open, and 1 where it is and one process has found it so; only where not all are null
``released``   true where the epoch may be replayed without what does not come back
               (``pyspark-mq release``), else not there
``records``    where the same command has it written down what of it is given up, if there is a place
``blind``      true where Spark before 4.2 had it planned before it showed what is committed, else not there
``log``        with an ID log: what its files have in their names, from the first epoch of a checkpoint on
``crc``        CRC-32 of all the above: an offset edited by hand is refused, not believed
=============  ===============================================================================

With option `idLog`, ``planned``, ``carried`` and ``until`` are in a file of the ID log, and the offset
has in their place, and version 2:

=============  ===============================================================================
``file``       its name, which has its digest
``folder``     the option's value, so that the option may be left away later; empty if it has a user in it
``size``       how many characters of IDs the file holds, for people
=============  ===============================================================================

Of several queues version 3 has, in place of the lists or in the file, ``queues``: for each a list of its name and its
``planned``, ``carried`` and ``until``, in the order in which the epoch emits them. A query with one queue goes on from
it, and from versions 1 and 2 a query with several of which that is one.

No host, user or password is in it, so a broker may move.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import Part, Position
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.id_log import IdLog

__all__ = ["VERSION", "OffsetCodec", "released"]

#: What offsets of one queue are, without and with a file, and those of several.
_INLINE, _IN_FILE, _SEVERAL = 1, 2, 3
VERSION = _SEVERAL
#: Lists of fewer characters are in the offset itself, with the names of several queues: a trickle writes no files.
_INLINE_CHARS_MAX = 250
#: What is in the file where there is one.
_LISTS = ("planned", "carried", "until")
#: Of fields that are no text.
_TYPES: Mapping[str, type] = MappingProxyType(
    {"epoch": int, "carried": list, "until": list, "crc": int, "queues": list}
)
_FRESH = "Restore the checkpoint, or start with a new checkpointLocation"


@dataclass(frozen=True, slots=True)
class OffsetCodec:
    """Positions of one source to offsets and back.

    Attributes:
        broker, source, ids: as in the table of the module.
        destination: what the query reads, as errors call it.
        log: where IDs go beside the offset; None if they go into it.
        name: of the one queue or topic.
        queues: the names where the query reads several; None where it reads one.
        pattern: what the names have to match, where they are looked up.
        scope: what is the same for all queues, at the end of `source`.
    """

    broker: str
    source: str
    ids: str
    destination: str
    log: IdLog | None = None
    name: str = ""
    queues: tuple[str, ...] | None = None
    pattern: str | None = None
    scope: str = ""

    @classmethod
    def of(cls, settings: Settings, id_log: str | None = None) -> OffsetCodec:
        """The codec for a query with these settings, and option `idLog`."""
        endpoint = settings.endpoint
        host = endpoint.urls[0].virtual_host
        selected = "" if endpoint.selector is None else f" with selector {endpoint.selector!r}"
        scope = f"{selected} in virtual host '{host}'"
        several = bool(settings.queues) or settings.pattern is not None
        source = f"{'queues' if several else endpoint.destination}{scope}"
        return cls(
            broker=endpoint.broker.name,
            source=source,
            ids=_ids(settings) if settings.guarantee.identifies else "",
            destination=settings.destination,
            log=None if id_log is None else IdLog(id_log, settings.destination),
            name=endpoint.name,
            queues=settings.queues if several else None,
            pattern=settings.pattern,
            scope=scope,
        )

    def encode(self, position: Position) -> dict[str, Any]:
        """The offset of a position; its IDs are durable in the ID log before it is returned, if there is one.

        Raises:
            CheckpointError: they cannot be written there.
        """
        one = self.queues is None and not position.parts.keys() - {self.name}
        parts = position.parts
        lists = _lists(parts.get(self.name, Part())) if one else {"queues": [_entry(*item) for item in parts.items()]}
        size = sum(len(part.planned) + sum(map(len, part.carried)) for part in parts.values())
        text = json.dumps(lists)
        in_file = self.log is not None and len(text) > _INLINE_CHARS_MAX
        if self.log is not None and in_file:
            file = self.log.write(position.epoch, text.encode())
            lists = {"file": file, "folder": self.log.public_place, "size": size}
        version = (_IN_FILE if in_file else _INLINE) if one else _SEVERAL
        offset = {
            "v": version,
            "broker": self.broker,
            "source": self.source if one else f"queues{self.scope}",
            "ids": self.ids,
            "identity": position.broker_id,
            "epoch": position.epoch,
            **lists,
        }
        if self.log is not None and position.epoch:
            offset["log"] = self.log.token
        if position.blind:
            offset["blind"] = True
        return released(offset, position.records) if position.released else _signed(offset)

    def decode(self, offset: Any) -> Position:
        """The position of an offset.

        Raises:
            CheckpointError: it is broken, of another source, or of a newer version; or its IDs are not where it says.
        """
        if not isinstance(offset, dict) or "v" not in offset:
            raise self._error("is not one of this source: the checkpoint belongs to another one")
        version = offset["v"]
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(
                f"{self.destination}: the checkpoint has offsets of version {version}, this pyspark-mq "
                f"reads up to {VERSION}. Upgrade pyspark-mq"
            )
        inside = ("queues",) if version == _SEVERAL else _LISTS
        in_file = version == _IN_FILE or (version == _SEVERAL and "file" in offset)
        lists = ("file", "folder") if in_file else inside
        self._check_form(offset, ("broker", "source", "ids", "identity", "epoch", *lists, "crc"))
        body = {name: value for name, value in offset.items() if name != "crc"}
        if _crc(body) != offset["crc"]:
            raise self._error("was changed after it was written (its checksum does not fit)")
        name = self._check_owner(offset)
        if in_file:
            offset = {**offset, **self._lists_in(offset["file"], offset["folder"])}
            self._check_form(offset, inside)
        if version == _SEVERAL:
            parts = dict(map(self._part_of, offset["queues"]))
            self._check_queues(parts)
        else:
            parts = {name: _part(offset["planned"], offset["carried"], offset.get("until", []))}
        if self.log is not None and offset["epoch"]:
            self.log.token = str(offset.get("log", self.log.token))
        return Position(
            offset["epoch"],
            {} if parts == {name: Part()} else parts,
            offset["identity"],
            released=offset.get("released") is True,
            records=str(offset.get("records", "")),
            blind=offset.get("blind") is True,
        )

    def records(self, position: Position) -> IdLog | None:
        """Where it is kept what an epoch was run without: the ID log, or the place that a release has named."""
        if self.log is not None or not position.records:
            return self.log
        return IdLog(position.records, self.destination, token="")

    def _part_of(self, entry: Any) -> tuple[str, Part]:
        kinds = tuple(map(type, entry)) if isinstance(entry, list) else ()
        if kinds != (str, str, list, list):
            raise self._error(f"is broken: field 'queues' has {entry!r:.40}")
        name, planned, carried, until = entry
        self._check_form({"carried": carried, "until": until}, ("carried", "until"))
        return name, _part(planned, carried, until)

    def _lists_in(self, file: str, folder: str) -> Any:
        # The option names where the folder was moved to, or another one from now on.
        elsewhere = folder and (self.log is None or folder != self.log.public_place)
        before = IdLog(folder, self.destination) if elsewhere else None
        log = self.log or before
        if log is None:
            raise CheckpointError(
                f"{self.destination}: the checkpoint's IDs are in the file '{file}' of an ID log. Set "
                "'checkpointLocation' or 'idLog' to the place that the query had"
            )
        if before is not None and not log.has(file) and before.has(file):
            log = before
        return json.loads(log.read(file))

    def _check_form(self, offset: dict[str, Any], names: Sequence[str]) -> None:
        for name in names:
            value = offset.get(name, [] if name == "until" else None)
            if not isinstance(value, _TYPES.get(name, str)):
                raise self._error(f"is broken: field '{name}' is {value!r:.40}")
        until = offset.get("until", [])
        if not all(end is None or type(end) is int for end in until):
            raise self._error(f"is broken: field 'until' is {until!r:.40}")

    def _check_owner(self, offset: dict[str, Any]) -> str:
        """Is it an offset of this source? The name of its queue, if it is of one."""
        source = offset["source"]
        name = self.name if source == self.source else self._name_in(source)
        if offset["broker"] != self.broker or name is None:
            raise self._another(f"{source} of broker '{offset['broker']}'")
        # From and to the lower guarantees there is nothing to compare.
        if offset["ids"] and self.ids and offset["ids"] != self.ids:
            raise CheckpointError(
                f"{self.destination}: the checkpoint has IDs from messageIdFrom='{offset['ids']}', but "
                f"'messageIdFrom' and 'protocol' now give '{self.ids}': redeliveries would not be recognised. "
                "Set them back, or start with a new checkpointLocation"
            )
        return name

    def _name_in(self, source: str) -> str | None:
        """The queue of an offset that was written with other queues; None if it is of no business here."""
        if source == f"queues{self.scope}":
            return self.name
        if self.queues is None or not (source.startswith("queue '") and source.endswith(f"'{self.scope}")):
            return None
        name = source[len("queue '") : -len(f"'{self.scope}")]
        return name if self._reads(name) else None

    def _reads(self, name: str) -> bool:
        if self.queues is None:
            return name == self.name
        return name in self.queues if self.pattern is None else re.fullmatch(self.pattern, name) is not None

    def _check_queues(self, parts: Mapping[str, Part]) -> None:
        """Queues come and go, but not all of those that were named at once."""
        if parts and self.pattern is None and not any(map(self._reads, parts)):
            raise self._another(f"queues {', '.join(map(repr, parts))}{self.scope} of broker '{self.broker}'")

    def _another(self, written_for: str) -> CheckpointError:
        reads = self.source if self.queues is None else f"{self.destination}{self.scope}"
        return CheckpointError(
            f"the checkpoint was written for {written_for}, but the query now reads {reads} of broker "
            f"'{self.broker}'. Use a checkpointLocation of its own for each queue, or correct the options"
        )

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.destination}: the offset in the checkpoint {problem}. {_FRESH}")


def _lists(part: Part) -> dict[str, Any]:
    lists: dict[str, Any] = {"planned": part.planned, "carried": list(part.carried)}
    if any(end is not None for end in part.until_s):
        lists["until"] = list(part.until_s)
    return lists


def _entry(name: str, part: Part) -> list[Any]:
    return [name, part.planned, list(part.carried), list(part.until_s)]


def _part(planned: str, carried: Sequence[str], until: Sequence[int | None]) -> Part:
    return Part(planned, tuple(carried), tuple(until)[: len(carried)])


def _ids(settings: Settings) -> str:
    endpoint = settings.endpoint
    if endpoint.broker.ids_by_protocol and settings.id_source.kind == "message-id":
        return f"{settings.id_source} over {endpoint.protocol}"
    return str(settings.id_source)


def released(offset: Mapping[str, Any], records: str) -> dict[str, Any]:
    """The same offset, whose epoch may be replayed without what does not come back.

    Earlier versions of this package read it, and pay no attention to the mark.

    Args:
        records: folder in which to write down what that is; empty for none.
    """
    marked = {**{name: value for name, value in offset.items() if name != "crc"}, "released": True}
    return _signed({**marked, "records": records} if records else marked)


def _signed(offset: dict[str, Any]) -> dict[str, Any]:
    return {**offset, "crc": _crc(offset)}


def _crc(offset: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(offset, sort_keys=True).encode())
