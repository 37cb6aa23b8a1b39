"""Settling over STOMP: tags in, frames out. Pure: no socket, no clock.

STOMP acknowledges one by one (subscription mode `client-individual`) or everything up to a message (mode `client`), and
each broker copes well with only one of these modes: see :class:`~pyspark_mq.brokers.base.StompDialect`. The RECEIPT for
the last frame of a request confirms the request, because the broker processes a connection's frames in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

__all__ = ["StompSettling"]


class StompSettling:
    """The open deliveries of one session and the frames that settle them.

    Guarantee: a frame settles only requested deliveries, and the receipt that confirms a request comes only when all
    these deliveries are settled.

    Args:
        cumulative: whether an ACK includes all earlier deliveries.
        reject_headers: further headers of NACK, to reject a message for good.
        own: end of the names of receipts, left out in :meth:`confirmed`.
        forgeable: whether a message can have the ID of another message.

    Attributes:
        open: tag of an unsettled delivery -> the ID that settles the delivery (header `ack`, escaped as the broker
            wrote it), in order of arrival. For speed, the session adds every message to this dictionary directly.
        ids: these IDs, if a message can have the ID of another message; otherwise None. The session adds them, too.
    """

    def __init__(
        self, *, cumulative: bool, reject_headers: Mapping[str, str], own: str = "", forgeable: bool = False
    ) -> None:
        self.open: dict[int, bytes] = {}
        self.ids: set[bytes] | None = set() if forgeable else None
        self._cumulative = cumulative
        self._own = own
        self._refusal = "".join(f"{name}:{value}\n" for name, value in reject_headers.items()).encode()
        # With cumulative acknowledgements: tags that wait until earlier deliveries are settled.
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
        """Whether a receipt is outstanding."""
        return bool(self._receipts)

    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> bytes:
        """Return frames that acknowledge these deliveries, as far as possible now.

        Args:
            number: identifies the request in :meth:`confirmed`.
            upto: acknowledge all open deliveries up to this tag; 0 for none.
            singles: further tags.
        """
        if self._cumulative:
            self._requests.append((number, singles[-1] if singles else upto))
            self._due.update(singles)
            return self._head(upto)
        tags = [*(tag for tag in self.open if tag <= upto), *singles]
        return self._frames([(b"ACK", tag) for tag in tags], tags, [number])

    def ask(self, number: int) -> bytes:
        """Return frames that settle nothing but are confirmed like acknowledgements.

        The frames begin a transaction and abort it at once.
        """
        name = f"settled-{next(self._numbers)}"
        self._receipts[name] = [number]
        receipt = f"{name}{self._own}"
        return f"BEGIN\ntransaction:{name}\n\n\0ABORT\ntransaction:{name}\nreceipt:{receipt}\n\n\0".encode()

    def reject(self, tags: Sequence[int]) -> bytes:
        """Return frames that reject these deliveries for good, as far as possible now."""
        if self._cumulative:
            self._refused.update(tags)
            return self._head(0)
        return self._frames([(b"NACK", tag) for tag in tags], tags, [])

    def confirmed(self, receipt: str) -> list[int]:
        """Return the requests that a receipt confirms."""
        return self._receipts.pop(receipt, [])

    def _head(self, upto: int) -> bytes:
        """Return frames that settle the finished deliveries before the first unfinished delivery, cumulatively.

        Settling a later delivery would settle the unfinished delivery, too, so later deliveries wait.
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
        """Build ACK and NACK frames. The RECEIPT for the last frame confirms the requests in `confirmed`.

        The last frame always requests a receipt: until the receipt comes, an ERROR may come for an earlier frame.
        """
        # stomp.py would be slow: there may be ten thousand frames at a time.
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
