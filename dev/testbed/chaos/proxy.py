"""A TCP proxy on 127.0.0.1 that misbehaves on demand: the network of the failure tests.

One thread owns every socket. Methods called from other threads hand it a function and wait until
it has run, so a fault is in force when the call returns and nothing here needs a lock. Each
direction of a connection has one buffer, read only when it is empty: a receiver that does not
read is felt by the sender after that buffer, as through any wire.

What a fault applies to:

* `cut`, `mute`: connections there are at that moment; new ones work (unless asked otherwise).
* `stall`, `throttle`, `limit_idle`, `refuse`, `retarget`: in force until changed, for all connections.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from testbed.ports import LOOPBACK, ReservedPort

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Direction", "FaultProxy"]

_BUFFER_BYTES = 64 * 1024
_BACKLOG = 128
_CALL_TIMEOUT_S = 30.0
#: A slow link passes on what it has saved up of this time at once.
_BURST_S = 0.02
_NO_LINGER = struct.pack("ii", 1, 0)

T = TypeVar("T")


class Direction(enum.Enum):
    """Which way bytes go."""

    TO_BROKER = "to broker"
    TO_CLIENT = "to client"


_ALL = frozenset(Direction)


class _End:
    """One socket of a connection; remembers what it is registered for."""

    __slots__ = ("connecting", "events", "link", "socket")

    def __init__(self, end: socket.socket, link: _Link) -> None:
        self.socket = end
        self.link = link
        self.events = 0
        self.connecting = False


class _Pump:
    """One direction of one connection."""

    __slots__ = ("buffer", "ended", "filled", "muted", "sent", "shut", "sink", "source", "way")

    def __init__(self, way: Direction, source: _End, sink: _End, muted: bool) -> None:
        self.way = way
        self.source = source
        self.sink = sink
        self.muted = muted
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.sent = 0  #: bytes of the buffer given to the sink
        self.filled = 0  #: bytes of the buffer received from the source
        self.ended = False  #: the source will send no more
        self.shut = False  #: and the sink has been told

    @property
    def empty(self) -> bool:
        return self.sent == self.filled


class _Link:
    """One proxied connection."""

    __slots__ = ("broker", "client", "closed", "moved_s", "pumps")

    def __init__(self, client: socket.socket, broker: socket.socket, muted: frozenset[Direction]) -> None:
        self.moved_s = time.monotonic()  #: when the last byte came, from either side
        self.client = _End(client, self)
        self.broker = _End(broker, self)
        self.closed = False
        self.pumps = (
            _Pump(Direction.TO_BROKER, self.client, self.broker, Direction.TO_BROKER in muted),
            _Pump(Direction.TO_CLIENT, self.broker, self.client, Direction.TO_CLIENT in muted),
        )


class _Cut:
    """An armed `cut_after`."""

    __slots__ = ("done", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.done = threading.Event()


class _Budget:
    """What a throttled direction may pass on at the moment."""

    __slots__ = ("bytes_per_s", "left", "stamp_s")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.left = 0.0
        self.stamp_s = time.monotonic()

    def earn(self) -> None:
        """For the time that has passed; what nobody used is gone."""
        now_s = time.monotonic()
        most = max(1.0, self.bytes_per_s * _BURST_S)
        self.left = min(most, self.left + (now_s - self.stamp_s) * self.bytes_per_s)
        self.stamp_s = now_s

    @property
    def dry(self) -> bool:
        """Is it too little to pass on?"""
        return self.left < self._enough

    @property
    def wait_s(self) -> float:
        """Until there is something to pass on."""
        return max(_BURST_S / 2, (self._enough - self.left) / self.bytes_per_s)

    @property
    def _enough(self) -> float:
        """Bytes to pass on at once, at least: byte by byte, the proxy would take all of a core."""
        return max(1.0, self.bytes_per_s * _BURST_S / 2)


class FaultProxy:
    """Forwards TCP connections to a target, faithfully until asked otherwise.

    Without a fault no byte is lost, added or reordered, and one side closing its half is passed
    on. A context manager; every method may be called from any thread.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        """Listens and forwards from now on."""
        self._reserved = ReservedPort()
        #: Where clients connect to, on 127.0.0.1; the same for the proxy's whole life.
        self.port = self._reserved.number
        self._target = (target_host, target_port)
        self._links: set[_Link] = set()
        self._bytes_seen = dict.fromkeys(Direction, 0)
        self._stalled: set[Direction] = set()
        self._mute_new: frozenset[Direction] = frozenset()
        self._cuts: dict[Direction, _Cut] = {}
        self._budgets: dict[Direction, _Budget] = {}
        self._idle_limit_s: float | None = None
        #: Connections that :meth:`limit_idle` has ended.
        self.idle_ends = 0
        self._calls: deque[Callable[[], None]] = deque()
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._accepting = False
        self._accept()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    # -- faults

    def cut(self) -> int:
        """Reset (RST) all connections, on both sides; how many there were."""
        return self._call(self._cut)

    def cut_after(self, byte_count: int, direction: Direction) -> threading.Event:
        """Pass on exactly so many more bytes in that direction, then reset all connections.

        Bytes are counted over all connections from this call on. One per direction is armed at a
        time; the later replaces the earlier. A receiver that has not yet taken all of them from
        its socket may get fewer: a reset overtakes what still waits on the sending side.

        Returns:
            an event that is set when it has happened.
        """
        cut = _Cut(byte_count)

        def arm() -> None:
            self._cuts[direction] = cut
            if cut.left <= 0:
                self._fire(direction)

        self._call(arm)
        return cut.done

    def disarm(self) -> None:
        """Forget every :meth:`cut_after` that has not happened."""
        self._call(self._cuts.clear)

    def mute(self, direction: Direction | None = None, *, new: bool = False) -> None:
        """Swallow what is sent in that direction (None: both), also the end, and stay open.

        As a firewall that has forgotten the connection. What is lost is lost, so a connection
        stays muted until it is cut; the ends of it see nothing of each other's closing.

        Args:
            new: connections to come are accepted and muted as well, until :meth:`unmute`.
        """
        ways = _ways(direction)

        def mute() -> None:
            if new:
                self._mute_new |= ways
            for link in self._links:
                for pump in link.pumps:
                    if pump.way in ways:
                        pump.muted = True
                        pump.sent = pump.filled
            self._update_all()

        self._call(mute)

    def unmute(self) -> None:
        """New connections work again; those that are muted stay so."""

        def unmute() -> None:
            self._mute_new = frozenset()

        self._call(unmute)

    def stall(self, direction: Direction | None = None) -> None:
        """Stop passing on in that direction (None: both), until :meth:`resume`.

        Nothing is lost: the sender can still fill the buffers of both kernels, then blocks.
        """
        self._call(lambda: self._set_stalled(self._stalled | _ways(direction)))

    def resume(self, direction: Direction | None = None) -> None:
        """Undo :meth:`stall`."""
        self._call(lambda: self._set_stalled(self._stalled - _ways(direction)))

    def throttle(self, bytes_per_s: float | None, direction: Direction | None = None) -> None:
        """Pass on no more than that in a second in that direction (None: each of both); None to lift it.

        As a narrow link: all connections share it, and senders feel it after the buffers of the kernels.
        """
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ValueError(f"{bytes_per_s} bytes a second; use stall() for none")

        def throttle() -> None:
            for way in _ways(direction):
                self._budgets.pop(way, None)
                if bytes_per_s is not None:
                    self._budgets[way] = _Budget(bytes_per_s)
            self._update_all()

        self._call(throttle)

    def limit_idle(self, seconds: float | None) -> None:
        """Reset each connection on which no byte came for so long, as load balancers do; None to lift it."""

        def limit() -> None:
            self._idle_limit_s = seconds

        self._call(limit)

    def refuse(self) -> None:
        """New connections are refused (ECONNREFUSED); those there are go on."""
        self._call(self._refuse)

    def accept(self) -> None:
        """Undo :meth:`refuse`."""
        self._call(self._accept)

    def retarget(self, port: int, host: str | None = None) -> None:
        """New connections go to that port; those there are stay."""

        def retarget() -> None:
            self._target = (host or self._target[0], port)

        self._call(retarget)

    # -- what it sees

    @property
    def connections(self) -> int:
        """Connections open on at least one side."""
        return self._call(lambda: len(self._links))

    def bytes_seen(self, direction: Direction) -> int:
        """Bytes received for that direction over all connections, swallowed ones included."""
        return self._call(lambda: self._bytes_seen[direction])

    # -- end

    def close(self) -> None:
        """Reset what is open and stop. May be called again."""

        def close() -> None:
            self._closing = True

        if self._thread.is_alive():
            self._call(close)
            self._thread.join()
            # Not by the thread: it may have run the call before it was woken for it.
            self._wake_writer.close()
            self._reserved.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- the thread

    def _call(self, function: Callable[[], T]) -> T:
        """Run a function on the proxy's thread and hand back what it returns or raises."""
        if threading.current_thread() is self._thread:
            return function()
        if not self._thread.is_alive():
            raise RuntimeError(f"the proxy on port {self.port} is closed")
        results: list[T] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:  # noqa: BLE001 (handed to the caller)
                errors.append(error)
            done.set()

        self._calls.append(run)
        # Full means that enough is in it to wake the thread; broken, that it is closing.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")
        if not done.wait(_CALL_TIMEOUT_S):
            raise RuntimeError(f"the proxy on port {self.port} was closed meanwhile, or hangs")
        if errors:
            raise errors[0]
        return results[0]

    def _run(self) -> None:
        try:
            while not self._closing:
                waits = [wait_s for wait_s in (self._earn(), self._end_idle()) if wait_s is not None]
                for key, events in self._selector.select(min(waits, default=None)):
                    self._handle(key.data, events)
                while self._calls:
                    self._calls.popleft()()
        finally:
            self._cut()
            self._listener.close()
            self._wake_reader.close()
            self._selector.close()

    def _earn(self) -> float | None:
        """Let throttled directions that had to wait go on when they can; how long to wait at most."""
        dry = [budget for budget in self._budgets.values() if budget.dry]
        if not dry:
            return None
        for budget in dry:
            budget.earn()
        if not all(budget.dry for budget in dry):
            self._update_all()
        return min(budget.wait_s for budget in dry)

    def _end_idle(self) -> float | None:
        """Reset what was idle for too long; how long to wait for the next at most."""
        limit_s, now_s = self._idle_limit_s, time.monotonic()
        if limit_s is None:
            return None
        for link in [link for link in self._links if now_s - link.moved_s >= limit_s]:
            self.idle_ends += 1
            self._abort(link)
        return max(0.0, min((link.moved_s for link in self._links), default=now_s) + limit_s - now_s)

    def _may_pass(self, way: Direction) -> bool:
        budget = self._budgets.get(way)
        return budget is None or not budget.dry

    def _handle(self, end: _End | None, events: int) -> None:
        if end is not None:
            self._move(end, events)
        elif events:
            self._drain_wake()
            if self._accepting:
                self._take_new()

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass

    # -- connecting

    def _accept(self) -> None:
        if not self._accepting:
            self._listener = socket.create_server((LOOPBACK, self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._accepting = True

    def _refuse(self) -> None:
        if self._accepting:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._accepting = False

    def _take_new(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        broker = socket.socket()
        for end in (client, broker):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(client, broker, self._mute_new)
        link.broker.connecting = True
        self._links.add(link)
        code = broker.connect_ex(self._target)
        if code not in (0, errno.EINPROGRESS):
            self._abort(link)
            return
        self._update(link)

    # -- moving bytes

    def _move(self, end: _End, events: int) -> None:
        link = end.link
        if link.closed:
            return  # by another event of the same round
        if end.connecting and events & selectors.EVENT_WRITE:
            if end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                # The nearest a proxy comes to "connection refused".
                self._abort(link)
                return
            end.connecting = False
        for pump in link.pumps:
            if link.closed:
                return
            if pump.sink is end and events & selectors.EVENT_WRITE:
                self._send(pump)
            elif pump.source is end and events & selectors.EVENT_READ:
                self._receive(pump)
        if not link.closed:
            self._update(link)

    def _receive(self, pump: _Pump) -> None:
        if pump.ended or not pump.empty or pump.way in self._stalled:
            return
        try:
            count = pump.source.socket.recv_into(pump.buffer)
        except BlockingIOError:
            return
        except OSError:
            # The source was reset. Through a muted direction even that is not seen.
            if pump.muted:
                pump.ended = True
            else:
                self._abort(pump.source.link)
            return
        if count == 0:
            pump.ended = True
        else:
            pump.source.link.moved_s = time.monotonic()
        self._bytes_seen[pump.way] += count
        pump.sent = 0
        pump.filled = 0 if pump.muted else count
        self._send(pump)

    def _send(self, pump: _Pump) -> None:
        if pump.way in self._stalled or pump.sink.connecting:
            return
        if not pump.empty and not self._send_buffer(pump):
            return
        if pump.empty and pump.ended and not pump.shut and not pump.muted:
            pump.shut = True
            with contextlib.suppress(OSError):
                pump.sink.socket.shutdown(socket.SHUT_WR)
        link = pump.source.link
        if all(each.shut for each in link.pumps):
            self._close(link)

    def _send_buffer(self, pump: _Pump) -> bool:
        """Send what fits; False when that ended the connection."""
        cut, budget = self._cuts.get(pump.way), self._budgets.get(pump.way)
        end = pump.filled if cut is None else min(pump.filled, pump.sent + cut.left)
        if budget is not None:
            budget.earn()
            end = min(end, pump.sent + int(budget.left))
            if end == pump.sent:
                return True
        try:
            count = pump.sink.socket.send(pump.buffer[pump.sent : end])
        except BlockingIOError:
            return True
        except OSError:
            self._abort(pump.sink.link)
            return False
        pump.sent += count
        if budget is not None:
            budget.left -= count
        if cut is not None:
            cut.left -= count
            if cut.left == 0:
                self._fire(pump.way)
                return False
        return True

    def _fire(self, way: Direction) -> None:
        cut = self._cuts.pop(way)
        self._cut()
        cut.done.set()

    # -- interest

    def _set_stalled(self, ways: set[Direction]) -> None:
        self._stalled = ways
        self._update_all()

    def _update_all(self) -> None:
        for link in self._links:
            self._update(link)

    def _update(self, link: _Link) -> None:
        wanted = {link.client: 0, link.broker: 0}
        if link.broker.connecting:
            wanted[link.broker] = selectors.EVENT_WRITE
        else:
            for pump in link.pumps:
                if pump.way in self._stalled:
                    continue
                if not pump.empty or (pump.ended and not pump.shut and not pump.muted):
                    if pump.empty or self._may_pass(pump.way):
                        wanted[pump.sink] |= selectors.EVENT_WRITE
                elif not pump.ended:
                    wanted[pump.source] |= selectors.EVENT_READ
        for end, events in wanted.items():
            self._register(end, events)

    def _register(self, end: _End, events: int) -> None:
        if events == end.events:
            return
        if events == 0:
            self._selector.unregister(end.socket)
        elif end.events == 0:
            self._selector.register(end.socket, events, end)
        else:
            self._selector.modify(end.socket, events, end)
        end.events = events

    # -- ending

    def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            self._abort(link)
        return len(links)

    def _abort(self, link: _Link) -> None:
        """Close both sides with a reset."""
        for end in (link.client, link.broker):
            with contextlib.suppress(OSError):
                end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._close(link)

    def _close(self, link: _Link) -> None:
        if link.closed:
            return
        link.closed = True
        self._links.discard(link)
        for end in (link.client, link.broker):
            self._register(end, 0)
            end.socket.close()


def _ways(direction: Direction | None) -> frozenset[Direction]:
    return _ALL if direction is None else frozenset({direction})
