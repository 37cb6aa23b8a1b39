"""Broker URLs: parsed once, shown without credentials."""

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
        port: default port (IANA's for AMQP, the brokers' own for STOMP).
        tls: whether the connection uses TLS.
        partner: the scheme for the same protocols with TLS switched on or off.
    """

    port: int
    tls: bool
    partner: str


#: Supported URL schemes. :class:`.Broker` has each broker's protocols by scheme.
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
#: Host, port and path. Anything else may be part of a password.
_PLACE = re.compile(r"(?:\[[\w.:%]*\]|[\w.-]*)(?::[0-9]+)?(?:/.*)?", re.DOTALL)

#: A secret of fewer characters is hidden only as a whole word, because it may occur within ordinary words.
_LONG_CHARACTERS = 4

#: Separators between URLs.
_BETWEEN = re.compile(r"[\s,]+")
#: Control characters. Python drops line feeds from URLs. In a login or a name, they would become headers or commands.
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: The end of a scheme, from the last letter of the scheme on. So text before it is scanned only once.
_END_OF_SCHEME = re.compile(r"[A-Za-z](?:(?![A-Za-z])[\w+.-])*://")

#: Advice for characters with a meaning in URLs.
ESCAPES = "in user names, passwords and virtual hosts write '/' as %2F, '@' as %40, ',' as %2C, '?' as %3F, '#' as %23"


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """One candidate of the `url` option.

    Attributes:
        scheme: scheme in lower case.
        virtual_host: virtual host from the path; ``/`` if the path is empty or ``/``, as in pika and most clients (the
            AMQP URI specification says that ``/`` means an empty name).
        username, password: decoded; None if the URL has none.
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
        """The scheme to use if the port uses TLS and this URL does not, or the other way round."""
        return SCHEMES[self.scheme].partner

    def __str__(self) -> str:
        path = "" if self.virtual_host == "/" else "/" + self.virtual_host
        return f"{self.scheme}://{place_of(self.host, self.port)}{path}"


def place_of(host: str, port: int | None) -> str:
    """Return host and port as in URLs, with an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def has_login(text: str) -> bool:
    """Whether a text contains a URL with a user name."""
    return _END_OF_SCHEME.search(text.rpartition("@")[0]) is not None


def redact(text: str) -> str:
    """Remove anything that may be a user name or a password from a URL, valid or not.

    Unescaped characters may extend a password anywhere, so only text after the last '@' that looks like host, port and
    path is shown.
    """
    scheme = _SCHEME.match(text)
    start = scheme.end() if scheme else 0
    user, at, place = text[start:].rpartition("@")
    place, parameters, _ = re.split(r"([?#]|$)", place, maxsplit=1)
    # An '@' after parameters may belong to a password among them.
    shown = place if _PLACE.fullmatch(place) and not re.search("[?#]", user) else "***"
    return text[:start] + at.replace("@", "***@") + shown + (parameters and f"{parameters}***")


def redact_in(text: str, url: str) -> str:
    """Remove any user name, password or parameter that `url` may contain from a library's message about this URL."""
    user = url.partition("://")[2].rpartition("@")[0]
    password, parameters = user.partition(":")[2], url.partition("?")[2]
    values = [value for _, value in parse_qsl(parameters, keep_blank_values=True)]
    return hide(text.replace(url, redact(url)), (user, unquote(user), password, unquote(password), parameters, *values))


def hide(text: str, secrets: Iterable[str]) -> str:
    """Remove secrets from a message, however URLs encode them."""
    for secret in sorted({*secrets} - {""}, key=len, reverse=True):
        text = _spellings(secret).sub("***", text)
    return text


@lru_cache
def _spellings(secret: str) -> re.Pattern[str]:
    """Return a pattern that matches a secret, with each character plain or percent-encoded.

    A short secret matches only as a whole word.
    """
    escapes = ["".join(f"%{byte:02x}" for byte in one.encode("utf-8", "surrogatepass")) for one in secret]
    patterns = [f"(?:{re.escape(one)}|(?i:{escape}))" for one, escape in zip(secret, escapes, strict=True)]
    text = "".join(patterns).replace(re.escape(" "), rf"(?:{re.escape(' ')}|\+)")
    return re.compile(text if len(secret) >= _LONG_CHARACTERS else rf"(?<!\w){text}(?!\w)")


def parse_urls(text: str) -> tuple[BrokerUrl, ...]:
    """Return the failover candidates of a `url` option, in order.

    Raises:
        OptionError: a candidate is not a URL that this package understands.
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
    """Split the text into URLs. Only a comma before a scheme separates URLs; any other comma may be in a password."""
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
        raise OptionError("url", f"{redact(text)!r} has no known scheme; accepted are {accepted}")
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
