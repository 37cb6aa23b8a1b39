"""The identity of deliveries under the options `messageIdFrom` and `onMissingMessageId`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_mq.dedup import IdSource, Key, OnMissing, body_keys, id_keys, key_text
from pyspark_mq.errors import MissingMessageIdError
from pyspark_mq.sources.connections.decoder import Decoder
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["MessageIds"]

_MESSAGE_ID = IdSource("message-id")


@dataclass(frozen=True, slots=True)
class MessageIds:
    """Finds out which message a raw delivery is. Pure.

    Attributes:
        source: where IDs are found.
        on_missing: what is done with a message that has none.
        exact: IDs tell messages apart; with the lower guarantees they are just a column.
        odd_rows: a message that cannot be decoded becomes a row.
    """

    source: IdSource
    on_missing: OnMissing
    exact: bool
    odd_rows: bool

    @classmethod
    def of(cls, settings: Settings) -> MessageIds:
        """As the options of a query say."""
        exact = settings.guarantee.identifies
        return cls(settings.id_source, settings.on_missing, exact, settings.on_unreadable is OnUnreadable.ROW)

    def values(self, decoder: Decoder, raws: Sequence[Any]) -> list[Any]:
        """The value of each delivery under the source; it is looked for once, for keys and texts."""
        if self.source.kind == "body-hash":
            return body_keys(decoder.bodies(raws))
        return decoder.ids(raws, self.source)

    def keys(self, decoder: Decoder, raws: Sequence[Any], values: list[Any]) -> list[Key | None]:
        """One key for each delivery; None where it has none."""
        if self.source.kind == "body-hash":
            return values
        keys = id_keys(values)
        if None in keys and self.odd_rows:
            # Its ID may be what cannot be read: a row is what was asked for, so its bytes tell it apart.
            odd = {delivery.tag for delivery in decoder.unreadable(raws)}
            tagged = zip(raws, keys, decoder.tags(raws), strict=True)
            keys = [_body_key(decoder, raw) if key is None and tag in odd else key for raw, key, tag in tagged]
        if None in keys and self.on_missing is OnMissing.BODY_HASH:
            return [_body_key(decoder, raw) if key is None else key for raw, key in zip(raws, keys, strict=True)]
        return keys

    def hidden(self, decoder: Decoder, raws: Sequence[Any]) -> list[str]:
        """Values that hide the ID that the broker has given, where one is missing."""
        return decoder.hidden(raws) if self.source == _MESSAGE_ID else []

    def texts(self, decoder: Decoder, raws: Sequence[Any], values: list[Any]) -> list[str | None]:
        """Column `messageId`: the ID in full, even where a digest stands for it elsewhere."""
        if self.source.kind == "body-hash":
            return list(map(key_text, values))
        if set(map(type, values)) == {str} and "" not in values:
            return values
        return [self._text(decoder, raw, value) for raw, value in zip(raws, values, strict=True)]

    def _text(self, decoder: Decoder, raw: Any, value: object) -> str | None:
        if value is None or value in ("", b""):
            hashed = self.exact and self.on_missing is OnMissing.BODY_HASH
            return key_text(_body_key(decoder, raw)) if hashed else None
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)

    def check(self, destination: str, missing: int, hidden: Sequence[str]) -> None:
        """May messages without an ID be rejected?

        Args:
            destination: what errors call the queue.
            missing: how many there are.
            hidden: what hides the broker's ID there.

        Raises:
            MissingMessageIdError: they are to fail the query.
        """
        if not missing or self.on_missing is not OnMissing.FAIL:
            return
        if hidden:
            raise MissingMessageIdError(
                f"{destination}: {missing} message(s) with a property 'message-id', the first of "
                f"them {hidden[0]!r}, which hides the ID that the broker has given them. Have the producer set no "
                "property of that name, read the queue over another protocol with a new checkpointLocation, or "
                "choose another 'messageIdFrom'. The messages were not acknowledged and stay in the queue"
            )
        raise MissingMessageIdError(
            f"{destination}: {missing} message(s) without an ID under "
            f"messageIdFrom='{self.source}'. Without one a redelivery cannot be told from a new "
            "message. Have the producer set it, choose another 'messageIdFrom', or set "
            "'onMissingMessageId' to 'body-hash' or 'reject'. The messages were not acknowledged and "
            "stay in the queue"
        )


def _body_key(decoder: Decoder, raw: Any) -> Key:
    return body_keys(decoder.bodies([raw]))[0]
