"""The offset of a queue source: a :class:`.Position` in the form that Spark stores in its offset log.

An offset is one JSON object. The order of its keys is fixed, because Spark compares offsets as text. It is always
shorter than 400 characters. The keys are:

=============  ===============================================================================
``v``          version of this format
``broker``     value of the option `broker`
``source``     what is read: virtual host, queue or topic, subscription, selector; if this is long, its digest
``ids``        where message IDs come from, with the protocol if IDs depend on it;
               empty for a guarantee without IDs
``identity``   the broker's permanent name for itself, empty if unknown
``epoch``      number of the epoch that ends here
``file``       the name of that epoch's file in the journal, with the file's digest; empty if there is no file
``released``   true if ``pyspark-mq release`` has allowed a replay of the epoch to continue without messages that the
               broker does not redeliver; otherwise absent
``crc``        CRC-32 of all fields above, so that an offset edited by hand is refused
=============  ===============================================================================

:class:`.EpochFile` describes the content of an epoch's file. An offset has no host, user or password, so a query can
resume after its broker has moved to another host.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_mq.errors import START_ANEW, CheckpointError
from pyspark_mq.sources.position import Position, shortened
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.id_log import IdLog

__all__ = ["VERSION", "OffsetCodec", "released"]

VERSION = 4
#: Types of the fields that are not text.
_TYPES: Mapping[str, type] = {"epoch": int, "crc": int}
_FRESH = f"Restore the checkpoint, or {START_ANEW}"
#: Maximum lengths of the fields `source` and `ids`, as JSON. Longer values are replaced by their digests.
_SOURCE_MAX, _IDS_MAX = 80, 40


@dataclass(frozen=True, slots=True)
class OffsetCodec:
    """Converts positions of one source to offsets and back.

    Attributes:
        broker, source, ids: values of the offset's fields with these names, before they are shortened to digests.
        destination: what the query reads, in the words of error messages.
        log: the files of the journal; None if the options name no folder for them.
        queues: the queue names if the query reads several queues; None if the query reads a single queue.
        pattern: the value of `queuePattern`; None if that option is not set.
        scope: the end of `source`, with selector and virtual host. It is the same for all queues of the query.
    """

    broker: str
    source: str
    ids: str
    destination: str
    log: IdLog | None = None
    queues: tuple[str, ...] | None = None
    pattern: str | None = None
    scope: str = ""

    @classmethod
    def of(cls, settings: Settings, id_log: str | None = None) -> OffsetCodec:
        """Return the codec for a query with these settings. `id_log` is the folder of its ID log, None if unset."""
        endpoint = settings.endpoint
        host = endpoint.urls[0].virtual_host
        selected = "" if endpoint.selector is None else f" with selector {endpoint.selector!r}"
        scope = f"{selected} in virtual host '{host}'"
        several = bool(settings.queues) or settings.pattern is not None
        return cls(
            broker=endpoint.broker.name,
            source=f"{'queues' if several else endpoint.destination}{scope}",
            ids=_ids(settings) if settings.guarantee.identifies else "",
            destination=settings.destination,
            log=None if id_log is None else IdLog(id_log, settings.destination),
            queues=settings.queues if several else None,
            pattern=settings.pattern,
            scope=scope,
        )

    def encode(self, position: Position) -> dict[str, Any]:
        """Return the offset that stores this position."""
        offset = {
            "v": VERSION,
            "broker": self.broker,
            "source": shortened(self.source, _SOURCE_MAX),
            "ids": shortened(self.ids, _IDS_MAX),
            "identity": shortened(position.broker_id),
            "epoch": position.epoch,
            "file": position.file,
        }
        return released(offset) if position.released else _signed(offset)

    def decode(self, offset: Any) -> Position:
        """Return the position that this offset stores.

        Raises:
            CheckpointError: the offset is damaged, or was written by another source or in another version's format.
        """
        if not isinstance(offset, dict) or "v" not in offset:
            raise self._error("was written by a source of another format, so the checkpoint belongs to another query")
        version = offset["v"]
        if version != VERSION:
            raise CheckpointError(
                f"{self.destination}: the checkpoint has offsets in format version {version!r:.20}, but this version "
                f"of pyspark-mq reads only format version {VERSION}. Use the version of pyspark-mq that wrote the "
                f"offsets, or {START_ANEW}"
            )
        for name in ("broker", "source", "ids", "identity", "epoch", "file", "crc"):
            if not isinstance(offset.get(name), _TYPES.get(name, str)):
                raise self._error(f"is broken: field '{name}' has the invalid value {offset.get(name)!r:.40}")
        body = {name: value for name, value in offset.items() if name != "crc"}
        if _crc(body) != offset["crc"]:
            raise self._error("was changed after it was written (its checksum does not match)")
        self._check_owner(offset)
        if self.log is None and offset["file"] and self.ids:
            raise CheckpointError(
                f"{self.destination}: the message IDs of the checkpoint are in the file '{offset['file']}', but no "
                "option names the folder of this file. Set 'checkpointLocation' or 'idLog' to the value that the query "
                "had when it wrote the checkpoint"
            )
        return Position(offset["epoch"], offset["file"], offset["identity"], released=offset.get("released") is True)

    def _check_owner(self, offset: Mapping[str, Any]) -> None:
        """Refuse an offset that was written for other queues, another broker, or another source of message IDs."""
        source = offset["source"]
        if offset["broker"] != self.broker or not self._may_have_written(source):
            raise CheckpointError(
                f"the checkpoint was written for {source} on broker '{offset['broker']}', but the query now reads "
                f"{self._reads} on broker '{self.broker}'. Use a separate checkpointLocation for each queue, or "
                "correct the options"
            )
        # Queries with guarantee `at-least-once` or `none` have no IDs, so there is nothing to compare.
        if offset["ids"] and self.ids and offset["ids"] != shortened(self.ids, _IDS_MAX):
            raise CheckpointError(
                f"{self.destination}: the checkpoint has IDs from messageIdFrom='{offset['ids']}', but the options "
                f"'messageIdFrom' and 'protocol' now give '{self.ids}', so redeliveries would not be recognised. Set "
                f"these options back to their former values, or {START_ANEW}"
            )

    def _may_have_written(self, source: str) -> bool:
        """Whether this query may resume from a checkpoint whose offsets have the field `source` with this value.

        If the checkpoint's query read several queues, the names of the queues are not in this field, but in the epoch's
        file.
        """
        if source in {shortened(self.source, _SOURCE_MAX), shortened(f"queues{self.scope}", _SOURCE_MAX)}:
            return True
        if self.queues is None:
            return False
        if self.pattern is None:
            return any(source == shortened(f"queue '{name}'{self.scope}", _SOURCE_MAX) for name in self.queues)
        if not (source.startswith("queue '") and source.endswith(f"'{self.scope}")):
            return False
        return re.fullmatch(self.pattern, source[len("queue '") : -len(f"'{self.scope}")]) is not None

    @property
    def _reads(self) -> str:
        return self.source if self.queues is None else f"{self.destination}{self.scope}"

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.destination}: the offset in the checkpoint {problem}. {_FRESH}")


def _ids(settings: Settings) -> str:
    endpoint = settings.endpoint
    if endpoint.broker.ids_by_protocol and settings.id_source.kind == "message-id":
        return f"{settings.id_source} over {endpoint.protocol}"
    return str(settings.id_source)


def released(offset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offset with the mark `released`, so that its epoch may be replayed without missing messages."""
    return _signed({**{name: value for name, value in offset.items() if name != "crc"}, "released": True})


def _signed(offset: dict[str, Any]) -> dict[str, Any]:
    return {**offset, "crc": _crc(offset)}


def _crc(offset: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(offset, sort_keys=True).encode())
