"""HTTP requests to a broker's management interface (option `managementUrl`): they list queues, and read settings.

No messaging protocol can list the queues of every broker, or report all settings of a queue. The management interfaces
can: the HTTP API of RabbitMQ (plugin `rabbitmq_management`, "HTTP API"), and Jolokia in the consoles of the ActiveMQ
brokers ("Jolokia protocol"). A user with read-only access is enough.
"""

from __future__ import annotations

import base64
import io
import json
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pyspark_mq.errors import BrokerUnavailableError, OptionError, RefusedError
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.socket_loop import connect
from pyspark_mq.wire.url import CONTROL, ESCAPES, hide, place_of, redact

__all__ = ["Management"]

#: Longest time for one request, from connecting to the last byte of the answer. A broker takes about a second for an
#: answer with ten thousand queues.
_TIMEOUT_S = 30.0
#: Longest time for a list of queues, which may take many requests.
_LIST_TIMEOUT_S = 600.0
#: Maximum number of bytes, and of JSON values, in an answer. Ten thousand queues take less than a tenth of either
#: bound: Artemis 2.56 puts all queues into one answer, with 240 bytes and ten values for each queue. The bound on
#: values is needed because a value of two bytes may take seventy bytes in memory. An answer that was built to take much
#: memory took 320 MiB within both bounds.
_ANSWER_BYTES_MAX = 32 << 20
_ANSWER_VALUES_MAX = 2_000_000
#: In JSON one of these bytes precedes each value except the first, so their number bounds the number of values.
_BEFORE_VALUES = (b"[", b"{", b",", b":")
_PIECE_BYTES = 1 << 20
#: Number of queues in one answer (RabbitMQ allows at most 500), and maximum number of answers: in all a million queues.
_PAGE = 500
_PAGES_MAX = 2_000
_OK = 200
_NOT_FOUND = 404
_UNEXPECTED = "the answer does not come from a broker's management"
#: Jolokia's error if there is no such MBean.
_NO_MBEAN = "javax.management.InstanceNotFoundException"
#: Maximum number of characters that errors show of an answer that is not HTTP, or of an answer's status.
_SHOWN_CHARACTERS = 100
#: Maximum number of characters that errors show of a reason that Jolokia gives.
_REASON_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Management:
    """The management interface that option `managementUrl` names, with methods for requests to it.

    Each request raises a `BrokerUnavailableError` if there is no answer, and a `RefusedError` if the broker refuses the
    request.

    Attributes:
        endpoint: the query's endpoint, which has the TLS options, and the login if `username` is None.
        url: the URL without user and password.
        username, password: the login in the URL; None to use the login of the query's connections to the broker.
        sent: the encoded login that was sent last, which is removed from errors.
    """

    endpoint: Endpoint
    url: str
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sent: deque[str] = field(default_factory=lambda: deque(maxlen=1), repr=False, compare=False)

    @classmethod
    def of(cls, text: str, endpoint: Endpoint) -> Management:
        """Parse the value of option `managementUrl`. Raise an OptionError if it is not an accepted URL."""
        try:
            parts = urlsplit(text)
            place = place_of(parts.hostname or "", parts.port)
        except ValueError:
            place, parts = "", urlsplit("")
        # An '@' in the path shows that a password contains an unescaped slash.
        extra = parts.query or parts.fragment or "@" in parts.path or not parts.path.isascii() or " " in parts.path
        if parts.scheme not in ("http", "https") or not parts.hostname or extra or CONTROL.search(unquote(text)):
            shown = f"{redact(text)!r} is not accepted; use, for example, {endpoint.broker.listing.url}; {ESCAPES}"
            raise OptionError("managementUrl", shown)
        url = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
        if parts.username is None:
            return cls(endpoint, url)
        return cls(endpoint, url, unquote(parts.username), unquote(parts.password or ""))

    def credentials(self) -> tuple[str | None, str | None]:
        """Return user and password. With option `passwordFile` the password may change, so it is read each time."""
        if self.username is not None:
            return self.user, self.password
        return self.endpoint.credentials(self.endpoint.urls[0])

    @property
    def user(self) -> str | None:
        return self.username if self.username is not None else self.endpoint.user(self.endpoint.urls[0])

    def names(self) -> list[str]:
        """Return the names of all queues that a query can read, sorted."""
        listing = self.endpoint.broker.listing
        if listing.mbeans:
            found: Iterable[Any] = (queue.get("Name") for queue in self.read(listing.mbeans, "Name").values())
        else:
            found = self._by_api(listing.path)
        return sorted({self._name(name) for name in found})

    def _by_api(self, path: str) -> Iterator[Any]:
        host = quote(self.endpoint.urls[0].virtual_host, safe="")
        end_s = time.monotonic() + _LIST_TIMEOUT_S
        for page in range(1, _PAGES_MAX + 1):
            answer = self._object(self._ask(path.format(host=host, page=page, size=_PAGE)))
            for queue in self._entries(answer.get("items")):
                # Queries cannot read these: an exclusive queue belongs to one connection, and a stream keeps messages
                # that were acknowledged.
                if not queue.get("exclusive") and queue.get("type") != "stream":
                    yield queue.get("name")
            pages = answer.get("page_count")
            if not isinstance(pages, int) or page >= pages:
                return
            if time.monotonic() > end_s:
                progress = f"only {page} of {pages} pages of its queues arrived in {_LIST_TIMEOUT_S:g} s"
                raise BrokerUnavailableError(self._problem(f"it answers too slowly: {progress}"))
        raise self.refused(f"it has more than {_PAGES_MAX * _PAGE:,} queues, the maximum that can be listed")

    def _name(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.refused(_UNEXPECTED)
        return value

    # -- requests

    def get(self, *path: str) -> dict[str, Any] | None:
        """Request a path of RabbitMQ's HTTP API. Return the JSON object there; None if there is nothing at this path.

        Args:
            path: the parts of the path after `/api`, unquoted.
        """
        found = self._at(path)
        return None if found is None else self._object(found)

    def get_all(self, *path: str) -> list[dict[str, Any]]:
        """Request a path of RabbitMQ's HTTP API. Return the list of objects there; empty if there is nothing there.

        Args:
            path: the parts of the path after `/api`, unquoted.
        """
        found = self._at(path)
        return [] if found is None else self._entries(found)

    def _at(self, path: Sequence[str]) -> Any:
        return self._ask("/api/" + "/".join(quote(part, safe="") for part in path), missing_is_none=True)

    def read(self, mbeans: str, *attributes: str) -> dict[str, dict[str, Any]]:
        """Read attributes of all MBeans that match a pattern, through Jolokia.

        Returns:
            name of each MBean -> those of the attributes that it has. Empty if no MBean matches.
        """
        value = self._jolokia({"type": "read", "mbean": mbeans, "attribute": list(attributes)})
        found = {} if value is None else self._object(value)
        return {name: self._object(attributes) for name, attributes in found.items()}

    def call(self, mbean: str, operation: str, *arguments: object) -> Any:
        """Call an operation of an MBean through Jolokia, and return its result; None if there is no such MBean."""
        return self._jolokia({"type": "exec", "mbean": mbean, "operation": operation, "arguments": list(arguments)})

    def _jolokia(self, question: Mapping[str, object]) -> Any:
        answer = self._object(self._ask("/", question))
        if answer.get("error_type") == _NO_MBEAN:
            return None
        if answer.get("status") != _OK:
            why = self._hide(str(answer.get("error", "")))
            raise self.refused(f"it answers {answer.get('status')}: {why:.{_REASON_CHARACTERS}}")
        return answer.get("value")

    def _object(self, answer: object) -> dict[str, Any]:
        if not isinstance(answer, dict):
            raise self.refused(_UNEXPECTED)
        return answer

    def _entries(self, answer: object) -> list[dict[str, Any]]:
        if not isinstance(answer, list):
            raise self.refused(_UNEXPECTED)
        return [self._object(entry) for entry in answer]

    def _ask(self, path: str, body: object = None, *, missing_is_none: bool = False) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        parts = urlsplit(self.url)
        try:
            username, password = self.credentials()
            context = self.endpoint.tls.context() if parts.scheme == "https" else None
        except OptionError as unreadable:  # while a file is being replaced
            raise BrokerUnavailableError(self._problem(str(unreadable))) from None
        if username is not None:
            login = base64.b64encode(f"{username}:{password or ''}".encode()).decode()
            self.sent.append(login)
            headers["Authorization"] = f"Basic {login}"
        # Jolokia in the brokers' consoles refuses requests without this header ("strict-checking").
        headers["Origin"] = f"{parts.scheme}://localhost"
        data = None if body is None else json.dumps(body).encode()
        # Do not use `urllib.request`: it follows redirects, and would thereby send user and password to any host that
        # an answer names. It would also use a proxy that the environment names.
        port, end_s = parts.port or (80 if context is None else 443), time.monotonic() + _TIMEOUT_S
        try:
            with closing(HTTPConnection(parts.hostname or "", port)) as connection:
                connected = connect(connection.host, connection.port, end_s)
                connection.sock = connected
                if context is not None:
                    connected.settimeout(_left_s(end_s, 0))
                    connection.sock = context.wrap_socket(connected, server_hostname=connection.host)
                connection.request("GET" if data is None else "POST", parts.path + path, data, headers)
                with HTTPResponse(_Answering(connection.sock, end_s)) as response:  # type: ignore[arg-type]
                    response.begin()
                    if response.status == _NOT_FOUND and missing_is_none:
                        return None
                    if response.status != _OK:
                        raise self._answered(response, username)
                    return _loaded(_whole(response))
        except HTTPException as error:  # the answer was cut off, or is not HTTP
            said = self._hide(str(error))
            text = f"its answer is not valid HTTP ({type(error).__name__}: {said:.{_SHOWN_CHARACTERS}})"
            advice = f"if that persists, check the port; a 'managementUrl' is, e.g., {self.endpoint.broker.listing.url}"
            raise BrokerUnavailableError(self._problem(f"{text}; {advice}")) from None
        except OSError as error:
            raise BrokerUnavailableError(self._problem(f"it does not answer: {error}")) from None
        except (ValueError, RecursionError) as error:
            no_name = isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError)
            raise self.refused("its host is not a valid name" if no_name else "the answer is not JSON") from None

    def _answered(self, answer: HTTPResponse, username: str | None) -> BrokerUnavailableError | RefusedError:
        """Return the error for an answer whose HTTP status is not 200."""
        text = f"it answers {answer.status} {self._hide(answer.reason):.{_SHOWN_CHARACTERS}}"
        if answer.status in (401, 403):
            text += f"; user '{username}' needs the right to read the broker's management"
        if 300 <= answer.status < 400:
            text += f", a redirect to '{_host_of(self._hide(answer.getheader('Location', '')))}', which is not followed"
        if answer.status >= 500:
            return BrokerUnavailableError(self._problem(text))
        return self.refused(text)

    def refused(self, text: str) -> RefusedError:
        return RefusedError(self._problem(f"{text}; a 'managementUrl' is, e.g., {self.endpoint.broker.listing.url}"))

    def _problem(self, text: str) -> str:
        return f"the broker's management cannot be queried at {self.url}: {self._hide(text)}"

    def _hide(self, text: str) -> str:
        """Remove passwords from a text that may come from the server. Call this before the text is shortened."""
        own = () if self.password in (None, self.user) else (self.password or "",)
        return hide(self.endpoint.hide(text), (*own, *self.sent))


