"""The option parser that queues, streams and writes share, and hints for options that users know from other sources."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, ClassVar

from pyspark_mq.brokers import Broker
from pyspark_mq.brokers.destinations import of_row
from pyspark_mq.errors import OptionError
from pyspark_mq.spark_source.option_kinds import Kind, choice
from pyspark_mq.spark_source.option_table import Option
from pyspark_mq.wire.endpoint import Endpoint, Tls
from pyspark_mq.wire.url import CONTROL, BrokerUrl, has_login, parse_urls, redact

__all__ = ["OptionParser", "check_characters", "check_short", "redacting"]

#: Options whose values are never shown.
_SECRET = frozenset({"password", "username"})
#: Options whose values must be one line. STOMP's CONNECT frame escapes nothing, so a line feed in such a value would
#: add headers (STOMP 1.2, "Value Encoding").
_ON_ONE_LINE = frozenset({"password", "username", "subscription"})
#: Options that may contain a password.
_URLS = frozenset({"url", "managementUrl", "dedupStore", "idLog", "checkpointLocation"})
_COMMA = re.compile(r"(?<!\\),")
_ESCAPED = re.compile(r"\\(,)")
#: Options whose value may contain a URL with a user: URLs and secrets, and a selector, which may compare a property
#: with a URL. In any other option such a URL is refused.
_ANY = frozenset({*_URLS, *_SECRET, "selector"})

_SHORT_STRING_BYTES, _SHOWN_CHARACTERS = 255, 60
_IN_URL = "is part of 'url', for example amqp://user:password@host:5672/vhost"
_URL = "use 'url'; several addresses are comma-separated"
_NO_GROUPS = "there are no consumer groups, because a query resumes from its checkpoint; leave it out"
#: Option names of other sources and of clients, in lower case -> what to use here.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("host", "hostname", "port", "vhost", "virtualhost", "virtual_host"), _IN_URL),
    **dict.fromkeys(("brokerurl", "addresses", "uri", "kafka.bootstrap.servers"), _URL),
    **dict.fromkeys(("groupidprefix", "group.id", "kafka.group.id"), _NO_GROUPS),
    "user": "use 'username'",
    "ssl": "use a TLS URL such as amqps://, with 'tls.caFile' and 'tls.verify'",
    "includeheaders": "headers are in column 'properties'; 'includeMetadata' adds all columns",
}


class OptionParser:
    """Base class of option parsers. It keeps the user's options as text, and checks each of them on its own.

    Args:
        given: the user's options. Names may be in any case; values are text.

    Raises:
        OptionError: an option is unknown, or its value has characters that are not allowed.
    """

    #: The options that this parser accepts, by their documented names.
    TABLE: ClassVar[Mapping[str, Option]]
    #: What the options are for, as errors say after "The options": for example " for a write".
    OF: ClassVar[str] = ""

    def __init__(self, given: Mapping[str, str]) -> None:
        names = {name.lower(): name for name in self.TABLE}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            known = names.get(name.lower())
            if known is None:
                raise OptionError(
                    name, self.hint_for_foreign_option(name.lower(), value) or self._unknown(name.lower())
                )
            self._values[known] = str(value) if known in _SECRET else str(value).strip()
            check_characters(known, self._values[known])

    def hint_for_foreign_option(self, name: str, value: str) -> str:
        """Return what to use instead of an option that another source or a client has; empty if there is no hint.

        Args:
            name: the option's name, which this parser does not accept, in lower case.
        """
        del value
        kafka = "is a Kafka client option; here use 'url', 'username' and 'tls.*'"
        return _ELSEWHERE.get(name, kafka if name.startswith("kafka.") else "")

    def _unknown(self, name: str) -> str:
        names = {known.lower(): known for known in self.TABLE}
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean '{names[near[0]]}'?" if near else "."
        return f"is unknown{hint} The options{self.OF} are {', '.join(self.TABLE)}"

    def _text(self, name: str) -> str | None:
        value = self._values.get(name, self.TABLE[name].default)
        if value == "" and name not in _SECRET:
            raise OptionError(name, "is empty")
        return value

    def _required(self, name: str, example: str) -> str:
        value = self._text(name)
        if value is None:
            raise OptionError(name, f"is required; {example}")
        return value

    def _value(self, name: str, kind: Kind | None = None) -> Any:
        """Return the parsed value of an option; None if the option is unset and has no default.

        Args:
            kind: how to parse the value; None to parse it as :attr:`TABLE` says.
        """
        kind, text = kind or self.TABLE[name].kind, self._text(name)
        assert kind is not None, f"option '{name}' has no kind"
        if text is None:
            return None
        value = kind.parse(text.lower())
        if value is None:
            raise OptionError(name, f"{text!r} is not accepted; use {kind.accepted}")
        return value

    def _fields(self, of: type) -> dict[str, Any]:
        """Return field -> value for the options that set a field of the dataclass `of` unchanged (`Option.sets`)."""
        known = {one.name for one in fields(of)}
        return {option.sets: self._value(name) for name, option in self.TABLE.items() if option.sets in known}

    def _broker_urls(self, broker: Broker) -> tuple[BrokerUrl, ...]:
        urls = parse_urls(self._required("url", "for example amqp://user:password@host:5672/vhost"))
        if urls[0].virtual_host != "/" and not broker.virtual_hosts:
            problem = f"{urls[0]} has the path '/{urls[0].virtual_host}'"
            raise OptionError("url", f"{problem}, but broker '{broker.name}' has no virtual hosts")
        return urls

    def _protocol(self, broker: Broker, url: BrokerUrl) -> str:
        """Return the protocol that option `protocol` names, or else the default protocol for the URL's scheme."""
        spoken = broker.protocols.get(url.scheme, ())
        if not spoken:
            schemes = ", ".join(f"{scheme}://" for scheme in broker.protocols)
            raise OptionError("url", f"{url} cannot be used with broker '{broker.name}'; use one of: {schemes}")
        if self._text("protocol") is None:
            return spoken[0]
        return str(self._value("protocol", choice({protocol: protocol for protocol in spoken})))

    def _endpoint_at(self, urls: tuple[BrokerUrl, ...], *, secured: bool, **known: Any) -> Endpoint:
        """Return the endpoint with these URLs, and with the options for login, TLS and timeouts.

        Certificate and password files are read now, so that `load()` reports a file that cannot be used.

        Args:
            secured: whether any URL uses TLS.
            known: the other fields of the endpoint.
        """
        used = [name for name in self._values if name.startswith("tls.")]
        if used and not secured:
            raise OptionError(used[0], f"is set, but {urls[0]} is not a TLS URL; use {urls[0].partner}://")
        ca, certificate, key = (self._text(name) for name in ("tls.caFile", "tls.certFile", "tls.keyFile"))
        tls = Tls(ca, certificate, key, self._value("tls.verify"))
        if secured:
            tls.context()
        endpoint = Endpoint(
            urls=urls,
            username=self._text("username"),
            password=self._text("password"),
            password_file=self._text("passwordFile"),
            tls=tls,
            **self._fields(Endpoint),
            **known,
        )
        self._check_credentials(endpoint)
        return endpoint

    def _queue_names(self, broker: Broker) -> list[str]:
        """Return the names in option `queue`; a comma in a name is written as ``\\,``."""
        text = self._text("queue")
        names = [] if text is None else [_ESCAPED.sub(r"\1", name.strip()) for name in _COMMA.split(text)]
        if "" in names:
            raise OptionError("queue", f"{text!r} has an empty name between its commas")
        if len(set(names)) < len(names):
            repeated = Counter(names).most_common(1)[0][0]
            raise OptionError("queue", f"{text!r} names queue '{repeated}' more than once")
        for name in names if not broker.virtual_hosts else ():
            kind, rest = of_row(name)
            if kind != "queue":
                instead = f"set 'topic' to '{rest}'" if kind == "topic" else "name it in column 'queue' of a write"
                raise OptionError("queue", f"'{name}' is a {kind.replace('temp-', 'temporary ')}: {instead}")
        return names if broker.virtual_hosts else [of_row(name)[1] for name in names]

    def _check_credentials(self, endpoint: Endpoint) -> None:
        """Check that either all URLs or none have a user, and either all or none a password. Read the password file."""
        if endpoint.password is not None and endpoint.password_file is not None:
            raise OptionError("passwordFile", "is set as well as 'password': set only one of them")
        secret = "password" if endpoint.password_file is None else "passwordFile"
        if self._text(secret) is not None and endpoint.user(endpoint.urls[0]) is None:
            raise OptionError(secret, "is set without 'username', and 'url' names no user")
        logins = [(url, endpoint.credentials(url)) for url in endpoint.urls]
        for part, what in enumerate(("user", "password")):
            named = [url for url, login in logins if login[part] is not None]
            nameless = [url for url, login in logins if login[part] is None]
            if named and nameless:
                raise OptionError(
                    "url",
                    f"names a {what} for {named[0]} but not for {nameless[0]}: each URL has its own login. Write a "
                    f"{what} into each URL, or set 'username' and 'password' for all URLs",
                )


