"""Builds the STOMP frames that settle deliveries, and determines which requests a RECEIPT confirms.

In STOMP, an ACK acknowledges one delivery (subscription mode `client-individual`) or all deliveries up to a message
(mode `client`). Each broker handles only one of these modes well, see :class:`~pyspark_mq.brokers.base.StompDialect`.
The RECEIPT for the last frame of a request confirms the whole request, because the broker processes a connection's
frames in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

__all__ = ["StompSettling"]


class StompSettling:
    """The unsettled deliveries of one session, and the frames that settle them.

    Guarantee: a frame settles only deliveries that the caller has asked to settle, and the receipt that confirms a
    request arrives only when all deliveries of the request are settled.

    Args:
        cumulative: whether an ACK also acknowledges all earlier deliveries.
        reject_headers: further headers of a NACK, with which the broker does not deliver the message again.
        own: the random text with which the names of receipts end. :meth:`confirmed` takes names without it.
        forgeable: whether a message may have the acknowledgement ID of another message.

    Attributes:
        open: by tag, in order of arrival, each unsettled delivery's acknowledgement ID (header `ack`, with the broker's
            escapes). For speed, the session adds every delivery to this dictionary itself.
        ids: the set of these IDs if `forgeable` is true, to notice an ID that occurs twice; otherwise None. The session
            adds the IDs itself.
    """

    def __init__(
        self, *, cumulative: bool, reject_headers: Mapping[str, str], own: str = "", forgeable: bool = False
    ) -> None:
        self.open: dict[int, bytes] = {}
        self.ids: set[bytes] | None = set() if forgeable else None
        self._cumulative = cumulative
        self._own = own
        self._refusal = "".join(f"{name}:{value}\n" for name, value in reject_headers.items()).encode()
        # With cumulative acknowledgements: tags to acknowledge or to reject once all earlier deliveries are settled.
        self._due: set[int] = set()
        self._refused: set[int] = set()
        self._requests: list[tuple[int, int]] = []
        self._receipts: dict[str, list[int]] = {}
        self._numbers = count(1)

    @property
    def waiting(self) -> int:
        """Number of deliveries whose settlement waits for earlier deliveries."""
        return len(self._due) + len(self._refused)

    @property
    def unconfirmed(self) -> bool:
        """Whether a receipt for settled deliveries is outstanding."""
        return bool(self._receipts)

    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> bytes:
        """Return frames that acknowledge deliveries.

        With cumulative acknowledgements, the frames for some deliveries are returned by a later call, once all earlier
        deliveries are settled.

        Args:
            number: number of the request, which :meth:`confirmed` returns later.
            upto: all unsettled deliveries up to this tag are acknowledged; 0 for none.
            singles: tags of further deliveries.
        """
        if self._cumulative:
            self._requests.append((number, singles[-1] if singles else upto))
            self._due.update(singles)
            return self._head(upto)
        tags = [*(tag for tag in self.open if tag <= upto), *singles]
        return self._frames([(b"ACK", tag) for tag in tags], tags, [number])

    def ask(self, number: int) -> bytes:
        """Return frames that settle nothing, but whose receipt confirms request `number` after all earlier requests.

        The frames begin a transaction and abort it at once, which has no effect.
        """
        name = f"settled-{next(self._numbers)}"
        self._receipts[name] = [number]
        receipt = f"{name}{self._own}"
        return f"BEGIN\ntransaction:{name}\n\n\0ABORT\ntransaction:{name}\nreceipt:{receipt}\n\n\0".encode()

    def reject(self, tags: Sequence[int]) -> bytes:
        """Return frames that reject deliveries, so that the broker does not deliver them again.

        As for :meth:`acknowledge`, the frames for some deliveries may be returned by a later call.
        """
        if self._cumulative:
            self._refused.update(tags)
            return self._head(0)
        return self._frames([(b"NACK", tag) for tag in tags], tags, [])

    def confirmed(self, receipt: str) -> list[int]:
        """Return the numbers of the requests that a receipt confirms. `receipt` is its name without the random end."""
        return self._receipts.pop(receipt, [])

    def _head(self, upto: int) -> bytes:
        """Return cumulative frames that settle the deliveries before the first delivery that must not be settled yet.

        Later deliveries have to wait, because an ACK for one of them would settle that delivery, too.

        Args:
            upto: all deliveries up to this tag may be settled.
        """
        done: list[int] = []
        frames: list[tuple[bytes, int]] = []
        last = 0
        for tag in self.open:
            if tag in self._refused:
                frames += [(b"ACK", last), (b"NACK", tag)] if last else [(b"NACK", tag)]
                last = 0
            elif tag <= upto or tag in self._due:
                last = tag
            else:
                break
            done.append(tag)
        if last:
            frames.append((b"ACK", last))
        if not done:
            return b""
        self._due.difference_update(done)
        self._refused.difference_update(done)
        confirmed = [number for number, end in self._requests if end <= done[-1]]
        self._requests = [(number, end) for number, end in self._requests if end > done[-1]]
        return self._frames(frames, done, confirmed)

    def _frames(self, frames: Sequence[tuple[bytes, int]], done: Sequence[int], confirmed: list[int]) -> bytes:
        """Build ACK and NACK frames, and remove the settled deliveries.

        The last frame always requests a receipt, because the broker may send an ERROR for any of the frames before it.

        Args:
            frames: the command and the tag of each frame.
            done: tags of the deliveries that the frames settle.
            confirmed: numbers of the requests that the receipt for the last frame confirms.
        """
        # stomp.py would be too slow, as there may be ten thousand frames at a time.
        written: list[bytes] = []
        end = len(frames) - 1
        for index, (command, tag) in enumerate(frames):
            more = self._refusal if command == b"NACK" else b""
            if index == end:
                receipt = f"settled-{next(self._numbers)}"
                self._receipts[receipt] = confirmed
                more += f"receipt:{receipt}{self._own}\n".encode()
            written.append(b"%b\nid:%b\n%b\n\0" % (command, self.open[tag], more))
        if self.ids is not None:
            self.ids.difference_update(self.open[tag] for tag in done)
        for tag in done:
            del self.open[tag]
        return b"".join(written)
