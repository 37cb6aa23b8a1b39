"""Parses the options of a query that reads queues into typed settings.

Spark runs this module at ``load()``, so ``load()`` reports everything that can be checked without a broker. The options
and their defaults are in :mod:`pyspark_mq.spark_source.option_table`.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pyspark_mq.brokers import BROKERS, Broker
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0
from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.errors import OptionError
from pyspark_mq.sources.settings import CONNECTIONS_MAX, Guarantee, Settings
from pyspark_mq.spark_source.folders import ID_FOLDER, PLACES, above, below, is_uri, resolve, shown_place
from pyspark_mq.spark_source.option_kinds import choice, count
from pyspark_mq.spark_source.option_parser import OptionParser, check_short, redacting
from pyspark_mq.spark_source.option_table import OPTIONS
from pyspark_mq.wire.endpoint import Endpoint, secret_in
from pyspark_mq.wire.url import ESCAPES, redact

if TYPE_CHECKING:
    from pyspark_mq.admin.http import Management

__all__ = ["Options", "parse_options"]

T = TypeVar("T")

_NO_OFFSETS = (
    "a queue has no offsets: a query reads the waiting messages, and resumes from its checkpoint. RabbitMQ's streams "
    "have offsets and can be read again (docs/streams.md)"
)
_SIZE = "use 'maxMessagesPerTrigger'"
_BIND = "a query reads a queue: bind a queue to the exchange, and name it with option 'queue'"
#: Option names of other sources, in lower case -> what to use for a queue.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp", "startingoffsetsbytimestamp",
         "endingoffsetsbytimestamp"), _NO_OFFSETS,
    ),
    **dict.fromkeys(("maxoffsetspertrigger", "maxrecordspertrigger", "batchsize"), _SIZE),
    **dict.fromkeys(("exchange", "routingkey", "routing_key"), _BIND),
    "subscribe": "use 'queue', or 'topic' for a durable subscription",
    "subscribepattern": "use 'queuePattern'",
    "assign": "a queue has no partitions: name the queue with 'queue'",
    "minoffsetspertrigger": "use 'minMessagesPerTrigger'",
    "minpartitions": "use 'numPartitions'",
    "maxrecordsperpartition": "'numPartitions' says how many tasks an epoch has",
    "destination": "use 'queue' or 'topic'",
    "queuename": "use 'queue'",
    "autoack": "'guarantee' says when messages are acknowledged",
    "durable": "a query does not declare queues; leave it out",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """All options of a query that reads queues, parsed into typed values.

    Attributes:
        settings: everything that the source needs to receive messages.
        num_partitions: number of input partitions of an epoch; None to let the source choose.
        dedup_store: ``checkpoint`` or a ``redis://`` URL. Not shown in the repr, because it may contain a password.
        dedup_secret: path of the file with the password for Redis; None if there is no such file.
        id_log: folder of the ID log, a path or URI; None if no option names a folder. Not shown in the repr, because
            it may contain a password.
        management: the broker's management interface, from option `managementUrl`; None if that is not set.
        include_metadata: whether a query that sets no schema gets all columns.
    """

    settings: Settings
    num_partitions: int | None
    dedup_store: str = field(repr=False)
    id_log: str | None = field(default=None, repr=False)
    management: Management | None = None
    include_metadata: bool = False
    dedup_secret: str | None = None

    def check_place(self) -> None:
        """Raise an OptionError if the guarantee needs a folder for message IDs, but no option names one."""
        if self.settings.guarantee.identifies and self.id_log is None:
            raise OptionError(
                "checkpointLocation",
                "is required on the source too, with guarantee 'exactly-once': the source stores the IDs of each batch "
                "in files there, so that it recognises redeliveries. Set the option to the writer's value, or set "
                "'idLog' to another folder. Guarantee 'at-least-once' needs neither option",
            )


def parse_options(given: Mapping[str, str]) -> Options:
    """Check the options of a query that reads queues, and parse them into typed values.

    Args:
        given: the user's options. Names may be in any case; values are text.

    Raises:
        OptionError: an option cannot be used; the text has its name, its value, and what is accepted.
    """
    with redacting(given):
        return _QueueOptionParser(given).parse()


class _QueueOptionParser(OptionParser):
    TABLE = OPTIONS

    def hint_for_foreign_option(self, name: str, value: str) -> str:
        if name == "path":
            return f"{value!r}: a queue has no path; use .option('queue', {value!r}) and load() without an argument"
        if name == "stream":
            url = "rabbitmq-stream://user:password@host:5552/vhost"
            return f"{value!r}: to read a stream, use a URL {url}; to read a queue, set 'queue'"
        return _ELSEWHERE.get(name) or super().hint_for_foreign_option(name, value)

    # -- the whole

    def parse(self) -> Options:
        """Parse each option, check the options against each other, and return them all."""
        self._required("broker", f"use one of: {', '.join(BROKERS)}")
        broker: Broker = self._value("broker", choice(BROKERS))
        on_missing = OnMissing.CONTENT if broker.proves_new else OnMissing.FAIL
        self._values.setdefault("onMissingMessageId", on_missing.value)
        guarantee: Guarantee = self._value("guarantee")
        endpoint = self._endpoint(broker, guarantee)
        prefetch_max = broker.prefetch_max[endpoint.protocol]
        max_messages = self._value("maxMessagesPerTrigger") or broker.epoch_messages
        own_prefetch = self._value("prefetch", count(1, prefetch_max))
        prefetch = own_prefetch or min(2 * max_messages, prefetch_max)
        consumers = self._value("consumers")
        if consumers > 1 and endpoint.topic is not None:
            endpoint = self._shared(endpoint, consumers)
        queues = self._queues(broker, consumers)
        maximum = min(max_messages, prefetch * consumers * (max(1, len(queues)) if own_prefetch else 1))
        settings = Settings(
            endpoint=endpoint,
            id_source=self._id_source(),
            max_messages=maximum,
            min_messages=self._min_messages(maximum),
            prefetch=prefetch,
            consumers=consumers,
            queues=queues,
            pattern=self._pattern(),
            prefetch_is_shared=own_prefetch is None,
            **self._fields(Settings),
        )
        id_log = self._id_log()
        if settings.syncs and (id_log is None or is_uri(id_log) or self._text("idLog") is not None):
            raise OptionError(
                "settleAfter",
                "'synced' is for a checkpoint on this machine's disk, and stores a note in the checkpoint. Set "
                "'checkpointLocation' to the writer's path, and do not set 'idLog'. Other stores do not need 'synced': "
                "a write to them is durable once the store answers",
            )
        if settings.syncs and sys.platform != "linux":
            raise OptionError(
                "settleAfter", f"'synced' needs Linux, where sync(2) waits for the disk; this system is {sys.platform}"
            )
        store = self._dedup_store(guarantee)
        return Options(
            settings,
            self._value("numPartitions"),
            store,
            id_log,
            self._management(endpoint),
            self._value("includeMetadata"),
            self._dedup_secret(store),
        )

    def _pattern(self) -> str | None:
        text = self._text("queuePattern")
        if text is None:
            return None
        try:
            # Refuse a pattern about which Python warns, because its meaning will change in a later Python.
            with warnings.catch_warnings():
                warnings.simplefilter("error", FutureWarning)
                re.compile(text)
        except (re.error, ValueError, OverflowError, RecursionError, FutureWarning) as wrong:
            problem = f"{text!r} is not a regular expression ({wrong}); use Python's syntax, and match the whole name"
            raise OptionError("queuePattern", problem) from None
        return text

    def _management(self, endpoint: Endpoint) -> Management | None:
        management, given = None, self._text("managementUrl")
        if given is not None:
            # This import loads the standard library's HTTP client, so it is done only if needed.
            from pyspark_mq.admin.http import Management  # noqa: PLC0415

            management = Management.of(given, endpoint)
        if management is None and "managementInterval" in self._values:
            raise OptionError("managementInterval", "is set, but needs 'managementUrl', which is not set")
        if self._pattern() is None:
            if "queuePatternInterval" in self._values:
                raise OptionError("queuePatternInterval", "is set, but needs 'queuePattern', which is not set")
        elif management is None:
            problem = "is required with 'queuePattern': the queues are looked up there"
            raise OptionError("managementUrl", f"{problem}, for example {endpoint.broker.listing.url}")
        return management

    def _queues(self, broker: Broker, consumers: int) -> tuple[str, ...]:
        """Return the names of the queues if option `queue` names several, else an empty tuple."""
        names = self._queue_names(broker)
        if len(names) * consumers > CONNECTIONS_MAX:
            raise OptionError(
                "queue",
                f"{len(names)} queues with {consumers} consumer(s) each need more than {CONNECTIONS_MAX} connections; "
                "name fewer queues, or use several queries",
            )
        return tuple(names) if len(names) > 1 else ()

    def _shared(self, endpoint: Endpoint, consumers: int) -> Endpoint:
        topic, broker = endpoint.topic, endpoint.broker
        if endpoint.subscription is None:
            problem = f"each of {consumers} consumers would receive every message of topic '{topic}'"
            raise OptionError("consumers", f"{problem}; set 'subscription', or leave 'consumers' at 1")
        if endpoint.protocol not in broker.shared_topics:
            problem = (
                f"{consumers} consumers cannot share a subscription on broker '{broker.name}' over {endpoint.protocol}"
            )
            raise OptionError("consumers", f"{problem}; leave it at 1")
        # Over AMQP 1.0 a shared subscription differs from an unshared one.
        return replace(endpoint, shared=endpoint.protocol == AMQP_1_0)

    def _min_messages(self, maximum: int) -> int:
        minimum: int = self._value("minMessagesPerTrigger")
        if minimum > maximum:
            text = f"{minimum} can never be reached: an epoch holds at most {maximum} messages"
            raise OptionError("minMessagesPerTrigger", f"{text} (see 'maxMessagesPerTrigger' and 'prefetch')")
        return minimum

    def _endpoint(self, broker: Broker, guarantee: Guarantee) -> Endpoint:
        urls = self._broker_urls(broker)
        protocol = self._protocol(broker, urls[0])
        secured = urls[0].tls or (self._text("managementUrl") or "").lower().startswith("https:")
        destination = self._destination(broker, protocol, guarantee)
        endpoint = self._endpoint_at(urls, secured=secured, broker=broker, protocol=protocol, **destination)
        if endpoint.tls.key_file is not None and endpoint.tls.cert_file is None:
            raise OptionError("tls.keyFile", "is set without 'tls.certFile'")
        if protocol == AMQP_0_9_1:
            names = [("queue", name) for name in self._queue_names(broker)]
            names += [("topic", endpoint.topic or ""), ("subscription", endpoint.subscription or "")]
            check_short([*names, ("url", urls[0].virtual_host)])
        return endpoint

    def _destination(self, broker: Broker, protocol: str, guarantee: Guarantee) -> dict[str, Any]:
        names, topic, pattern = self._queue_names(broker), self._text("topic"), self._pattern()
        queue = names[0] if len(names) == 1 else self._text("queue")
        if pattern is not None:
            other = "queue" if queue is not None else "topic" if topic is not None else None
            if other is not None:
                raise OptionError("queuePattern", f"'{pattern}' and '{other}' are both set; set only one")
            queue = pattern
        subscription, selector = self._text("subscription"), self._text("selector")
        if queue is None and topic is None:
            raise OptionError("queue", "is required (or 'queuePattern', or 'topic')")
        if queue is not None and topic is not None:
            raise OptionError("topic", f"'{topic}' and queue '{queue}' are both set; a query reads only one of them")
        if queue is not None and subscription is not None:
            raise OptionError("subscription", f"'{subscription}' goes with 'topic', not with queue '{queue}'")
        if topic is not None and subscription is None and not guarantee.acknowledges_first:
            raise OptionError(
                "subscription",
                f"is required to read topic '{topic}' with guarantee '{guarantee.value}': without a durable "
                "subscription the broker keeps nothing while a query is down. Name a subscription, or set "
                "guarantee 'none'",
            )
        if subscription is not None and protocol not in broker.durable_topics:
            others = " or ".join(sorted(broker.durable_topics))
            raise OptionError(
                "subscription",
                f"'{subscription}': broker '{broker.name}' has no durable subscriptions over {protocol}; bind a "
                f"durable queue to '{topic}' and read that queue with 'queue', or use {others}",
            )
        if selector is not None and not broker.selectors:
            raise OptionError("selector", f"broker '{broker.name}' has no selectors; filter in Spark instead")
        return {"queue": queue, "topic": topic, "subscription": subscription, "selector": selector}

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
        raise OptionError("messageIdFrom", f"{text!r} is not accepted; use one of: {accepted}")

    def _id_log(self) -> str | None:
        """Return the folder for message IDs: option `idLog`, or else the folder :data:`ID_FOLDER` in the checkpoint."""
        checkpoint, log = self._place("checkpointLocation"), self._place("idLog")
        own = None if checkpoint is None else below(checkpoint, ID_FOLDER)
        if log is not None and log != own and above(log) is not None:
            # The log next to such a folder belongs to the query that uses that checkpoint, so it would not have the
            # offsets of this query.
            raise OptionError("idLog", f"{shown_place(log)!r} is the ID folder inside a checkpoint. If writeStream "
                              "uses that checkpoint, set option 'checkpointLocation' to the checkpoint instead of "
                              "setting 'idLog'; otherwise choose another folder")  # fmt: skip
        return log or own

    def _place(self, name: str) -> str | None:
        place = self._text(name)
        if place is None:
            return None
        if not os.path.isabs(place) and not is_uri(place):
            raise OptionError(name, f"{shown_place(place)!r} is not accepted; use {PLACES}")
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
            raise OptionError("dedupStore", f"{redact(text)!r} is not accepted; use one of: {accepted}")
        if not _is_url(text):
            raise OptionError("dedupStore", f"{redact(text)!r} is not a URL; {ESCAPES}")
        if not guarantee.identifies:
            raise OptionError("dedupStore", f"{redact(text)!r} needs guarantee 'exactly-once', not '{guarantee.value}'")
        scheme, _, rest = text.partition(":")
        return f"{scheme.lower()}:{rest}"

    def _dedup_secret(self, store: str) -> str | None:
        """Return the path of the file with the password for Redis; None if unset.

        The file is read now, so that `load()` reports a file that cannot be used.
        """
        file = self._text("dedupStorePasswordFile")
        if file is None:
            return None
        if store == "checkpoint":
            raise OptionError("dedupStorePasswordFile", "is set, but 'dedupStore' is not a Redis URL: leave it out")
        if urlsplit(store).password is not None:
            raise OptionError("dedupStorePasswordFile", "is set as well as a password in 'dedupStore': set only one")
        secret_in(file, "dedupStorePasswordFile")
        return file


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        behind = parts.path + parts.query + parts.fragment
        return bool(parts.hostname) and parts.port != 0 and "@" not in behind
    except ValueError:
        return False
