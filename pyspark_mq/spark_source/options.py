"""Options of the source: text from the user, parsed once into typed settings.

Everything that can be checked without a broker is checked here, which Spark runs at ``load()``. Which options there
are, and their defaults, is in :mod:`pyspark_mq.spark_source.option_table`.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pyspark_mq.brokers import BROKERS, Broker
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0
from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.errors import OptionError
from pyspark_mq.sources.connections.protocols import SESSIONS
from pyspark_mq.sources.endpoint import Endpoint, Tls
from pyspark_mq.sources.settings import CONNECTIONS_MAX, Guarantee, Settings
from pyspark_mq.sources.url import CONTROL, ESCAPES, BrokerUrl, parse_urls, redact
from pyspark_mq.spark_source.folders import ID_FOLDER, PLACES, above, below, is_uri, resolve, shown_place
from pyspark_mq.spark_source.option_kinds import Kind, choice, count
from pyspark_mq.spark_source.option_table import OPTIONS

if TYPE_CHECKING:
    from pyspark_mq.admin.http import Management

__all__ = ["OPTION_NAMES", "Options", "check_characters", "parse_options", "redacted"]

T = TypeVar("T")

#: Every option, spelled as documented.
OPTION_NAMES = tuple(OPTIONS)

#: A comma between two names, and what is written for one within a name.
_COMMA = re.compile(r"(?<!\\),")
_ESCAPED = re.compile(r"\\(,)")
#: Values of these are never shown.
_SECRET = frozenset({"password", "username"})
#: A frame CONNECT of STOMP escapes nothing, so these would become headers of it (STOMP 1.2, "Value Encoding").
_ON_ONE_LINE = frozenset({"password", "username", "subscription"})
#: What may have a password in it.
_URLS = frozenset({"url", "managementUrl", "dedupStore", "idLog", "checkpointLocation"})
#: A URL with a user in it, anywhere.
_LOGIN = re.compile(r"[A-Za-z][\w+.-]*://.*@", re.DOTALL)
#: Of an option that is no URL. What a selector compares with may be one.
_NO_URLS = frozenset(OPTIONS) - _URLS - _SECRET - {"selector"}
_SHORT_STRING_BYTES = 255
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a query, typed.

    Attributes:
        num_partitions: input partitions of an epoch; None if the user left it to the source.
        dedup_store: ``checkpoint`` or a ``redis://`` URL; not in the repr, as it may hold a password.
        id_log: a folder, path or URI; None where none is named. Not in the repr, for the same reason.
        management: where the broker is asked for its queues and for what is set for them; None if nobody said.
        include_metadata: all columns, where the user gives no schema.
    """

    settings: Settings
    num_partitions: int | None
    dedup_store: str = field(repr=False)
    id_log: str | None = field(default=None, repr=False)
    management: Management | None = None
    include_metadata: bool = False

    def check_place(self) -> None:
        """See whether there is a place for message IDs, where they are needed.

        Raises:
            OptionError: there is none.
        """
        if self.settings.guarantee.identifies and self.id_log is None:
            raise OptionError(
                "checkpointLocation",
                "is required at the source too, with guarantee 'exactly-once': the IDs of each batch are kept in files "
                "there, so that what comes again is recognised. Give it the same value as the writer's (or 'idLog' "
                "another folder); or set guarantee 'at-least-once', which needs none",
            )


def parse_options(given: Mapping[str, str]) -> Options:
    """Check and type the options.

    Args:
        given: names in any case, values as text.

    Raises:
        OptionError: with the name, the value, and what is accepted.
    """
    try:
        return _Parser(given).parse()
    except OptionError as wrong:
        raise OptionError(redacted(wrong.option, given), redacted(wrong.problem, given)) from None


def redacted(text: str, given: Mapping[str, str]) -> str:
    """The text without passwords: a URL may have been given as any option, or as the name of one."""
    for value in sorted({*given, *map(str, given.values())}, key=len, reverse=True):
        if "@" in value or "://" in value:
            for shown in (value, value.strip()):
                text = text.replace(repr(shown)[1:-1], redact(shown)).replace(shown, redact(shown))
    return text


