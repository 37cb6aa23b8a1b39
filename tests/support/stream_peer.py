"""A broker of the stream protocol that can lie, written from the protocol's description alone (`PROTOCOL.adoc`).

It knows what its streams truly hold. Lies are methods of :class:`Lies` that a test overrides: they see what the truth
would be, and say something else.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Self

__all__ = [
    "Lies", "Link", "Log", "Stored", "StreamPeer", "chunk_bytes", "deliver_frame", "frame", "stream_peers", "text",
]  # fmt: skip

SUBSCRIBE, DELIVER, CREDIT, UNSUBSCRIBE, METADATA, UPDATE = 7, 8, 9, 12, 15, 16
PEER, HANDSHAKE, AUTHENTICATE, TUNE, OPEN, CLOSE, HEARTBEAT, PARTITIONS, STATS = 17, 18, 19, 20, 21, 22, 23, 25, 28
OK, NO_STREAM = 1, 2


def text(value: str) -> bytes:
    """A string of the protocol."""
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def frame(command: int, content: bytes, version: int = 1) -> bytes:
    """A whole frame."""
    return struct.pack(">IHH", len(content) + 4, command, version) + content


def deliver_frame(subscription: int, chunk: bytes) -> bytes:
    """A chunk on its way to a subscription."""
    return frame(DELIVER, struct.pack(">B", subscription) + chunk)


def chunk_bytes(
    first: int,
    data: bytes,
    entries: int,
    records: int,
    *,
    kind: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
    epoch: int = 1,
    crc: int | None = None,
    size: int | None = None,
) -> bytes:
    """A chunk as it is stored."""
    crc = zlib.crc32(data) if crc is None else crc
    size = len(data) if size is None else size
    return struct.pack(">BBHIqQQIIII", 0x50, kind, entries, records, timestamp_ms, epoch, first, crc, size, 0, 0) + data


@dataclass
class Stored:
    """A chunk, and the bodies that it has, one for each offset; none of the broker's own."""

    first: int
    records: int
    data: bytes
    bodies: list[bytes]

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.first + self.records