@contextmanager
def redacting(given: Mapping[str, str]) -> Iterator[None]:
    """Remove passwords from option errors that are raised in this context.

    A user may have passed a URL with a password as any option's value, or even as an option's name.
    """
    try:
        yield
    except OptionError as wrong:
        raise OptionError(_redacted(wrong.option, given), _redacted(wrong.problem, given)) from None


def _redacted(text: str, given: Mapping[str, str]) -> str:
    for value in sorted({*given, *map(str, given.values())}, key=len, reverse=True):
        if "@" in value or "://" in value:
            for shown in (value, value.strip()):
                text = text.replace(repr(shown)[1:-1], redact(shown)).replace(shown, redact(shown))
    return text


def check_short(names: Iterable[tuple[str, str | None]]) -> None:
    """Raise an OptionError if an option's value is too long for a short string of AMQP 0-9-1 (section 4.2.5.3).

    Args:
        names: pairs of an option's name and its value.
    """
    for option, name in names:
        if name is not None and (size := len(name.encode())) > _SHORT_STRING_BYTES:
            maximum = f"has {size} bytes, but AMQP 0-9-1 allows at most {_SHORT_STRING_BYTES} in a name"
            raise OptionError(option, f"'{name[:_SHOWN_CHARACTERS]}...' {maximum}; shorten it")


def check_characters(name: str, value: str) -> None:
    """Raise an OptionError if an option's value has characters that the protocol would not take as text.

    A NUL, or a line feed in a STOMP header, would end the value, so the rest of the value could inject content. The
    error does not show a secret.
    """
    shown = "" if name in _SECRET else f"{(redact(value) if name in _URLS else value)!r} "
    if name not in _ANY and has_login(value):
        # If such a URL were taken as the name of a queue, offsets and errors would show its password.
        raise OptionError(name, f"{redact(value)!r} is a URL with a user: set it as 'url'")
    if "\0" in value:
        raise OptionError(name, f"{shown}has a NUL, which ends a string; leave it out")
    if name in _ON_ONE_LINE and CONTROL.search(value):
        problem = f"{shown}has a line feed or another control character, such as the line end of a file"
        raise OptionError(name, f"{problem}; leave it out")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(name, f"{shown}cannot be encoded in UTF-8: it has a lone surrogate") from None
