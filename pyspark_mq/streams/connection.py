"""One connection of the stream protocol: blocking, for one thread, without reconnects.

If the connection ends, for whatever reason, :class:`StreamLost` is raised and the connection cannot be used afterwards.
Permanent refusals raise errors of the package. The version in the broker's greeting is checked, because an unknown
command would end the connection.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from pyspark_mq.errors import ConfigurationError, RefusedError
from pyspark_mq.sources.endpoint import tls_error
from pyspark_mq.sources.url import BrokerUrl, hide, place_of
from pyspark_mq.streams import frames
from pyspark_mq.streams.access import Access
from pyspark_mq.streams.chunk import Chunk, read_chunk
from pyspark_mq.streams.frames import FieldReader, StreamFrameError, StreamLost

__all__ = ["NO_STREAM", "Member", "NoStream", "StreamConnection", "StreamLost", "Subscription"]

_RECEIVE_BYTES = 256 << 10
#: Head of a frame: the size of the rest, the command, and the version.
_HEAD = struct.Struct(">IHH")
#: Largest accepted chunk; the protocol has no limit. All other frames are small.
_CHUNK_BYTES_MAX, _FRAME_BYTES_MAX = 1 << 30, 1 << 20
#: Most members of a stream; more than any cluster has.
_MEMBERS_MAX = 16
#: Most characters of a broker's message that an error shows.
_REASON_MAX = 300
_NUMBERS = {"first_chunk_id", "committed_chunk_id"}
_REFUSALS = frozenset({7, 8, 9, 10, 11, 12, 16})
#: Response codes: the stream does not exist, or has no member on this node.
NO_STREAM, _NOT_HERE = 2, 6
_SUBSCRIPTIONS = 256
#: RabbitMQ 3.10's osiris cannot report the end of a stream.
_VERSION_MIN = (3, 11)
#: Offset specifications of Subscribe.
_AT, _SINCE = 4, 5


class Member(NamedTuple):
    """A node's address for clients."""

    host: str
    port: int


class NoStream(Exception):  # noqa: N818
    """The stream does not exist (code 2), or has no member on this node (code 6).

    Attributes:
        member: the node that reports this.
    """

    def __init__(self, stream: str, code: int, member: Member) -> None:
        self.stream, self.code, self.member = stream, code, member
        super().__init__(f"stream '{stream}': {frames.REASONS[code]}")