class _Parser:
    def __init__(self, given: Mapping[str, str]) -> None:
        names = {name.lower(): name for name in OPTION_NAMES}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            known = names.get(name.lower())
            if known is None:
                raise OptionError(name, _misplaced(name.lower(), value) or _unknown(name))
            self._values[known] = str(value).strip() if known not in _SECRET else str(value)
            check_characters(known, self._values[known])

    # -- one value

    def _text(self, name: str) -> str | None:
        value = self._values.get(name, OPTIONS[name].default)
        if value == "" and name not in _SECRET:
            raise OptionError(name, "is empty")
        return value

    def _required(self, name: str, example: str) -> str:
        value = self._text(name)
        if value is None:
            raise OptionError(name, f"is required; {example}")
        return value

    def _value(self, name: str, kind: Kind | None = None) -> Any:
        """Return an option's value, by the kind that the table has for it unless another is given."""
        kind, text = kind or OPTIONS[name].kind, self._text(name) or ""
        assert kind is not None, f"option '{name}' has no kind"
        value = kind.parse(text.lower())
        if value is None:
            raise OptionError(name, f"{text!r} is not accepted; accepted {kind.accepted}")
        return value

    def _fields(self, of: type) -> dict[str, Any]:
        """Values of the options that are fields as they are, whatever else is set."""
        known = {one.name for one in fields(of)}
        return {option.sets: self._value(name) for name, option in OPTIONS.items() if option.sets in known}

    # -- the whole

    def parse(self) -> Options:
        """Check all options one by one and then against each other."""
        broker = self._choice_of_broker()
        if not broker.proves_new:
            self._values.setdefault("onMissingMessageId", OnMissing.FAIL.value)
        guarantee: Guarantee = self._value("guarantee")
        endpoint = self._endpoint(broker, guarantee)
        prefetch_max = broker.prefetch_max[endpoint.protocol]
        max_messages = self._max_messages(broker)
        prefetch_is_shared = self._text("prefetch") is None
        prefetch = min(2 * max_messages, prefetch_max)
        if not prefetch_is_shared:
            prefetch = self._value("prefetch", count(1, prefetch_max))
        receivers = self._value("receivers")
        if receivers > 1 and not hasattr(os, "memfd_create"):
            problem = f"{receivers} needs files in memory (memfd_create), which this Python on {sys.platform} has not"
            raise OptionError("receivers", f"{problem}; leave it at 1")
        consumers = self._consumers(endpoint, receivers)
        if consumers > 1 and endpoint.topic is not None:
            endpoint = self._shared(endpoint, consumers)
        queues = self._queues(consumers)
        maximum = min(max_messages, prefetch * consumers * (1 if prefetch_is_shared else max(1, len(queues))))
        settings = Settings(
            endpoint=endpoint,
            id_source=self._id_source(),
            max_messages=maximum,
            min_messages=self._min_messages(maximum),
            prefetch=prefetch,
            consumers=consumers,
            queues=queues,
            pattern=self._pattern(),
            prefetch_is_shared=prefetch_is_shared,
            **self._fields(Settings),
        )
        id_log = self._id_log()
        if settings.syncs and (id_log is None or is_uri(id_log) or self._text("idLog") is not None):
            raise OptionError(
                "settleAfter",
                "'synced' is for a checkpoint on a disk of this machine, beside which it is noted: set "
                "'checkpointLocation' to the path that the writer has, and no 'idLog'. A store elsewhere has what it "
                "has answered for",
            )
        if settings.syncs and sys.platform != "linux":
            raise OptionError("settleAfter", f"'synced' needs Linux, whose sync(2) waits; this is {sys.platform}")
        num_partitions = None if self._text("numPartitions") is None else self._value("numPartitions")
        return Options(
            settings,
            num_partitions,
            self._dedup_store(guarantee),
            id_log,
            self._management(endpoint),
            self._value("includeMetadata"),
        )

    def _names(self) -> list[str]:
        """Return the names in option `queue`; a comma in a name is written as ``\\,``."""
        text = self._text("queue")
        names = [] if text is None else [_ESCAPED.sub(r"\1", name.strip()) for name in _COMMA.split(text)]
        if "" in names:
            raise OptionError("queue", f"{text!r} has an empty name between its commas")
        if len(set(names)) < len(names):
            repeated = Counter(names).most_common(1)[0][0]
            raise OptionError("queue", f"{text!r} names queue '{repeated}' more than once")
        return names

    def _pattern(self) -> str | None:
        text = self._text("queuePattern")
        if text is None:
            return None
        try:
            # What Python warns of means something else in a later version.
            with warnings.catch_warnings():
                warnings.simplefilter("error", FutureWarning)
                re.compile(text)
        except (re.error, ValueError, OverflowError, RecursionError, FutureWarning) as wrong:
            problem = f"{text!r} is no regular expression ({wrong}); accepted is one of Python, for a whole name"
            raise OptionError("queuePattern", problem) from None
        return text

    def _management(self, endpoint: Endpoint) -> Management | None:
        given = self._text("managementUrl")
        if given is not None:
            # It loads the web client of the standard library, for who asks for it.
            from pyspark_mq.admin.http import Management  # noqa: PLC0415

        management = None if given is None else Management.of(given, endpoint)
        if management is None and "managementInterval" in self._values:
            raise OptionError("managementInterval", "is set, and goes with 'managementUrl', which is not")
        if self._pattern() is None:
            if "queuePatternInterval" in self._values:
                raise OptionError("queuePatternInterval", "is set, and goes with 'queuePattern', which is not")
        elif management is None:
            listing = endpoint.broker.listing
            example = "" if listing is None else f", for example {listing.url}"
            raise OptionError(
                "managementUrl", f"is required with 'queuePattern': the queues are looked up there{example}"
            )
        return management

    def _queues(self, consumers: int) -> tuple[str, ...]:
        """The names, if they are several."""
        names = self._names()
        if len(names) * consumers > CONNECTIONS_MAX:
            raise OptionError(
                "queue",
                f"{len(names)} queues with {consumers} consumer(s) each are more than {CONNECTIONS_MAX} connections; "
                "name fewer, or use several queries",
            )
        return tuple(names) if len(names) > 1 else ()

    def _consumers(self, endpoint: Endpoint, receivers: int) -> int:
        if self._text("consumers") is not None:
            return int(self._value("consumers"))
        # A process without a connection has nothing to do. Those of a topic cannot share it everywhere, and how many
        # queues match a pattern is not known.
        if endpoint.topic is not None or self._text("queuePattern") is not None:
            return 1
        return -(-receivers // len(self._names()))

    def _shared(self, endpoint: Endpoint, consumers: int) -> Endpoint:
        topic, broker = endpoint.topic, endpoint.broker
        if endpoint.subscription is None:
            problem = f"{consumers} would each get every message of topic '{topic}'"
            raise OptionError("consumers", f"{problem}; name a 'subscription', or leave it at 1")
        if endpoint.protocol not in broker.shared_topics:
            problem = f"{consumers} cannot share a subscription of broker '{broker.name}' over {endpoint.protocol}"
            raise OptionError("consumers", f"{problem}; leave it at 1")
        # Over AMQP 1.0 a shared subscription is another one than one that is not.
        return replace(endpoint, shared=endpoint.protocol == AMQP_1_0)

    def _choice_of_broker(self) -> Broker:
        self._required("broker", f"accepted are {', '.join(BROKERS)}")
        found: Broker = self._value("broker", choice(BROKERS))
        return found

    def _max_messages(self, broker: Broker) -> int:
        if self._text("maxMessagesPerTrigger") is None:
            return broker.epoch_messages
        return int(self._value("maxMessagesPerTrigger"))

    def _min_messages(self, maximum: int) -> int:
        minimum: int = self._value("minMessagesPerTrigger")
        if minimum > maximum:
            text = f"{minimum} can never be reached: an epoch holds at most {maximum} messages"
            raise OptionError("minMessagesPerTrigger", f"{text} (see 'maxMessagesPerTrigger', 'prefetch')")
        return minimum

    def _endpoint(self, broker: Broker, guarantee: Guarantee) -> Endpoint:
        urls = parse_urls(self._required("url", "for example amqp://user:password@host:5672/vhost"))
        if urls[0].virtual_host != "/" and not broker.virtual_hosts:
            path = urls[0].virtual_host
            raise OptionError(
                "url", f"{urls[0]} has the path '/{path}', but broker '{broker.name}' has no virtual hosts"
            )
        protocol = self._protocol(broker, urls[0])
        endpoint = Endpoint(
            broker=broker,
            protocol=protocol,
            urls=urls,
            **self._destination(broker, protocol, guarantee),
            username=self._text("username"),
            password=self._text("password"),
            password_file=self._text("passwordFile"),
            tls=self._tls(urls),
            **self._fields(Endpoint),
        )
        if endpoint.password is not None and endpoint.password_file is not None:
            raise OptionError("passwordFile", "is set, and 'password' too: give one of them")
        secret = "password" if endpoint.password_file is None else "passwordFile"
        if self._text(secret) is not None and endpoint.username is None and urls[0].username is None:
            raise OptionError(secret, "is set without 'username', and 'url' names no user")
        endpoint.credentials(urls[0])  # can the file be read?
        if protocol == AMQP_0_9_1:
            self._check_short_strings(endpoint)
        return endpoint

    def _check_short_strings(self, endpoint: Endpoint) -> None:
        """Names are short strings in AMQP 0-9-1 (section 4.2.5.3)."""
        names = [("queue", name) for name in self._names()]
        names += [("topic", endpoint.topic or ""), ("subscription", endpoint.subscription or "")]
        names += [("url", endpoint.urls[0].virtual_host)]
        for option, name in names:
            size = len(name.encode())
            if size > _SHORT_STRING_BYTES:
                maximum = f"has {size} bytes, and a name has at most {_SHORT_STRING_BYTES} in AMQP 0-9-1"
                raise OptionError(option, f"'{name[:_SHOWN_CHARACTERS]}...' {maximum}; correct it")

    def _protocol(self, broker: Broker, url: BrokerUrl) -> str:
        spoken = broker.protocols.get(url.scheme, ())
        usable = [protocol for protocol in spoken if protocol in SESSIONS]
        if not usable:
            schemes = ", ".join(f"{scheme}://" for scheme in broker.protocols)
            raise OptionError("url", f"{url} cannot be used with broker '{broker.name}'; accepted are {schemes}")
        if self._text("protocol") is None:
            return usable[0]
        return str(self._value("protocol", choice({protocol: protocol for protocol in usable})))

    def _destination(self, broker: Broker, protocol: str, guarantee: Guarantee) -> dict[str, Any]:
        names, topic, pattern = self._names(), self._text("topic"), self._pattern()
        queue = names[0] if len(names) == 1 else self._text("queue")
        if pattern is not None:
            other = "queue" if queue is not None else "topic" if topic is not None else None
            if other is not None:
                raise OptionError("queuePattern", f"'{pattern}' and '{other}' are both set; a query reads by one")
            queue = pattern
        subscription, selector = self._text("subscription"), self._text("selector")
        if queue is None and topic is None:
            raise OptionError("queue", "is required (or 'queuePattern', or 'topic')")
        if queue is not None and topic is not None:
            raise OptionError("topic", f"'{topic}' and queue '{queue}' are both set; a query reads one")
        if queue is not None and subscription is not None:
            raise OptionError("subscription", f"'{subscription}' goes with 'topic', not with queue '{queue}'")
        if topic is not None and subscription is None and not guarantee.acknowledges_first:
            raise OptionError(
                "subscription",
                f"is required to read topic '{topic}' with guarantee '{guarantee.value}': without a durable "
                "subscription the broker keeps nothing for a query that is down. Name one, or set "
                "guarantee 'none'",
            )
        if subscription is not None and protocol not in broker.durable_topics:
            others = " or ".join(sorted(broker.durable_topics))
            raise OptionError(
                "subscription",
                f"'{subscription}': broker '{broker.name}' makes no durable subscriptions over {protocol}; bind a "
                f"durable queue to '{topic}' and read it with 'queue', or use {others}",
            )
        if selector is not None and not broker.selectors:
            raise OptionError("selector", f"broker '{broker.name}' has no selectors; filter in Spark instead")
        return {"queue": queue, "topic": topic, "subscription": subscription, "selector": selector}

    def _tls(self, urls: tuple[BrokerUrl, ...]) -> Tls:
        used = [name for name in self._values if name.startswith("tls.")]
        secured = urls[0].tls or (self._text("managementUrl") or "").lower().startswith("https:")
        if used and not secured:
            raise OptionError(used[0], f"is set, but {urls[0]} is not a TLS URL; use {urls[0].partner}://")
        if self._text("tls.keyFile") is not None and self._text("tls.certFile") is None:
            raise OptionError("tls.keyFile", "is set without 'tls.certFile'")
        tls = Tls(
            ca_file=self._text("tls.caFile"),
            cert_file=self._text("tls.certFile"),
            key_file=self._text("tls.keyFile"),
            verify=self._value("tls.verify"),
        )
        if secured:
            tls.context()  # the files are read now, so that a wrong one is an error of load()
        return tls

    def _id_source(self) -> IdSource:
        text = self._text("messageIdFrom") or ""
        kind, _, name = text.partition(":")
        if kind.lower() == "property" and name:
            return IdSource("property", name)
        path = name.removeprefix("$.")
        if kind.lower() == "json" and path and all(path.split(".")):
            return IdSource("json", path)
        if text.lower() in {"message-id", "correlation-id", "content"}:
            return IdSource(text.lower())
        accepted = "message-id, correlation-id, property:<name>, json:$.<name>.<name>, content"
        raise OptionError("messageIdFrom", f"{text!r} is not accepted; accepted are {accepted}")

    def _id_log(self) -> str | None:
        """The folder of the ID log: that of `idLog`, or one in the checkpoint that Spark does not touch."""
        checkpoint, log = self._place("checkpointLocation"), self._place("idLog")
        own = None if checkpoint is None else below(checkpoint, ID_FOLDER)
        if log is not None and log != own and above(log) is not None:
            # What its own source does not know goes after a day.
            raise OptionError("idLog", f"{shown_place(log)!r} is the folder of a checkpoint; give that as "
                              "'checkpointLocation', if it is the writer's, or another folder")  # fmt: skip
        return log or own

    def _place(self, name: str) -> str | None:
        place = self._text(name)
        if place is None:
            return None
        if not os.path.isabs(place) and not is_uri(place):
            raise OptionError(name, f"{shown_place(place)!r} is not accepted; accepted is {PLACES}")
        try:
            return resolve(place)
        except ValueError as wrong:
            raise OptionError(name, str(wrong)) from None

    def _dedup_store(self, guarantee: Guarantee) -> str:
        text = self._text("dedupStore") or ""
        if text.lower() == "checkpoint":
            return "checkpoint"
        if not text.lower().startswith(("redis://", "rediss://")):
            accepted = "checkpoint, redis://host:port/db, rediss://host:port/db"
            raise OptionError("dedupStore", f"{redact(text)!r} is not accepted; accepted are {accepted}")
        if not _is_url(text):
            raise OptionError("dedupStore", f"{redact(text)!r} is not a URL; {ESCAPES}")
        if not guarantee.identifies:
            raise OptionError("dedupStore", f"{redact(text)!r} needs guarantee 'exactly-once', not '{guarantee.value}'")
        scheme, _, rest = text.partition(":")
        return f"{scheme.lower()}:{rest}"


def check_characters(name: str, value: str) -> None:
    """Refuses characters that end a text or a line of a protocol: they would add to it what nobody has meant.

    Raises:
        OptionError: the value has such a character; a secret is not shown.
    """
    shown = "" if name in _SECRET else f"{(redact(value) if name in _URLS else value)!r} "
    if name in _NO_URLS and _LOGIN.search(value):
        # Taken for a name it would be in offsets and in errors, whole or in pieces.
        raise OptionError(name, f"{redact(value)!r} is a URL with a user: give it as 'url'")
    if "\0" in value:
        raise OptionError(name, f"{shown}has a NUL, which ends a text; leave it out")
    if name in _ON_ONE_LINE and CONTROL.search(value):
        problem = f"{shown}has a line feed or another control character, such as the end of the file it was read from"
        raise OptionError(name, f"{problem}; leave it out")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(name, f"{shown}cannot be written in UTF-8: it has half of a surrogate pair") from None


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        behind = parts.path + parts.query + parts.fragment
        return bool(parts.hostname) and parts.port != 0 and "@" not in behind
    except ValueError:
        return False


def _misplaced(name: str, value: str) -> str:
    """Advice about an option that Spark's users put here although it belongs elsewhere; empty if it is none."""
    if name == "path":
        return f"{value!r}: a queue has no path; use .option('queue', {value!r}) and load() without an argument"
    if name == "stream":
        return f"{value!r} is read with a URL rabbitmq-stream://user:password@host:5552/vhost; of a queue it is 'queue'"
    return ""


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in OPTION_NAMES], n=1)
    meant = next((known for known in OPTION_NAMES if near and known.lower() == near[0]), None)
    hint = f"; did you mean '{meant}'?" if meant else "."
    return f"is unknown{hint} Accepted are {', '.join(OPTION_NAMES)}"
