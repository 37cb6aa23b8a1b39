"""Finds the IDs of deliveries, as the options `messageIdFrom` and `onMissingMessageId` say."""

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

#: Bytes that precede the values of a JSON body, and how many of them a body may have.
_JSON_MARKS, _JSON_MARKS_MAX = (b",", b"[", b"{"), 4_000_000


@dataclass(frozen=True, slots=True)
class MessageIds:
    """Finds the IDs of deliveries.

    Attributes:
        source: value of option `messageIdFrom`.
        on_missing: value of option `onMissingMessageId`.
        exact: whether IDs identify messages (`exactly-once`). Otherwise IDs are only values of a column.
        unreadable_rows: whether a message that cannot be decoded becomes a row (`onUnreadableMessage=row`).
    """

    source: IdSource
    on_missing: OnMissing
    exact: bool
    unreadable_rows: bool

    @classmethod
    def of(cls, settings: Settings) -> MessageIds:
        """Create an instance from the settings of a query."""
        exact = settings.guarantee.identifies
        return cls(settings.id_source, settings.on_missing, exact, settings.on_unreadable is OnUnreadable.ROW)

    def values(self, batch: DeliveryBatch) -> Sequence[Any]:
        """Return for each delivery the value that `messageIdFrom` names, for :meth:`keys` and :meth:`texts`."""
        if self.source.kind == "content":
            return [None] * len(batch)
        if self.source.kind == "json":
            path = self.source.name.split(".")
            return [_in_json(body, path) for body in batch.body().to_pylist()]
        values = batch.ids(self.source)
        texts = as_text_keys(values)
        return values if texts is None else texts

    def keys(self, batch: DeliveryBatch, values: Sequence[Any]) -> tuple[Sequence[Key | None], bool]:
        """Return the keys that identify the messages of these deliveries.

        Args:
            batch: the deliveries.
            values: the result of :meth:`values`.

        Returns:
            a key for each delivery, and whether any key is the digest of a content. The key of a message is its ID. If
            a message has no ID, its key is the digest of its content or None, depending on the options.
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
            # A message that cannot be decoded may have its ID in the part that cannot be read. As it becomes a row, it
            # is identified by its bytes.
            places = [place for place in places if place in batch.unreadable]
        if places:
            without = batch if len(places) == len(batch) else batch.taken(np.array(places))
            for place, digest in zip(places, without.digests(), strict=True):
                keys[place] = digest
        return keys, bool(places)

    def hidden(self, batch: DeliveryBatch) -> list[str]:
        """Return the values of properties `message-id` that hide the IDs given by the broker; usually none."""
        return batch.hidden() if self.source == MESSAGE_ID else []

    def texts(self, values: Sequence[Any]) -> Any:
        """Return the values of column `messageId`: each ID in full, even if its key is a digest.

        Args:
            values: the result of :meth:`values`.
        """
        if self.source.kind == "content":
            return values
        if isinstance(values, TextKeys) and values.bounds[0] > 0:
            return values.array
        return list(map(id_text, values))

    def check(self, destination: str, missing: int, first: int, hidden: Sequence[str]) -> None:
        """Raise an error if there are messages without an ID, and `onMissingMessageId` is `fail`.

        Args:
            destination: the queue or topic, in the words of error messages.
            missing: number of messages without an ID.
            first: delivery tag of the first of them.
            hidden: the result of :meth:`hidden` for these messages.

        Raises:
            MissingMessageIdError: there are such messages.
        """
        if not missing or self.on_missing is not OnMissing.FAIL:
            return
        if hidden:
            raise MissingMessageIdError(
                f"{destination}: {missing} message(s) have a property 'message-id' (the first: {hidden[0]!r}), "
                "which hides the ID that the broker has given them. Have the producer leave out this property, read "
                "the queue over another protocol with a new checkpointLocation, or choose another 'messageIdFrom'. "
                "The messages were not acknowledged and stay in the queue"
            )
        raise MissingMessageIdError(
            f"{destination}: {missing} message(s) have no ID under messageIdFrom='{self.source}'; the first is "
            f"delivery {first} of its session. The messages were not acknowledged and stay in the queue. Have the "
            "producer set an ID, or choose another 'messageIdFrom'. Or set 'onMissingMessageId': 'content' identifies "
            "such messages by their contents, 'row' emits them as often as they are delivered, and 'reject' rejects "
            "them for good. Or set 'guarantee' to 'at-least-once'"
        )


def _in_json(body: bytes, path: Sequence[str]) -> object:
    """Return the text or whole number at a path in a JSON body; None if the body is not JSON or has no such value.

    A body with too many values is not parsed, and the result is None: the values could take 24 times as much memory as
    the body.
    """
    if len(body) > _JSON_MARKS_MAX and sum(map(body.count, _JSON_MARKS)) > _JSON_MARKS_MAX:
        return None
    try:
        found = json.loads(body)
        for name in path:
            found = found[int(name)] if isinstance(found, list) else found[name]
        if isinstance(found, str):
            found.encode()  # JSON may have half a surrogate pair (RFC 8259, section 8.2), which is not text
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) or type(found) is int else None
