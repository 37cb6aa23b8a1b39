"""Parses the URLs of option `url`, and removes users and passwords from texts that are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import parse_qsl, unquote, urlsplit

from pyspark_mq.errors import OptionError

__all__ = [
    "CONTROL",
    "ESCAPES",
    "SCHEMES",
    "BrokerUrl",
    "Scheme",
    "has_login",
    "hide",
    "parse_urls",
    "place_of",
    "redact",
    "redact_in",
]


@dataclass(frozen=True, slots=True)
class Scheme:
    """The meaning of a URL's scheme.

    Attributes:
        port: the default port: for AMQP that of IANA, for STOMP that of the brokers.
        tls: whether the connection uses TLS.
        partner: the scheme for the same protocols with TLS if this scheme is without TLS, and the other way round.
    """

    port: int
    tls: bool
    partner: str


#: The supported URL schemes. :class:`.Broker` says which protocols a scheme means for each broker.
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "amqp": Scheme(5672, tls=False, partner="amqps"),
        "amqps": Scheme(5671, tls=True, partner="amqp"),
        "stomp": Scheme(61613, tls=False, partner="stomp+ssl"),
        "stomp+ssl": Scheme(61612, tls=True, partner="stomp"),
        "rabbitmq-stream": Scheme(5552, tls=False, partner="rabbitmq-stream+tls"),
        "rabbitmq-stream+tls": Scheme(5551, tls=True, partner="rabbitmq-stream"),
    }
)
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")
#: A text that looks like host, port and path. Any other text after an '@' may be part of a password.
_PLACE = re.compile(r"(?:\[[\w.:%]*\]|[\w.-]*)(?::[0-9]+)?(?:/.*)?", re.DOTALL)

#: A secret with fewer characters than this is removed only as a whole word, because it may occur within other words.
_LONG_CHARACTERS = 4

#: Characters that separate URLs.
_BETWEEN = re.compile(r"[\s,]+")
#: A control character. Python removes line feeds from URLs. In a login or a name, a line feed would begin another
#: header or command of the protocol.
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: The end of a scheme, from its last letter on. This pattern does not scan any text twice, so it is fast on long texts.
_END_OF_SCHEME = re.compile(r"[A-Za-z](?:(?![A-Za-z])[\w+.-])*://")

#: Advice in errors: how to write characters that have a meaning in URLs.
ESCAPES = "in user names, passwords and virtual hosts write '/' as %2F, '@' as %40, ',' as %2C, '?' as %3F, '#' as %23"


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """One URL of option `url`. Its text (`str`) has no user and no password.

    Attributes:
        scheme: the scheme in lower case.
        virtual_host: the virtual host that the path names; ``/`` if the path is empty or ``/``, as in pika and most
            clients. (The AMQP URI specification says that the path ``/`` means an empty name.)
        username, password: the decoded login; None if the URL has none.
    """

    scheme: str
    host: str
    port: int
    virtual_host: str
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def tls(self) -> bool:
        return SCHEMES[self.scheme].tls

    @property
    def partner(self) -> str:
        """The scheme to use instead if the broker's port uses TLS and this URL does not, or the other way round."""
        return SCHEMES[self.scheme].partner

    def __str__(self) -> str:
        path = "" if self.virtual_host == "/" else "/" + self.virtual_host
        return f"{self.scheme}://{place_of(self.host, self.port)}{path}"


def place_of(host: str, port: int | None) -> str:
    """Return host and port in the form that URLs have, with an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def has_login(text: str) -> bool:
    """Whether a text contains a URL with a user name."""
    return _END_OF_SCHEME.search(text.rpartition("@")[0]) is not None


def redact(text: str) -> str:
    """Remove everything that may be a user or a password from a URL. The URL does not have to be valid.

    A password with unescaped characters may reach into any part of the URL. So this shows only the text after the last
    '@', and only if it looks like host, port and path.
    """
    scheme = _SCHEME.match(text)
    start = scheme.end() if scheme else 0
    user, at, place = text[start:].rpartition("@")
    place, parameters, _ = re.split(r"([?#]|$)", place, maxsplit=1)
    # An '@' after parameters may belong to a password among them.
    shown = place if _PLACE.fullmatch(place) and not re.search("[?#]", user) else "***"
    return text[:start] + at.replace("@", "***@") + shown + (parameters and f"{parameters}***")


def redact_in(text: str, url: str) -> str:
    """Remove every user, password and parameter that `url` may contain from a library's text that quotes this URL."""
    user = url.partition("://")[2].rpartition("@")[0]
    password, parameters = user.partition(":")[2], url.partition("?")[2]
    values = [value for _, value in parse_qsl(parameters, keep_blank_values=True)]
    return hide(text.replace(url, redact(url)), (user, unquote(user), password, unquote(password), parameters, *values))


