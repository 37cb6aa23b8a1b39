"""The identity of deliveries under the options `messageIdFrom` and `onMissingMessageId`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyspark_mq.decode.batch import MESSAGE_ID, DeliveryBatch
from pyspark_mq.dedup import IdSource, Key, OnMissing, TextKeys, id_keys, id_text
from pyspark_mq.dedup.identity import as_text_keys
from pyspark_mq.errors import MissingMessageIdError
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["MessageIds"]


@dataclass(frozen=True, slots=True)
class MessageIds:
    """Identity of deliveries. Pure.

    Attributes:
        on_missing: what to do with a message without an ID.
        exact: whether IDs identify messages; under the lower guarantees, IDs are just a column.
        unreadable_rows: whether a message that cannot be decoded becomes a row.
    """

    source: IdSource
    on_missing: OnMissing
    exact: bool
    unreadable_rows: bool

    @classmethod
    def of(cls, settings: Settings) -> MessageIds:
        """Return an instance for the options of a query."""
        exact = settings.guarantee.identifies
        return cls(settings.id_source, settings.on_missing, exact, settings.on_unreadable is OnUnreadable.ROW)

    def values(self, batch: DeliveryBatch) -> Sequence[Any]:
        """Return each delivery's value under `messageIdFrom`, looked up once for :meth:`keys` and :meth:`texts`."""
        if self.source.kind == "content":
            return [None] * len(batch)
        if self.source.kind == "json":
            path = self.source.name.split(".")
            return [_in_json(body, path) for body in batch.body().to_pylist()]
        values = batch.ids(self.source)
        texts = as_text_keys(values)
        return values if texts is None else texts

    def keys(self, batch: DeliveryBatch, values: Sequence[Any]) -> tuple[Sequence[Key | None], bool]:
        """Identify each delivery.

        Returns:
            a key for each delivery, and whether any key is the digest of a content. The key is the delivery's ID. For a
            delivery without an ID, the options decide whether the key is the digest of the content, or None.
        """
        if self.source.kind == "content":
            return [*batch.digests()], True
        found = id_keys(values)
        if isinstance(found, TextKeys) or None not in found:
            return found, False
        keys = [*found]
        places = [place for place, key in enumerate(keys) if key is None]
        if self.on_missing is not OnMissing.CONTENT:
            if not self.unreadable_rows:
                return keys, False
            # The ID of an unreadable message may be in the unreadable part, and the user asked for a row.
            places = [place for place in places if place in batch.unreadable]
        if places:
            without = batch if len(places) == len(batch) else batch.taken(np.array(places))
            for place, digest in zip(places, without.digests(), strict=True):
                keys[place] = digest
        return keys, bool(places)

    def hidden(self, batch: DeliveryBatch) -> list[str]:
        """Return the values that hide the broker's ID, for deliveries without one."""
        return batch.hidden() if self.source == MESSAGE_ID else []

    def texts(self, values: Sequence[Any]) -> Any:
        """Return the values of column `messageId`: each ID in full, even if a digest replaces it elsewhere."""
        if self.source.kind == "content":
            return values
        if isinstance(values, TextKeys) and values.bounds[0] > 0:
            return values.array
        return list(map(id_text, values))

    def check(self, destination: str, missing: int, first: int, hidden: Sequence[str]) -> None:
        """Check whether messages without an ID may be rejected.

        Args:
            missing: number of messages without an ID.
            first: tag of the first message without an ID.
            hidden: values that hide the broker's ID in these messages.

        Raises:
            MissingMessageIdError: such messages must fail the query.
        """
        if not missing or self.on_missing is not OnMissing.FAIL:
            return
        if hidden:
            raise MissingMessageIdError(
                f"{destination}: {missing} message(s) have a property 'message-id' (the first: {hidden[0]!r}), "
                "which hides the ID that the broker has given them. Have the producer set no "
                "property of that name, read the queue over another protocol with a new checkpointLocation, or "
                "choose another 'messageIdFrom'. The messages were not acknowledged and stay in the queue"
            )
        raise MissingMessageIdError(
            f"{destination}: {missing} message(s) have no ID under messageIdFrom='{self.source}'; the first is "
            f"delivery {first} of its session. The messages were not acknowledged and stay in the queue. Have the "
            "producer set an ID, or choose another 'messageIdFrom'. Or set 'onMissingMessageId': 'content' identifies "
            "such messages by their contents and loses nothing, 'row' emits them as often as they are delivered, and "
            "'reject' rejects them for good. Or set 'guarantee' to 'at-least-once'"
        )


def _in_json(body: bytes, path: Sequence[str]) -> object:
    """Look up text or a whole number in a JSON body; return None if there is neither."""
    try:
        found = json.loads(body)
        for name in path:
            found = found[int(name)] if isinstance(found, list) else found[name]
        if isinstance(found, str):
            found.encode()  # JSON may have half a surrogate pair (RFC 8259, section 8.2), which is not text
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) or type(found) is int else None
