"""The deliveries of a receiving link, as proton's engine has them.

Proton's classes make an object and a dictionary of each delivery, kept in proton's own memory, and go through
properties of properties: 6 to 7 µs to take one and 4 µs to settle it. The functions of C below them, which the library
has through `cffi`, take 0.7 and 0.3 µs. They are no public interface. So they are used where all of them are found,
and the classes otherwise.

A handle stands for a delivery from when it was taken until it is settled here; proton keeps it alive for as long
(`pn_delivery_settle` in proton's `delivery.h`), and the link for as long as this object.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from proton import Delivery, LinkException, Receiver

try:
    from cproton_ffi import ffi, lib
except ImportError:  # another way to C, as the library had before 0.39
    ffi = lib = None

__all__ = ["DirectIncoming", "Handle", "Incoming", "WrappedIncoming", "incoming_of"]

_LOG = logging.getLogger("pyspark_mq")

#: A delivery; what it is depends on the way to proton.
Handle = Any

#: Outcomes that a sender may set by itself (AMQP 1.0, 3.4.4 and 3.4.5).
_TAKEN_BACK = frozenset({int(Delivery.RELEASED), int(Delivery.MODIFIED)})
_ACCEPTED, _REJECTED = int(Delivery.ACCEPTED), int(Delivery.REJECTED)
#: Larger messages get a buffer of their own.
_BUFFER_BYTES = 64 << 10
#: What is needed of C.
_FUNCTIONS = (
    "pn_delivery_aborted",
    "pn_delivery_partial",
    "pn_delivery_pending",
    "pn_delivery_remote_state",
    "pn_delivery_settle",
    "pn_delivery_settled",
    "pn_delivery_update",
    "pn_link_advance",
    "pn_link_current",
    "pn_link_recv",
)


class Incoming(ABC):
    """Deliveries of one link. Called by the thread that feeds the transport.

    Args:
        link: a receiver.
    """

    def __init__(self, link: Receiver) -> None:
        self._link = link
        self._partial = bytearray()

    @property
    def begun(self) -> bool:
        """Has the first part of a message come, and the last one not?"""
        return bool(self._partial)

    @abstractmethod
    def messages(self) -> Iterator[tuple[Handle, bytes]]:
        """Those that are here in full, in order; each is taken from the link before it is given.

        One that the sender aborts (AMQP 1.0, 2.6.14) is passed over.

        Raises:
            LinkException: proton cannot read a delivery.
        """

    @abstractmethod
    def accept(self, handles: Iterable[Handle]) -> None:
        """Outcome `accepted` (3.4.2). Neighbours leave as one disposition with a range."""

    @abstractmethod
    def settle(self, handles: Iterable[Handle]) -> None:
        """Settle them on this side, with the outcome they have; the handles are void after it."""

    @abstractmethod
    def reject(self, handle: Handle) -> None:
        """Outcome `rejected` (3.4.3), settled."""

    @abstractmethod
    def settled(self, handle: Handle) -> bool:
        """Has the sender settled it?"""

    @abstractmethod
    def taken_back(self, handle: Handle) -> bool:
        """Did the sender give it another outcome than we?"""

    def _whole(self, data: bytes | bytearray, partial: bool) -> bytes | None:
        """A message of which this is a part, or all; None if there is more to come."""
        if not partial and not self._partial:
            return bytes(data)
        self._partial += data
        if partial:
            return None
        whole = bytes(self._partial)
        self._partial.clear()
        return whole


class WrappedIncoming(Incoming):
    """By the library's public classes."""

    def messages(self) -> Iterator[tuple[Delivery, bytes]]:
        link = self._link
        while (delivery := link.current) is not None:
            if delivery.aborted:
                self._partial.clear()
                link.advance()
                delivery.settle()
                continue
            whole = self._whole(link.recv(delivery.pending) or b"", delivery.partial)
            if whole is None:
                return
            link.advance()
            yield delivery, whole

    def accept(self, handles: Iterable[Delivery]) -> None:
        for delivery in handles:
            delivery.update(_ACCEPTED)

    def settle(self, handles: Iterable[Delivery]) -> None:
        for delivery in handles:
            delivery.settle()

    def reject(self, handle: Delivery) -> None:
        handle.update(_REJECTED)
        handle.settle()

    def settled(self, handle: Delivery) -> bool:
        return handle.settled

    def taken_back(self, handle: Delivery) -> bool:
        return handle.remote_state in _TAKEN_BACK


class DirectIncoming(Incoming):
    """By the functions of C; a handle is a pointer."""

    def __init__(self, link: Receiver) -> None:
        super().__init__(link)
        self._pointer = link._impl  # noqa: SLF001 - the one place that goes below the classes
        self._buffer = ffi.new("char[]", _BUFFER_BYTES)

    @staticmethod
    def works_with(link: Receiver) -> bool:
        """Are all functions there, and is the link what they take?"""
        if ffi is None or not all(hasattr(lib, name) for name in _FUNCTIONS):
            return False
        pointer = getattr(link, "_impl", None)
        return isinstance(pointer, ffi.CData) and ffi.typeof(pointer) is ffi.typeof("pn_link_t *")

    def messages(self) -> Iterator[tuple[Handle, bytes]]:
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
            if partial(delivery) or self._partial or not 0 < size <= _BUFFER_BYTES:
                whole = self._whole(self._read(size), partial(delivery))
                if whole is None:
                    return
            else:
                if receive(link, buffer, size) != size:
                    raise LinkException(f"proton announced {size} bytes of a delivery and gave others")
                whole = unpack(buffer, size)
            advance(link)
            yield delivery, whole

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        if size and lib.pn_link_recv(self._pointer, ffi.from_buffer(data), size) != size:
            raise LinkException(f"proton announced {size} bytes of a delivery and gave others")
        return data

    def accept(self, handles: Iterable[Handle]) -> None:
        update = lib.pn_delivery_update
        for delivery in handles:
            update(delivery, _ACCEPTED)

    def settle(self, handles: Iterable[Handle]) -> None:
        settle = lib.pn_delivery_settle
        for delivery in handles:
            settle(delivery)

    def reject(self, handle: Handle) -> None:
        lib.pn_delivery_update(handle, _REJECTED)
        lib.pn_delivery_settle(handle)

    def settled(self, handle: Handle) -> bool:
        return bool(lib.pn_delivery_settled(handle))

    def taken_back(self, handle: Handle) -> bool:
        return lib.pn_delivery_remote_state(handle) in _TAKEN_BACK


_told = False


def incoming_of(link: Receiver) -> Incoming:
    """The deliveries of a link, by the cheaper way that this version of the library has."""
    global _told  # noqa: PLW0603 - once in a process is enough
    if DirectIncoming.works_with(link):
        return DirectIncoming(link)
    if not _told:
        _told = True
        _LOG.info(
            "AMQP 1.0: this version of python-qpid-proton has not all functions of C that are used where they are "
            "found; its classes are used, which takes about 10 µs more for each message"
        )
    return WrappedIncoming(link)