def hide(text: str, secrets: Iterable[str]) -> str:
    """Remove secrets from a text, even if they are percent-encoded there as in URLs."""
    for secret in sorted({*secrets} - {""}, key=len, reverse=True):
        text = _spellings(secret).sub("***", text)
    return text


@lru_cache
def _spellings(secret: str) -> re.Pattern[str]:
    """Return a pattern that matches a secret. Each of its characters may be plain or percent-encoded in the text.

    A secret with fewer than :data:`_LONG_CHARACTERS` characters matches only as a whole word.
    """
    escapes = ["".join(f"%{byte:02x}" for byte in one.encode("utf-8", "surrogatepass")) for one in secret]
    patterns = [f"(?:{re.escape(one)}|(?i:{escape}))" for one, escape in zip(secret, escapes, strict=True)]
    text = "".join(patterns).replace(re.escape(" "), rf"(?:{re.escape(' ')}|\+)")
    return re.compile(text if len(secret) >= _LONG_CHARACTERS else rf"(?<!\w){text}(?!\w)")


def parse_urls(text: str) -> tuple[BrokerUrl, ...]:
    """Parse the value of option `url`: one URL, or several URLs that are tried one after the other.

    Raises:
        OptionError: the text is not a list of URLs that this package supports.
    """
    text = text.strip(", \t\r\n")
    if not text:
        raise OptionError("url", "is empty; set for example amqp://user:password@host:5672/vhost")
    urls = tuple(map(_parse, _candidates(text)))
    shown = ",".join(map(str, urls))
    if len({url.scheme for url in urls}) > 1:
        raise OptionError("url", f"mixes schemes in '{shown}'; all failover candidates must have the same scheme")
    if len({url.virtual_host for url in urls}) > 1:
        raise OptionError(
            "url", f"mixes virtual hosts in '{shown}'; all failover candidates must have the same virtual host"
        )
    return urls


def _candidates(text: str) -> Iterator[str]:
    """Split the text into URLs, at each comma that a scheme follows. Any other comma may belong to a password."""
    start = 0
    for gap in _BETWEEN.finditer(text):
        if "," in gap[0] and _SCHEME.match(text, gap.end()):
            yield text[start : gap.start()]
            start = gap.end()
    yield text[start:]


def _parse(text: str) -> BrokerUrl:
    if CONTROL.search(unquote(text)):
        raise OptionError("url", f"{redact(text)!r} has a control character, plain or as %0A; remove it")
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname
        if port == 0:
            raise ValueError("Port 0")  # noqa: TRY301 - like urllib's error for any other port out of range
    except ValueError as wrong:
        # urllib's message may quote the invalid part, which may belong to a password.
        hint = "the port must be a number from 1 to 65535" if "ort" in str(wrong) else "malformed"
        raise OptionError("url", f"{redact(text)!r} is not a URL: {hint}; {ESCAPES}") from None
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        accepted = ", ".join(f"{name}://" for name in SCHEMES)
        raise OptionError("url", f"{redact(text)!r} has no known scheme; use one of: {accepted}")
    if not host or "," in host:
        problem = "names no host" if not host else "names several hosts; write each candidate as a whole URL"
        raise OptionError("url", f"{redact(text)!r} {problem}; {ESCAPES}")
    if parts.query or parts.fragment:
        raise OptionError("url", f"{redact(text)!r} has parameters; set options of the source instead; {ESCAPES}")
    if "@" in parts.path:
        raise OptionError("url", f"{redact(text)!r} has an '@' after the host; {ESCAPES}")
    path = unquote(parts.path[1:])
    return BrokerUrl(
        scheme=scheme,
        host=host,
        port=port or SCHEMES[scheme].port,
        virtual_host=path or "/",
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )
