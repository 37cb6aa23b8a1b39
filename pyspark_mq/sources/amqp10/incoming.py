"""Takes deliveries out of proton's engine, and gives them their outcomes, through proton's C functions.

proton's Python classes need 6 to 7 µs to take a delivery and 4 µs to settle it, because they create an object and a
dictionary for each delivery. The C functions, which `cffi` makes available since 0.39, need 0.7 µs and 0.3 µs. These
functions are not a public interface, so the extra `amqp10` requires versions of proton that were tested.

A handle is a C pointer to a delivery. It is valid from the moment when the delivery is taken until
:meth:`Incoming.settle` or :meth:`Incoming.reject` settles it: proton keeps the delivery until then
(`pn_delivery_settle` in `delivery.h`), and the link exists as long as the :class:`Incoming` object.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from proton import VERSION, Delivery, LinkException, Receiver

from pyspark_mq.errors import MissingExtraError
from pyspark_mq.sources.amqp10.transfers import Transfers

try:
    from cproton_ffi import ffi, lib
except ImportError:
    raise MissingExtraError(
        f"protocol 'amqp-1.0' works with python-qpid-proton 0.39 and 0.40, but {'.'.join(map(str, VERSION))} is "
        f"installed; run: {sys.executable} -m pip install 'pyspark-mq[amqp10]'"
    ) from None

__all__ = ["Handle", "Incoming"]

#: A delivery, as a C pointer.
Handle = Any

_ACCEPTED, _REJECTED = int(Delivery.ACCEPTED), int(Delivery.REJECTED)
#: States that the broker may set for a delivery that this side has accepted: no state, or `accepted`.
_AGREED = frozenset({0, _ACCEPTED})
#: Size of the shared buffer for a message. A larger message gets its own buffer.
_BUFFER_BYTES = 64 << 10


class Incoming:
    """The deliveries of one link. Only the thread that passes bytes to proton calls the methods.

    Args:
        link: the receiving link.
        transfers: has the payloads that were cut out before proton got the bytes; None if proton has all payloads.
    """

    def __init__(self, link: Receiver, transfers: Transfers | None = None) -> None:
        self._link, self._transfers = link, transfers
        self._taken: deque[bytes | None] = deque() if transfers is None else transfers.taken
        self._pointer = link._impl  # noqa: SLF001 - the one place that goes below the classes
        self._partial = bytearray()
        #: The last delivery whose payload was taken, since the last check.
        self._last: Handle | None = None
        self._buffer = ffi.new("char[]", _BUFFER_BYTES)

    def messages(self) -> Iterator[tuple[Handle, bytes]]:
        """Take complete messages out of proton, in order, and yield their handles and encoded bytes.

        A message that the broker has aborted (AMQP 1.0, 2.6.14) is skipped.

        Raises:
            LinkException: proton cannot read a delivery.
        """
        payloads = self._taken
        link, buffer, nothing = self._pointer, self._buffer, ffi.NULL
        current, pending, partial = lib.pn_link_current, lib.pn_delivery_pending, lib.pn_delivery_partial
        aborted, receive, advance, unpack = lib.pn_delivery_aborted, lib.pn_link_recv, lib.pn_link_advance, ffi.unpack
        while (delivery := current(link)) != nothing:
            if aborted(delivery):
                self._partial.clear()
                advance(link)
                lib.pn_delivery_settle(delivery)
                continue
            size = pending(delivery)
            if payloads and not partial(delivery) and (payload := payloads.popleft()) is not None:
                self._last = delivery
                if size or self._partial:
                    raise LinkException(f"proton has {size} bytes of a delivery whose payload was cut out before")
                advance(link)
                yield delivery, payload
                continue
            if partial(delivery) or self._partial or not 0 < size <= _BUFFER_BYTES:
                whole = self._whole(self._read(size), partial(delivery))
                if whole is None:
                    break
            else:
                if receive(link, buffer, size) != size:
                    raise LinkException(f"proton announced {size} bytes of a delivery but returned another number")
                whole = unpack(buffer, size)
            advance(link)
            yield delivery, whole
        if payloads:
            raise LinkException(f"proton lacks the deliveries of {len(payloads)} payloads that were taken")

    @property
    def partial_bytes(self) -> int:
        """Number of bytes of the incomplete message that have arrived."""
        return len(self._partial)

    def check(self) -> None:
        """Check that the last payload and the last delivery belong together. Called before messages are passed on.

        Raises:
            LinkException: the last payload belongs to another delivery, so an acknowledgement could settle a message
                that was not received.
        """
        if self._last is None or self._transfers is None:
            return
        expected, tag = self._transfers.newest_tag(), lib.pn_delivery_tag(self._last)
        self._last = None
        if expected is not None and ffi.unpack(tag.start, tag.size) != expected:
            raise LinkException("the payload that was taken last belongs to another delivery")

    def _whole(self, data: bytes | bytearray, partial: bool) -> bytes | None:
        """Return the message that this part completes; None if more parts follow."""
        if not partial and not self._partial:
            return bytes(data)
        self._partial += data
        if partial:
            return None
        whole = bytes(self._partial)
        self._partial.clear()
        return whole

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        if size and lib.pn_link_recv(self._pointer, ffi.from_buffer(data), size) != size:
            raise LinkException(f"proton announced {size} bytes of a delivery but returned another number")
        return data

    def accept(self, handles: Iterable[Handle]) -> None:
        """Give deliveries the outcome `accepted` (3.4.2). proton sends one disposition for consecutive deliveries."""
        update = lib.pn_delivery_update
        for delivery in handles:
            update(delivery, _ACCEPTED)

    def settle(self, handles: Iterable[Handle]) -> None:
        """Settle deliveries on this side, with the outcome that they have. After that their handles are invalid."""
        settle = lib.pn_delivery_settle
        for delivery in handles:
            settle(delivery)

    def reject(self, handle: Handle) -> None:
        """Settle a delivery with the outcome `rejected` (3.4.3)."""
        lib.pn_delivery_update(handle, _REJECTED)
        lib.pn_delivery_settle(handle)

    def settled(self, handle: Handle) -> bool:
        """Whether the broker has settled the delivery."""
        return bool(lib.pn_delivery_settled(handle))

    def taken_back(self, handle: Handle) -> bool:
        """Whether the broker has set another outcome than `accepted` (3.4), so that it keeps the message."""
        return lib.pn_delivery_remote_state(handle) not in _AGREED