@dataclass
class Log:
    """A stream as it truly is.

    Attributes:
        committed: how many of the chunks are.
        generation: of how many streams of this name it is; its chunks have times of their own.
        epoch: of what is written now.
    """

    generation: int = 1
    epoch: int = 1
    chunks: list[Stored] = field(default_factory=list)
    committed: int = 0
    trimmed: int = 0

    @property
    def end(self) -> int:
        """The offset behind all chunks."""
        return self.chunks[-1].end if self.chunks else 0

    def append(self, bodies: Sequence[bytes], *, commit: bool = True) -> None:
        """Write a chunk of messages."""
        records = [b"\0\x53\x75\xb0" + struct.pack(">I", len(body)) + body for body in bodies]
        data = b"".join(struct.pack(">I", len(record)) + record for record in records)
        self._append(data, len(bodies), [*bodies], kind=0, commit=commit)

    def append_packed(self, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        """Write a chunk of packed entries, each as its bytes, and the bodies that it should have."""
        bodies = [body for _, some in entries for body in some]
        self._append(b"".join(data for data, _ in entries), len(bodies), bodies, len(entries), kind=0, commit=True)

    def replace_end(self, count: int, chunks: Sequence[Sequence[bytes]]) -> None:
        """Lose the last chunks, and write others in a new epoch, later."""
        del self.chunks[-count:]
        self.generation, self.epoch, self.committed = self.generation + 1, self.epoch + 1, len(self.chunks)
        for bodies in chunks:
            self.append(bodies)

    def note(self) -> None:
        """Write a chunk of the broker's own, which takes an offset."""
        self._append(struct.pack(">I", 4) + b"note", 1, [], kind=1, commit=True)

    def _append(
        self, data: bytes, records: int, bodies: list[bytes], entries: int = 0, *, kind: int, commit: bool
    ) -> None:
        time_ms = 1_700_000_000_000 + 10**9 * self.generation + 10 * len(self.chunks)
        stored = chunk_bytes(
            self.end, data, entries or records, records, kind=kind, timestamp_ms=time_ms, epoch=self.epoch
        )
        self.chunks.append(Stored(self.end, records, stored, bodies))
        if commit:
            self.committed = len(self.chunks)

    def rows(self) -> list[tuple[int, bytes]]:
        """Offsets and bodies of what is committed."""
        chunks = self.chunks[: self.committed]
        return [(chunk.first + at, body) for chunk in chunks for at, body in enumerate(chunk.bodies)]

    def index(self, offset: int) -> int:
        """The chunk that a subscription at an offset begins with."""
        for number in range(self.trimmed, self.committed):
            if self.chunks[number].end > offset:
                return number
        return self.committed


class Lies:
    """What a broker says instead of the truth. As it stands, nothing."""

    def frames(self, link: Link, command: int, content: bytes) -> bytes | None:
        """What goes out before a request is handled; None closes the connection."""
        return b""

    def stats(self, log: Log, numbers: dict[str, int]) -> dict[str, int]:
        """The numbers of a stream."""
        return numbers

    def begin(self, log: Log, index: int) -> int:
        """The chunk that a subscription begins with."""
        return index

    def deliver(self, link: Link, subscription: int, log: Log, index: int) -> tuple[list[bytes], int]:
        """The frames for the chunk at an index, and the index that is next."""
        return [deliver_frame(subscription, log.chunks[index].data)], index + 1

    def answer(self, link: Link, command: int, answer: bytes) -> bytes:
        """The bytes of an answer, which are a whole frame."""
        return answer

    def partitions(self, names: list[str]) -> list[str]:
        """The partitions of a super stream."""
        return names

    def members(self, members: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Host and port of the nodes that have a stream."""
        return members


@dataclass
class _Subscription:
    stream: str
    index: int
    credit: int


class Link:
    """One connection."""

    def __init__(self, peer: StreamPeer, connection: socket.socket) -> None:
        self._peer, self._socket = peer, connection
        self.subscriptions: dict[int, _Subscription] = {}

    def run(self) -> None:
        """Serve until it ends."""
        with suppress(OSError, struct.error), self._socket:
            self._socket.settimeout(0.05)
            while not self._peer.stopping.is_set():
                size = self._take(4)
                if size is None:
                    return
                whole = self._take(int.from_bytes(size, "big"))
                if whole is None or not self._handle(int.from_bytes(whole[:2], "big"), whole[4:]):
                    return

    def _take(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            try:
                part = self._socket.recv(size - len(found))
            except TimeoutError:
                if self._peer.stopping.is_set():
                    return None
                continue
            if not part:
                return None
            found += part
        return found

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        while data and not self._peer.stopping.is_set():
            with suppress(TimeoutError):
                data = data[self._socket.send(data) :]

    def _handle(self, command: int, content: bytes) -> bool:
        peer, lies = self._peer, self._peer.lies
        first = lies.frames(self, command, content)
        if first is None:
            return False
        self.send(first)
        with peer.lock:
            answer = self._answer(command, content)
        if answer is not None:
            self.send(lies.answer(self, command, frame(command | 0x8000, content[:4] + answer)))
            if command == AUTHENTICATE:
                self.send(frame(TUNE, struct.pack(">II", 1 << 20, 60)))
        if command in {SUBSCRIBE, CREDIT}:
            self._deliver()
        return True

    def _answer(self, command: int, content: bytes) -> bytes | None:
        peer, lies, rest = self._peer, self._peer.lies, content[4:]
        good = struct.pack(">H", OK)
        if command == PEER:
            return good + struct.pack(">I", 1) + text("version") + text("4.3.0")
        if command == HANDSHAKE:
            return good + struct.pack(">I", 1) + text("PLAIN")
        if command == AUTHENTICATE:
            return good
        if command == OPEN:
            shown = text("advertised_host") + text(peer.host) + text("advertised_port") + text(str(peer.port))
            return good + struct.pack(">I", 2) + shown
        if command == METADATA:
            return self._metadata(_text_at(rest, 4))
        if command == PARTITIONS:
            names = peer.supers.get(_text_at(rest, 0))
            if names is None:
                return struct.pack(">HI", NO_STREAM, 0)
            shown = lies.partitions([*names])
            return good + struct.pack(">I", len(shown)) + b"".join(map(text, shown))
        if command == STATS:
            log = peer.logs.get(_text_at(rest, 0))
            if log is None:
                return struct.pack(">HI", NO_STREAM, 0)
            pairs = lies.stats(log, _numbers(log))
            packed = b"".join(text(name) + struct.pack(">q", number) for name, number in pairs.items())
            return good + struct.pack(">I", len(pairs)) + packed
        if command == SUBSCRIBE:
            return self._subscribe(rest)
        if command == CREDIT:
            subscription = self.subscriptions.get(content[0])
            if subscription is not None:
                subscription.credit += int.from_bytes(content[1:3], "big")
        if command == UNSUBSCRIBE:
            self.subscriptions.pop(rest[0], None)
            return good
        return None

    def _metadata(self, name: str) -> bytes:
        peer = self._peer
        members = peer.lies.members([(member.host, member.port) for member in peer.members])
        nodes = b"".join(
            struct.pack(">H", number) + text(host) + struct.pack(">I", port)
            for number, (host, port) in enumerate(members)
        )
        code = OK if name in peer.logs else NO_STREAM
        replicas = struct.pack(f">I{len(members)}H", len(members), *range(len(members)))
        stream = text(name) + struct.pack(">HH", code, 0) + replicas
        return struct.pack(">I", len(members)) + nodes + struct.pack(">I", 1) + stream

    def _subscribe(self, rest: bytes) -> bytes:
        name = _text_at(rest, 1)
        log = self._peer.logs.get(name)
        if log is None:
            return struct.pack(">H", NO_STREAM)
        at = 3 + len(name.encode())
        kind, at = int.from_bytes(rest[at : at + 2], "big"), at + 2
        index = log.trimmed
        if kind in {4, 5}:
            where, at = int.from_bytes(rest[at : at + 8], "big"), at + 8
            index = log.index(where) if kind == 4 else _index_since(log, where)
        credit = int.from_bytes(rest[at : at + 2], "big")
        self.subscriptions[rest[0]] = _Subscription(name, self._peer.lies.begin(log, index), credit)
        return struct.pack(">H", OK)

    def _deliver(self) -> None:
        for number, subscription in [*self.subscriptions.items()]:
            while subscription.credit > 0:
                with self._peer.lock:
                    log = self._peer.logs.get(subscription.stream)
                    if log is None or not log.trimmed <= subscription.index < log.committed:
                        break
                    frames, index = self._peer.lies.deliver(self, number, log, subscription.index)
                    subscription.index = index
                    subscription.credit -= 1
                for one in frames:
                    self.send(one)


def _text_at(data: bytes, at: int) -> str:
    size = int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : at + 2 + size].decode()


def _numbers(log: Log) -> dict[str, int]:
    if not log.committed:
        return {"first_chunk_id": -1, "last_chunk_id": -1, "committed_chunk_id": -1}
    last = log.chunks[log.committed - 1]
    return {
        "first_chunk_id": log.chunks[min(log.trimmed, log.committed - 1)].first,
        "last_chunk_id": log.chunks[-1].first,
        "committed_chunk_id": last.first,
    }


def _index_since(log: Log, since_ms: int) -> int:
    for number in range(log.trimmed, log.committed):
        if struct.unpack_from(">q", log.chunks[number].data, 8)[0] >= since_ms:
            return number
    return log.committed


class StreamPeer:
    """The broker, on a free port. What it holds and what it lies may be changed at any time, with its lock.

    Args:
        host: an address of this machine.
        tls: the context of a port with TLS.

    Attributes:
        members: those of all streams; by default it alone. Each has what it has, and lies for itself.
    """

    def __init__(self, lies: Lies | None = None, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.host, self._tls = host, tls
        self.members: list[StreamPeer] = [self]
        self.logs: dict[str, Log] = {}
        self.supers: dict[str, list[str]] = {}
        self.lies = lies or Lies()
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self.links = 0
        self._listener = socket.create_server((host, 0))
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL of it."""
        scheme = "rabbitmq-stream+tls" if self._tls else "rabbitmq-stream"
        return f"{scheme}://guest:guest@{self.host}:{self.port}/"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        self._listener.settimeout(0.05)
        while not self.stopping.is_set():
            try:
                connection = self._listener.accept()[0]
            except TimeoutError:
                continue
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.links += 1
            if self._tls is not None:
                try:
                    connection.settimeout(5)
                    connection = self._tls.wrap_socket(connection, server_side=True)
                except OSError:
                    continue
            self._start(Link(self, connection).run)


@contextmanager
def stream_peers(log: Log, count: int, stream: str = "events") -> Iterator[list[StreamPeer]]:
    """Members of a stream, each with a copy of a log of its own."""
    with ExitStack() as stack:
        peers = [stack.enter_context(StreamPeer()) for _ in range(count)]
        for peer in peers:
            peer.members, peer.logs[stream] = peers, deepcopy(log)
        yield peers
