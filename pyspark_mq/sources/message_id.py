"""The identity of deliveries under the options `messageIdFrom` and `onMissingMessageId`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark_mq.dedup import Key, OnMissing, body_keys, id_keys, key_text
from pyspark_mq.errors import MissingMessageIdError
from pyspark_mq.sources.connections.decoder import Decoder
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["MessageIds"]


class MessageIds:
    """Finds out which message a raw delivery is.

    Args:
        settings: the query's.
        decoder: of the protocol.
    """

    def __init__(self, settings: Settings, decoder: Decoder) -> None:
        self._destination = settings.endpoint.destination
        self._source = settings.id_source
        self._on_missing = settings.on_missing
        self._on_unreadable = settings.on_unreadable
        self._exact = settings.guarantee.identifies
        self._decoder = decoder

    def keys(self, raws: Sequence[Any]) -> list[Key | None]:
        """One key for each delivery; None where it has none and is to be rejected.

        Raises:
            MissingMessageIdError: one has no ID, and that is to fail the query.
        """
        if self._source.kind == "body-hash":
            return [*body_keys(self._decoder.bodies(raws))]
        keys = id_keys(self._decoder.ids(raws, self._source))
        if None in keys and self._on_unreadable is OnUnreadable.ROW:
            # Its ID may be what cannot be read: a row is what was asked for, so its bytes tell it apart.
            odd = {delivery.tag for delivery in self._decoder.unreadable(raws)}
            tagged = zip(raws, keys, self._decoder.tags(raws), strict=True)
            keys = [self._body_key(raw) if key is None and tag in odd else key for raw, key, tag in tagged]
        if None not in keys or self._on_missing is OnMissing.REJECT:
            return keys
        if self._on_missing is OnMissing.FAIL:
            hidden = self._decoder.hidden(raws) if self._source.kind == "message-id" else []
            if hidden:
                raise MissingMessageIdError(
                    f"{self._destination}: {keys.count(None)} message(s) with a property 'message-id', the first of "
                    f"them {hidden[0]!r}, which hides the ID that the broker has given them. Have the producer set no "
                    "property of that name, read the queue over another protocol with a new checkpointLocation, or "
                    "choose another 'messageIdFrom'. The messages were not acknowledged and stay in the queue"
                )
            raise MissingMessageIdError(
                f"{self._destination}: {keys.count(None)} message(s) without an ID under "
                f"messageIdFrom='{self._source}'. Without one a redelivery cannot be told from a new "
                "message. Have the producer set it, choose another 'messageIdFrom', or set "
                "'onMissingMessageId' to 'body-hash' or 'reject'. The messages were not acknowledged and "
                "stay in the queue"
            )
        return [self._body_key(raw) if key is None else key for raw, key in zip(raws, keys, strict=True)]

    def texts(self, raws: Sequence[Any]) -> list[str | None]:
        """Column `messageId`: the ID in full, even where a digest stands for it elsewhere."""
        if self._source.kind == "body-hash":
            return [key_text(key) for key in body_keys(self._decoder.bodies(raws))]
        values = self._decoder.ids(raws, self._source)
        if set(map(type, values)) == {str} and "" not in values:
            return values  # type: ignore[return-value]
        return [self._text(raw, value) for raw, value in zip(raws, values, strict=True)]

    def _text(self, raw: Any, value: object) -> str | None:
        if value is None or value in ("", b""):
            hashed = self._exact and self._on_missing is OnMissing.BODY_HASH
            return key_text(self._body_key(raw)) if hashed else None
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)

    def _body_key(self, raw: Any) -> Key:
        return body_keys(self._decoder.bodies([raw]))[0]
