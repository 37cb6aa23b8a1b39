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

No host, user or password is in it, so a broker may move.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.epochs import Position
from pyspark_mq.sources.settings import Settings

__all__ = ["VERSION", "OffsetCodec"]

VERSION = 1
_FRESH = "Restore the checkpoint, or start with a new checkpointLocation"


@dataclass(frozen=True, slots=True)
class OffsetCodec:
    """Positions of one source to offsets and back.

    Attributes:
        broker, source, ids: as in the table of the module.
        destination: the queue or topic as errors call it.
    """

    broker: str
    source: str
    ids: str
    destination: str

    @classmethod
    def of(cls, settings: Settings) -> OffsetCodec:
        """The codec for a query with these settings."""
        endpoint = settings.endpoint
        host = endpoint.urls[0].virtual_host
        selected = "" if endpoint.selector is None else f" with selector {endpoint.selector!r}"
        exact = settings.guarantee.identifies
        return cls(
            broker=endpoint.broker.name,
            source=f"{endpoint.destination}{selected} in virtual host '{host}'",
            ids=_ids(settings) if exact else "",
            destination=endpoint.destination,
        )

    def encode(self, position: Position) -> dict[str, Any]:
        """The offset of a position."""
        offset = {
            "v": VERSION,
            "broker": self.broker,
            "source": self.source,
            "ids": self.ids,
            "identity": position.broker_id,
            "epoch": position.epoch,
            "planned": position.planned,
            "carried": list(position.carried),
        }
        if any(end is not None for end in position.until_s):
            offset["until"] = list(position.until_s)
        return {**offset, "crc": _crc(offset)}

    def decode(self, offset: Any) -> Position:
        """The position of an offset.

        Raises:
            CheckpointError: it is broken, of another source, or of a newer version.
        """
        if not isinstance(offset, dict) or "v" not in offset:
            raise self._error("is not one of this source: the checkpoint belongs to another one")
        version = offset["v"]
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(
                f"{self.destination}: the checkpoint has offsets of version {version}, this pyspark-mq "
                f"reads up to {VERSION}. Upgrade pyspark-mq"
            )
        self._check_form(offset)
        self._check_owner(offset)
        return Position(
            offset["epoch"],
            offset["planned"],
            tuple(offset["carried"]),
            offset["identity"],
            tuple(offset.get("until", ()))[: len(offset["carried"])],
        )

    def _check_form(self, offset: dict[str, Any]) -> None:
        types = {"broker": str, "source": str, "ids": str, "identity": str, "epoch": int, "planned": str,
                 "carried": list, "crc": int}  # fmt: skip
        for name, kind in types.items():
            if not isinstance(offset.get(name), kind):
                raise self._error(f"is broken: field '{name}' is {offset.get(name)!r:.40}")
        until = offset.get("until", [])
        if not isinstance(until, list) or not all(end is None or type(end) is int for end in until):
            raise self._error(f"is broken: field 'until' is {until!r:.40}")
        body = {name: value for name, value in offset.items() if name != "crc"}
        if _crc(body) != offset["crc"]:
            raise self._error("was changed after it was written (its checksum does not fit)")

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