class _Answering(io.RawIOBase):
    """The bytes of one HTTP answer, limited in time and number. Answers of real brokers stay far below these limits.

    Without limits, a server could send bytes without end: before, in or after the answer.

    Args:
        connected: the socket to read from.
        end_s: when to give up, on the clock of `time.monotonic`.
    """

    def __init__(self, connected: socket.socket, end_s: float) -> None:
        self._socket, self._end_s, self._came = connected, end_s, 0

    def makefile(self, _: str) -> io.BufferedReader:
        """Return the file that :class:`HTTPResponse` reads from. `HTTPResponse` takes this object for a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read available bytes into the buffer. Raise an OSError if the answer takes too long or has too many bytes."""
        try:
            self._socket.settimeout(_left_s(self._end_s, self._came))
            read = self._socket.recv_into(buffer)
        except TimeoutError:
            raise _endless(self._came) from None
        self._came += read
        if self._came > _ANSWER_BYTES_MAX:
            raise _endless(self._came)
        return read


def _left_s(end_s: float, came: int) -> float:
    """Return the seconds until `end_s`. Raise a TimeoutError if this time has passed.

    Args:
        came: number of bytes that have arrived, for the error.
    """
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise _endless(came)
    return left_s


def _endless(came: int) -> TimeoutError:
    return TimeoutError(f"{came} bytes arrived, but the answer did not end")


def _whole(answer: HTTPResponse) -> bytes:
    """Read the body of an answer.

    The body is read in pieces, so that a server cannot make this process allocate memory by announcing a large length.
    """
    data = bytearray()
    while piece := answer.read1(_PIECE_BYTES):
        data += piece
    if answer.length:
        raise IncompleteRead(bytes(data), answer.length)
    return bytes(data)


def _loaded(answer: bytes) -> Any:
    values = sum(map(answer.count, _BEFORE_VALUES))
    if values > _ANSWER_VALUES_MAX:
        raise OSError(f"an answer has {values} values, and at most {_ANSWER_VALUES_MAX} are accepted")
    return json.loads(answer)


def _host_of(url: str) -> str:
    """Return the scheme, host and port of a URL, without its user, password and path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "?"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
