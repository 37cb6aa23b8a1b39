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
``until``      up to when each piece has to be carried, seconds since 1970, null where that is
               open; only where one has an end
``crc``        CRC-32 of all the above: an offset edited by hand is refused, not believed
=============  ===============================================================================

With option `idLog`, ``planned``, ``carried`` and ``until`` are in a file of the ID log, and the offset
has in their place, and version 2:

=============  ===============================================================================
``file``       its name, which has its digest
``folder``     the option's value, so that the option may be left away later; empty if it has a user in it
``size``       how many characters of IDs the file holds, for people
=============  ===============================================================================

No host, user or password is in it, so a broker may move.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.epochs import Position
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.id_log import IdLog

__all__ = ["VERSION", "OffsetCodec"]

#: What offsets without and with a file are.
_INLINE, _IN_FILE = 1, 2
VERSION = _IN_FILE
#: Fewer characters of IDs are in the offset itself: a trickle writes no files.
_INLINE_CHARS_MAX = 200
#: What is in the file where there is one.
_LISTS = ("planned", "carried", "until")
#: Of fields that are no text.
_TYPES: Mapping[str, type] = MappingProxyType({"epoch": int, "carried": list, "until": list, "crc": int})
_FRESH = "Restore the checkpoint, or start with a new checkpointLocation"


@dataclass(frozen=True, slots=True)
class OffsetCodec:
    """Positions of one source to offsets and back.

    Attributes:
        broker, source, ids: as in the table of the module.
        destination: the queue or topic as errors call it.
        log: where IDs go beside the offset; None if they go into it.
    """

    broker: str
    source: str
    ids: str
    destination: str
    log: IdLog | None = None

    @classmethod
    def of(cls, settings: Settings, id_log: str | None = None) -> OffsetCodec:
        """The codec for a query with these settings, and option `idLog`."""
        endpoint = settings.endpoint
        host = endpoint.urls[0].virtual_host
        selected = "" if endpoint.selector is None else f" with selector {endpoint.selector!r}"
        exact = settings.guarantee.identifies
        source = f"{endpoint.destination}{selected} in virtual host '{host}'"
        owner = f"{endpoint.broker.name} {source}"
        return cls(
            broker=endpoint.broker.name,
            source=source,
            ids=_ids(settings) if exact else "",
            destination=endpoint.destination,
            log=None if id_log is None else IdLog(id_log, owner, endpoint.destination),
        )

    def encode(self, position: Position) -> dict[str, Any]:
        """The offset of a position; its IDs are durable in the ID log before it is returned, if there is one.

        Raises:
            CheckpointError: they cannot be written there.
        """
        lists: dict[str, Any] = {"planned": position.planned, "carried": list(position.carried)}
        if any(end is not None for end in position.until_s):
            lists["until"] = list(position.until_s)
        size = len(position.planned) + sum(map(len, position.carried))
        if self.log is not None and size > _INLINE_CHARS_MAX:
            file = self.log.write(position.epoch, json.dumps(lists).encode())
            lists = {"file": file, "folder": self.log.public_place, "size": size}
        offset = {
            "v": _IN_FILE if "file" in lists else _INLINE,
            "broker": self.broker,
            "source": self.source,
            "ids": self.ids,
            "identity": position.broker_id,
            "epoch": position.epoch,
            **lists,
        }
        return {**offset, "crc": _crc(offset)}

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
        lists = ("file", "folder") if version == _IN_FILE else _LISTS
        self._check_form(offset, ("broker", "source", "ids", "identity", "epoch", *lists, "crc"))
        body = {name: value for name, value in offset.items() if name != "crc"}
        if _crc(body) != offset["crc"]:
            raise self._error("was changed after it was written (its checksum does not fit)")
        self._check_owner(offset)
        if version == _IN_FILE:
            offset = {**offset, **self._lists_in(offset["file"], offset["folder"])}
            self._check_form(offset, _LISTS)
        return Position(
            offset["epoch"],
            offset["planned"],
            tuple(offset["carried"]),
            offset["identity"],
            tuple(offset.get("until", ()))[: len(offset["carried"])],
        )

    def _lists_in(self, file: str, folder: str) -> Any:
        log = self.log or (IdLog(folder, "", self.destination) if folder else None)
        if log is None:
            raise CheckpointError(
                f"{self.destination}: the checkpoint's IDs are in the file '{file}' of an ID log. Set 'idLog' to the "
                "folder that the query had"
            )
        return json.loads(log.read(file))

    def _check_form(self, offset: dict[str, Any], names: Sequence[str]) -> None:
        for name in names:
            value = offset.get(name, [] if name == "until" else None)
            if not isinstance(value, _TYPES.get(name, str)):
                raise self._error(f"is broken: field '{name}' is {value!r:.40}")
        until = offset.get("until", [])
        if not all(end is None or type(end) is int for end in until):
            raise self._error(f"is broken: field 'until' is {until!r:.40}")

    def _check_owner(self, offset: dict[str, Any]) -> None:
        if offset["broker"] != self.broker or offset["source"] != self.source:
            raise CheckpointError(
                f"the checkpoint was written for {offset['source']} of broker '{offset['broker']}', but the "
                f"query now reads {self.source} of broker '{self.broker}'. Use a checkpointLocation of its "
                "own for each queue, or correct the options"
            )
        # From and to the lower guarantees there is nothing to compare.
        if offset["ids"] and self.ids and offset["ids"] != self.ids:
            raise CheckpointError(
                f"{self.destination}: the checkpoint has IDs from messageIdFrom='{offset['ids']}', but "
                f"'messageIdFrom' and 'protocol' now give '{self.ids}': redeliveries would not be recognised. "
                "Set them back, or start with a new checkpointLocation"
            )

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.destination}: the offset in the checkpoint {problem}. {_FRESH}")


def _ids(settings: Settings) -> str:
    endpoint = settings.endpoint
    if endpoint.broker.ids_by_protocol and settings.id_source.kind == "message-id":
        return f"{settings.id_source} over {endpoint.protocol}"
    return str(settings.id_source)


def _crc(offset: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(offset, sort_keys=True).encode())
