"""The queues of a broker that match a pattern: asked over HTTP, once at the start and then at an interval.

No protocol of messages can list queues on every broker, and none without rights to write. The brokers' management over
HTTP can: RabbitMQ's API (plugin `rabbitmq_management`, "HTTP API", GET /api/queues/vhost), Jolokia of the ActiveMQ
brokers' consoles ("Jolokia protocol", read). A user with the right to look is enough.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pyspark_mq.brokers.base import Listing
from pyspark_mq.errors import BrokerError, BrokerUnavailableError, OptionError, RefusedError
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.runtime import Runtime, Task
from pyspark_mq.sources.url import redact

__all__ = ["Management", "QueueWatch"]

_LOG = logging.getLogger("pyspark_mq")

#: An answer is waited for so long; that of ten thousand queues takes a second.
_TIMEOUT_S = 30.0
#: Queues in one answer (500 is the most that RabbitMQ gives), and answers.
_PAGE = 500
_PAGES_MAX = 100
#: Pause between attempts to ask for the first time.
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Management:
    """Option `managementUrl`: where a broker is asked for its queues.

    Attributes:
        url: without user and password.
        username, password: those of the URL, or else of the connection.
    """

    endpoint: Endpoint
    url: str
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, text: str, endpoint: Endpoint) -> Management:
        """The same from the option's text.

        Raises:
            OptionError: it is no URL, or the broker cannot be asked.
        """
        listing = endpoint.broker.listing
        if listing is None:
            raise OptionError("managementUrl", f"broker '{endpoint.broker.name}' does not tell its queues")
        try:
            parts = urlsplit(text)
            place = f"{parts.hostname or ''}{'' if parts.port is None else f':{parts.port}'}"
        except ValueError:
            place, parts = "", urlsplit("")
        if parts.scheme not in ("http", "https") or not place or parts.query or parts.fragment:
            raise OptionError("managementUrl", f"{redact(text)!r} is not accepted; accepted is such as {listing.url}")
        username, password = endpoint.credentials(endpoint.urls[0])
        if parts.username is not None:
            username, password = unquote(parts.username), unquote(parts.password or "")
        return cls(endpoint, f"{parts.scheme}://{place}{parts.path.rstrip('/')}", username, password)

    def names(self) -> list[str]:
        """Names of all queues that can be read, sorted.

        Raises:
            BrokerUnavailableError: it does not answer.
            RefusedError: it does, and does not tell.
        """
        listing = self._listing
        return sorted(set(self._by_jolokia(listing) if listing.mbeans else self._by_api(listing)))

    @property
    def _listing(self) -> Listing:
        listing = self.endpoint.broker.listing
        assert listing is not None, "checked when this was made"
        return listing

    def _by_api(self, listing: Listing) -> Iterator[str]:
        host = quote(self.endpoint.urls[0].virtual_host, safe="")
        for page in range(1, _PAGES_MAX + 1):
            answer = self._ask(listing.path.format(host=host, page=page, size=_PAGE))
            for queue in self._entries(answer, "items"):
                # An exclusive queue is its connection's own, and a stream keeps what is acknowledged.
                if not queue.get("exclusive") and queue.get("type") != "stream":
                    yield str(queue["name"])
            if page >= answer.get("page_count", 1):
                return

    def _by_jolokia(self, listing: Listing) -> Iterator[str]:
        answer = self._ask("/", {"type": "read", "mbean": listing.mbeans, "attribute": ["Name"]})
        if answer.get("error_type") == "javax.management.InstanceNotFoundException":
            return  # there is no queue
        if answer.get("status") != 200:
            raise self._refused(f"it answers {answer.get('status')}: {answer.get('error', '')!s:.200}")
        for queue in answer.get("value", {}).values():
            yield str(queue["Name"])

    def _entries(self, answer: Any, name: str) -> list[dict[str, Any]]:
        entries = answer.get(name) if isinstance(answer, dict) else None
        if not isinstance(entries, list):
            raise self._refused("the answer is not that of the broker's management")
        return entries

    def _ask(self, path: str, body: object = None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.username is not None:
            login = base64.b64encode(f"{self.username}:{self.password or ''}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        # The consoles' agents refuse who does not say from where he comes (Jolokia, "strict-checking").
        headers["Origin"] = f"{urlsplit(self.url).scheme}://localhost"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        context = self.endpoint.tls.context() if self.url.startswith("https:") else None
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = f"it answers {error.code} {error.reason}"
            if error.code in (401, 403):
                text += f"; user '{self.username}' needs the right to look at the broker's management"
            if error.code >= 500:
                raise BrokerUnavailableError(self._problem(text)) from None
            raise self._refused(text) from None
        except ValueError:
            raise self._refused("the answer is not JSON") from None
        except (OSError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", error)
            raise BrokerUnavailableError(self._problem(f"it does not answer: {reason}")) from None

    def _refused(self, text: str) -> RefusedError:
        return RefusedError(self._problem(f"{text}; 'managementUrl' is such as {self._listing.url}"))

    def _problem(self, text: str) -> str:
        return f"the names of the queues cannot be had from {self.url}: {text}"


class QueueWatch:
    """The queues that match, as they were seen last.

    Args:
        pattern: regular expression for a whole name.
        ask: all names that there are.
        interval_s: between two looks.
        patience_s: how long the first answer is waited for.
        runtime: the clock, and what the looks run on.
    """

    def __init__(
        self, pattern: str, ask: Callable[[], Sequence[str]], interval_s: float, patience_s: float, runtime: Runtime
    ) -> None:
        self._pattern = re.compile(pattern)
        self._ask = ask
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._runtime = runtime
        self._stopping = threading.Event()
        self._task: Task | None = None
        self._seen: list[str] = []

    @property
    def begun(self) -> bool:
        """Has there been a first look?"""
        return self._task is not None

    def look(self) -> list[str]:
        """Ask now.

        Raises:
            BrokerError: there is no answer, or none of use.
        """
        self._seen = [name for name in self._ask() if self._pattern.fullmatch(name)]
        return self._seen

    def begin(self) -> list[str]:
        """The first look, and from now on one at each interval.

        Raises:
            BrokerUnavailableError: nobody answers in time.
            RefusedError: the broker answers and does not tell.
        """
        give_up_s = self._runtime.monotonic_s() + self._patience_s
        while True:
            try:
                names = self.look()
                break
            except BrokerUnavailableError:
                if self._runtime.monotonic_s() + _RETRY_S > give_up_s:
                    raise
                self._runtime.sleep(_RETRY_S)
        self._task = self._runtime.spawn("pyspark-mq queues", self._life(), self._stopping)
        return names

    def seen(self) -> list[str]:
        """What matched when it was looked last."""
        return self._seen

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def _life(self) -> Iterator[float]:
        yield self._interval_s
        while not self._stopping.is_set():
            try:
                self.look()
            except BrokerError as error:
                _LOG.warning("%s; the queues known so far are read on", error)
            yield self._interval_s