class StreamConnection:
    """A connection to one node.

    Args:
        access: user, virtual host, TLS and times.
        member: the node.
        url: the candidate URL, for errors.

    Raises:
        StreamLost: the node does not answer, or speaks another protocol.
        RefusedError: the node refused user, password, virtual host or TLS.
        ConfigurationError: the broker is too old.
    """

    def __init__(self, access: Access, member: Member, url: BrokerUrl) -> None:
        self._access, self._url = access, url
        #: The requested node, and the node that answers (`advertised`), as the broker reports it at login. Behind a
        #: load balancer these may be two nodes.
        self.member = self.advertised = member
        self._socket: socket.socket | None = None
        self._buffer, self._at = b"", 0
        self._heartbeat_s = access.heartbeat_s
        self._sent_s = time.monotonic()
        self._last = 0
        self._next_subscription = 0
        self._subscription: Subscription | None = None
        #: Longest silence of the broker, in seconds.
        self.patience_s = access.connect_timeout_s
        try:
            self._connect()
            self._greet()
        except BaseException:
            self.close()
            raise

    # -- greeting

    def _connect(self) -> None:
        timeout_s = self._access.connect_timeout_s
        try:
            plain = socket.create_connection(self.member, timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain
            if self._url.tls:
                # A node's certificate is for its advertised address.
                self._socket = self._access.context().wrap_socket(plain, server_hostname=self.member.host)
        except ssl.SSLError as failed:
            raise tls_error(failed, self._url) from None
        except (OSError, ValueError, OverflowError) as failed:  # brokers may advertise anything
            text = f"{self.place} cannot be reached: {failed}"
            if self._socket is not None:
                text = f"{self.place} does not answer with TLS: {failed}; without TLS, use {self._url.partner}://"
            raise StreamLost(text) from None

    def _greet(self) -> None:
        names = {"product": "pyspark-mq", "platform": "Python"}
        greeting = self.request(
            frames.PEER_PROPERTIES, frames.array(frames.text(key) + frames.text(value) for key, value in names.items())
        )
        self.properties = greeting.pairs()
        self.version = tuple(map(int, re.findall(r"\d{1,9}", self.properties.get("version", ""))[:2]))
        if self.version < _VERSION_MIN:
            known = self.properties.get("version", "of an unknown version")
            raise ConfigurationError(
                f"{self._url}: this is RabbitMQ {known!r}, which does not report the committed end of a stream; "
                "reading streams needs RabbitMQ 3.11 or later"
            )
        self.request(frames.SASL_HANDSHAKE, b"")
        secret = f"\0{self._access.username}\0{self._access.password}".encode()
        self.request(frames.SASL_AUTHENTICATE, frames.text("PLAIN") + frames.u32(len(secret)) + secret)
        tune = self._await(lambda command, _: command == frames.TUNE)
        frame_bytes, heartbeat_s = tune.u32(), tune.u32()
        self._heartbeat_s = wanted = min(filter(None, (heartbeat_s, int(self._access.heartbeat_s))))
        self._send(frames.TUNE, frames.u32(frame_bytes) + frames.u32(wanted))
        opened = self.request(frames.OPEN, frames.text(self._access.urls[0].virtual_host)).pairs()
        host, port = opened.get("advertised_host", ""), opened.get("advertised_port", "")
        if host and port.isdecimal():
            self.advertised = Member(host, int(port[:9]))

    @property
    def place(self) -> str:
        """Host and port, for errors."""
        return place_of(self.member.host, self.member.port)

    # -- requests

    def request(self, command: int, content: bytes, stream: str = "") -> FieldReader:
        """Send a request and wait for the answer. Return a reader positioned after the answer's response code.

        Raises:
            NoStream: the request's `stream` does not exist, or has no member on this node.
            RefusedError: the broker refuses permanently.
            StreamLost: the connection ended, or the broker cannot fulfil the request now.
        """
        self._last += 1
        self._send(command, frames.u32(self._last) + content)

        def is_answer(answered: int, fields: FieldReader) -> bool:
            return answered & ~frames.RESPONSE == command and answered != frames.TUNE and fields.u32() == self._last

        reader = self._await(is_answer)
        # The answer to Metadata has its own codes.
        code = frames.OK if command == frames.METADATA else reader.u16()
        if code == frames.OK:
            return reader
        if code in {NO_STREAM, _NOT_HERE}:
            raise NoStream(stream, code, self.advertised)
        reason = frames.REASONS.get(code, f"code {code}")
        if code in _REFUSALS:
            raise RefusedError(
                f"{self._url} as user '{self._access.username}': {reason}; correct 'url', 'username' or 'password', or "
                "grant the user permission to read the stream"
            )
        raise StreamLost(f"{self.place} refused command {command}: {reason}")

    def stats(self, stream: str) -> dict[str, int]:
        """Return a stream's statistics, such as `first_chunk_id` and `committed_chunk_id`. -1 means no chunk yet."""
        answer = self.request(frames.STREAM_STATS, frames.text(stream), stream)
        found = dict(answer.array(lambda: (answer.text(), answer.i64())))
        if lacking := sorted(_NUMBERS - found.keys()):
            raise StreamFrameError(f"the statistics of stream '{stream}' lack {', '.join(lacking)}")
        return found

    def partitions(self, super_stream: str) -> list[str]:
        """Return the partitions of a super stream in order. The list is empty if the stream is not a super stream."""
        try:
            answer = self.request(frames.PARTITIONS, frames.text(super_stream))
        except NoStream:
            return []
        return answer.array(answer.text)

    def members(self, stream: str) -> list[Member]:
        """Return the nodes of a stream, the leader first. The list is empty if there is no leader and no replica."""
        answer = self.request(frames.METADATA, frames.array([frames.text(stream)]))
        nodes = dict(answer.array(lambda: (answer.u16(), Member(answer.text(), answer.u32()))))
        found: list[Member] = []
        for name, code, leader, replicas in answer.array(
            lambda: (answer.text(), answer.u16(), answer.u16(), answer.array(answer.u16))
        ):
            if code == NO_STREAM:
                raise NoStream(name, code, self.advertised)
            found += [nodes[node] for node in (leader, *replicas) if node in nodes]
        return list(dict.fromkeys(found))[:_MEMBERS_MAX]

    # -- subscriptions

    @contextmanager
    def subscribed(self, stream: str, offset: int | None = None, since_ms: int = 0) -> Iterator[Subscription]:
        """Subscribe with one credit, from an offset on. Without an offset, subscribe from a time on.

        After an error the connection is useless.

        Raises:
            NoStream: the stream does not exist, or has no member on this node.
        """
        number = self._next_subscription
        self._next_subscription = (number + 1) % _SUBSCRIPTIONS
        kind, where = (_SINCE, since_ms) if offset is None else (_AT, offset)
        # Without the selector the broker leaves out its own chunks, and gaps would look like loss.
        properties = frames.array([frames.text("chunk_selector") + frames.text("all")])
        start = frames.u16(kind) + frames.u64(where)
        content = frames.u8(number) + frames.text(stream) + start + frames.u16(1) + properties
        self.request(frames.SUBSCRIBE, content, stream)
        self._subscription = Subscription(self, number, stream)
        yield self._subscription
        self._subscription = None
        self.request(frames.UNSUBSCRIBE, frames.u8(number), stream)

    def credit(self, number: int, count: int) -> None:
        self._send(frames.CREDIT, frames.u8(number) + frames.u16(count))

    # -- frames

    def _await(self, is_answer: Callable[[int, FieldReader], bool]) -> FieldReader:
        """Return the next answer. If no answer arrives in time, the connection is lost."""
        deadline = time.monotonic() + self.patience_s
        try:
            while True:
                command, reader = self.receive(deadline)
                if is_answer(command, reader):
                    return reader
        except TimeoutError as silent:
            raise StreamLost(str(silent)) from None
        except StreamFrameError as wrong:
            raise StreamLost(f"{self.place} does not speak the stream protocol: {wrong}") from None

    def receive(self, deadline: float) -> tuple[int, FieldReader]:
        """Return the next frame. If the frame belongs to the subscription, the subscription takes the frame first.

        Raises:
            TimeoutError: no frame arrived in time.
        """
        if time.monotonic() > deadline:
            raise TimeoutError(f"{self.place} sent only unrelated frames in time")
        size, command, _ = _HEAD.unpack(self._take(_HEAD.size, deadline))
        if not 4 <= size <= (_CHUNK_BYTES_MAX if command == frames.DELIVER else _FRAME_BYTES_MAX):
            raise StreamFrameError(f"{self.place} sent a frame of {size} bytes")
        # The deadline is for the first bytes of a frame; once begun, a frame is read to its end.
        data = self._take(size - 4, deadline, started=True)
        reader = FieldReader(data)
        if command == frames.DELIVER:
            if self._subscription is not None:
                self._subscription.take(data)
        elif command == frames.METADATA_UPDATE:
            reader.u16()
            if self._subscription is not None and reader.text() == self._subscription.stream:
                self._subscription.ended = True
        elif command == frames.CLOSE:
            reader.u32()
            code = reader.u16()
            reason = hide(reader.text(), [self._access.password])[:_REASON_MAX]
            raise StreamLost(f"{self.place} closed the connection: {code} {reason}")
        return command, reader

    def _take(self, size: int, deadline: float, *, started: bool = False) -> bytes:
        """Read exactly `size` bytes, and send heartbeats meanwhile."""
        parts, missing = [], size
        while True:
            parts.append(self._buffer[self._at : self._at + missing])
            self._at += missing
            missing -= len(parts[-1])
            if missing == 0:
                return b"".join(parts)
            self._buffer, self._at = self._receive(deadline, started=started or missing < size), 0

    def _receive(self, deadline: float, *, started: bool) -> bytes:
        assert self._socket is not None
        if started:
            deadline = time.monotonic() + self.patience_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                if started:
                    raise StreamLost(f"{self.place} stopped in the middle of a frame")
                raise TimeoutError(f"{self.place} sent nothing in time")
            try:
                self._socket.settimeout(min(left_s, self._heartbeat_s / 2))
                part = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                self._send(frames.HEARTBEAT, b"")
                continue
            except OSError as failed:
                raise StreamLost(f"{self.place}: {failed}") from None
            if not part:
                raise StreamLost(f"{self.place} closed the connection without a reason")
            if time.monotonic() - self._sent_s > self._heartbeat_s / 2:
                self._send(frames.HEARTBEAT, b"")
            return part

    def _send(self, command: int, content: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.settimeout(self._access.connect_timeout_s)
            self._socket.sendall(frames.frame(command, content))
        except OSError as failed:
            raise StreamLost(f"{self.place}: {failed}") from None
        self._sent_s = time.monotonic()

    def close(self) -> None:
        """Close the connection without a handshake, because the broker keeps no state that a handshake would end."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()


class Subscription:
    """A subscription to one stream. It begins with one credit. A connection has one subscription at a time.

    Attributes:
        ended: whether the broker has ended the subscription.
    """

    def __init__(self, connection: StreamConnection, number: int, stream: str) -> None:
        self._connection, self._number, self.stream = connection, number, stream
        self._open = 1
        self._chunks: deque[bytes] = deque()
        self.ended = False

    def take(self, delivery: bytes) -> None:
        """Queue a chunk, unless the chunk is for an earlier subscription.

        Raise a StreamFrameError if no credit was left.
        """
        if delivery[:1] == frames.u8(self._number):
            if len(self._chunks) == self._open:
                raise StreamFrameError("the broker sent more chunks than credit allows")
            self._chunks.append(delivery)

    def next(self, wait_s: float) -> Chunk:
        """Return the next chunk.

        Raises:
            StreamLost: the broker has ended the subscription or the connection.
            TimeoutError: nothing arrived in time.
            ChunkError: a delivered chunk has a damaged header.
        """
        deadline = time.monotonic() + wait_s
        while not self._chunks:
            if self.ended:
                place = self._connection.place
                raise StreamLost(f"{place} has ended the subscription to stream '{self.stream}'")
            self._connection.receive(deadline)
        self._open -= 1
        return read_chunk(self._chunks.popleft(), 1)

    def want(self, chunks: int) -> None:
        """Allow up to `chunks` chunks to be in flight."""
        if self._open <= chunks // 2:
            self._connection.credit(self._number, chunks - self._open)
            self._open = chunks
