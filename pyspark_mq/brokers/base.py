"""Differences between brokers, as data.

Outside this folder only three places name a broker: ``admin/``, which queries each broker's management, the protocol
modules of ``sources/`` that query a broker at its own management address, and the protocol modules of ``sink/``. The
rest of the package reads a :class:`Broker`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import quote

from pyspark_mq.brokers.destinations import Form

__all__ = [
    "AMQP_0_9_1", "AMQP_1_0", "PASSING_HEADERS", "PASSING_PREFIXES", "STOMP", "Amqp10Dialect", "Broker", "Listing",
    "StompDialect", "by_scheme",
]  # fmt: skip

AMQP_0_9_1 = "amqp-0-9-1"
AMQP_1_0 = "amqp-1.0"
STOMP = "stomp"


#: Headers that RabbitMQ sets or changes from delivery to delivery, and prefixes of the headers of dead letters.
#: All these headers are not part of a message's content.
PASSING_HEADERS = frozenset({"x-delivery-count", "x-acquired-count", "x-opt-rabbitmq-sent-time", "x-death"})
PASSING_PREFIXES = ("x-first-death-", "x-last-death-")


@dataclass(frozen=True, slots=True)
class StompDialect:
    """STOMP 1.2 as one broker speaks it.

    Header templates have `{name}` for the queue or topic and `{subscription}` for the durable subscription.

    Attributes:
        queue, topic: templates of the header `destination`.
        id_header: the header that identifies a message, and keeps its value across redeliveries.
        id_separator: separator in the header `id_header` that precedes the message's ID; empty if the whole header is
            the ID.
        cumulative: whether to acknowledge with mode `client`, in which one frame covers all earlier messages. Otherwise
            messages are acknowledged one by one, with mode `client-individual`.
        window_header: header of SUBSCRIBE that limits unacknowledged messages or bytes.
        window_bytes: bytes to request for each message until the real size is known, if `window_header` counts bytes; 0
            if `window_header` counts messages.
        queue_headers, topic_headers, durable_headers: further headers of SUBSCRIBE.
        client_id: name that a connection needs for a durable subscription; empty if a connection needs no name.
        shared: whether a durable subscription may have several consumers.
        reject_headers: further headers of a NACK that refuses a message for good.
        slash: how a '/' in a name is written in destinations; empty if it is written unchanged.
        stalls: whether a queue stops delivering when a page of messages is unacknowledged, until
            something wakes the queue.
        timestamp_us: unit of the header `timestamp` in microseconds.
        expires_header: header with the time of expiration in milliseconds since 1970, 0 for none; empty if
            there is only a time to live.
        count_header: header with the number of deliveries before this one; empty if unknown.
        internal_headers, internal_prefixes: headers of MESSAGE that are not in the specification and that no
            application has set, by name and by prefix.
        own_id: pattern of the IDs that the broker creates, if the header may have another ID instead: a producer's ID,
            or a property of that name, which replaces the broker's ID. None if the header always has the broker's ID.
        foreign_prefix: prefix of the headers of messages that arrived over another protocol. Such messages cannot be
            settled if they have their producer's ID. Empty if all messages can be settled.
        management: address that answers questions about a queue; empty if there is no such address, or if every query
            leaves something behind.
        always: headers that every message has, if the broker does not escape the names of headers. There a property's
            name may contain line feeds, and so look like further headers. If it contains an empty line, the headers
            behind it become part of the body, and one of these headers may be missing. Empty if names are escaped.
        last_header: name of the header whose last entry is the broker's, if an application has set a header of the same
            name. For all other names the first entry is the broker's.
        user_id, app_id, content_encoding, group_id, group_sequence: headers that may have this value. The first header
            that is present counts. Empty if the broker does not send the value.
        routed: whether `destination` of MESSAGE names the exchange and routing key that the message was published with.
        forms: how `reply-to` is written, see :mod:`.destinations`.
        kinds_in_names: whether `destination` of SEND has these forms, too. Otherwise it has the name alone.
    """

    queue: str
    topic: str
    cumulative: bool
    window_header: str
    durable_headers: Mapping[str, str]
    shared: bool
    internal_headers: frozenset[str]
    id_header: str = "message-id"
    id_separator: str = ""
    window_bytes: int = 0
    queue_headers: Mapping[str, str] = field(default_factory=dict)
    topic_headers: Mapping[str, str] = field(default_factory=dict)
    client_id: str = ""
    reject_headers: Mapping[str, str] = field(default_factory=dict)
    slash: str = ""
    stalls: bool = False
    timestamp_us: int = 1_000
    expires_header: str = ""
    count_header: str = ""
    internal_prefixes: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    last_header: str = ""
    management: str = ""
    own_id: re.Pattern[str] | None = None
    foreign_prefix: str = ""
    user_id: tuple[str, ...] = ("JMSXUserID",)
    app_id: tuple[str, ...] = ("JMSXAppID",)
    content_encoding: tuple[str, ...] = ("content-encoding", "JMS_AMQP_ContentEncoding")
    group_id: tuple[str, ...] = ()
    group_sequence: tuple[str, ...] = ()
    routed: bool = False
    forms: Sequence[Form] = ()
    kinds_in_names: bool = False


@dataclass(frozen=True, slots=True)
class Amqp10Dialect:
    """AMQP 1.0 as one broker speaks it.

    Attributes:
        queue: source address of a queue, with `{name}` for the name.
        topic: source address of a topic, with `{name}` for the name.
        capabilities: extension capabilities that the source requests of a terminus, for a queue and for
            a topic.
        confirms: whether the broker settles deliveries that we accepted, once the broker has processed the acceptance
            (AMQP 1.0, 2.6.12).
        counts_acquirers: whether the header `first-acquirer` shows a redelivery. Its default is false.
        names_itself: whether the broker's container ID is a name that the broker keeps across restarts.
        credit_max: most credit to grant at a time; more is granted when the credit is used up. 0 for no limit.
        slash: how a '/' in a name is written in addresses; empty if it is written unchanged.
        queue_since: the major version from which queues have another address, and the other address, with
            the percent-encoded name for `{name}`; None if there is no such version.
        virtual_host: content of `open.hostname`, with `{name}` for the virtual host; empty if the
            broker has no virtual hosts.
        management_since: the major version from which the broker answers questions about a queue; None if no version
            does.
        management: address that answers questions about a queue, for users with the right to ask them; empty if there
            is no such address.
        forms: how destinations are written, see :mod:`.destinations`.
        states_kinds: whether messages state the kind of `reply-to` in an annotation, as JMS clients do.
        converted_by: setting with which the broker converts messages for clients of other protocols, if such clients
            otherwise get a message's encoding as its body; empty if the broker always converts.
        converted_mark: an annotation of messages that the broker converts.
    """

    queue: str
    topic: str
    capabilities: tuple[str, str] | None
    confirms: bool
    counts_acquirers: bool
    names_itself: bool = False
    credit_max: int = 0
    slash: str = ""
    queue_since: tuple[int, str] | None = None
    virtual_host: str = ""
    management_since: int | None = None
    management: str = ""
    forms: Sequence[Form] = ()
    states_kinds: bool = False
    converted_by: str = ""
    converted_mark: bytes = b""

    def queue_address(self, name: str, version: str) -> str:
        """Return a queue's address in this version of the broker. An unknown version counts as an old version."""
        if self.queue_since is not None and _major(version) >= self.queue_since[0]:
            return self.queue_since[1].format(name=quote(name, safe=""))
        return self.queue.format(name=self._written(name))

    def answers(self, version: str) -> bool:
        """Whether this version answers questions about a queue. An unknown version counts as an old version."""
        return self.management_since is not None and _major(version) >= self.management_since

    def topic_address(self, name: str) -> str:
        return self.topic.format(name=self._written(name))

    def _written(self, name: str) -> str:
        return name.replace("/", self.slash) if self.slash else name


@dataclass(frozen=True, slots=True)
class Listing:
    """How to list a broker's queues over HTTP: through its own API, or Jolokia, an agent for JMX.

    Attributes:
        url: value of the option `managementUrl` with default ports.
        path: path of the API below that URL, with `{host}` for the virtual host and `{page}`; empty with Jolokia.
        mbeans: pattern that matches one MBean for each queue; empty if `path` is set.
    """

    url: str
    path: str = ""
    mbeans: str = ""


def by_scheme(*amqp: str) -> Mapping[str, tuple[str, ...]]:
    """Map URL schemes to protocols. AMQP's schemes map to the protocols in `amqp`, and STOMP's schemes to STOMP."""
    return MappingProxyType({"amqp": amqp, "amqps": amqp, "stomp": (STOMP,), "stomp+ssl": (STOMP,)})


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Broker:
    """A kind of broker.

    Attributes:
        name: value of the option `broker`.
        products: the names by which the broker introduces itself to clients, without a version.
        protocols: URL scheme -> protocols that can be spoken with that scheme, the default first.
        epoch_messages: default of `maxMessagesPerTrigger`.
        prefetch_max: protocol -> most unacknowledged messages on one connection.
        selectors: whether the broker can filter by JMS selector.
        virtual_hosts: whether the path of a URL names a virtual host. Over STOMP the header `host` then names the
            virtual host.
        durable_topics: protocols over which a topic has durable subscriptions.
        shared_topics: protocols over which several sessions can share a durable subscription.
        counts_session_ends: whether the end of a session counts as a delivery of every message the session received.
        half_open_s: protocol -> how long the broker may keep the messages of a connection whose death
            it has not noticed, if the client cannot influence that.
        ids_by_protocol: whether a message's ID differs between protocols.
        stranded_s: longest time that the broker may keep messages delivered through a node that the cluster has lost.
        stranded_note: what an operator can do about such messages; shown with data-loss errors.
        delivery_limit_note: what an operator has to know about messages that are redelivered again and
            again; shown with data-loss errors.
        node_lost_s: how long a cluster considers a dead node, and its clients, alive.
        unavailable_reasons: what the broker says, other than "not found", about a queue that is temporarily unavailable
            because the queue's node is down.
        listing: how to list the names of the broker's queues.
        remedies: a setting that breaks late acknowledgement -> what an operator can do about that. Settings that are
            missing here do not apply to this broker. Names: :mod:`pyspark_mq.admin.checks`.
        replaced_prefetch: a prefetch that the broker mistakes for its default, and replaces by the prefetch of a
            policy; None if the broker never replaces a prefetch.
        delays_session_returns: whether a redelivery delay applies whenever the end of a session returns messages.
        by_priority: whether messages of any queue are delivered by priority.
        flaws: protocol -> a flaw that affects consumers that acknowledge late: the first version without the flaw,
            major and minor, and a description of the flaw.
        proves_new: whether a delivery without the redelivered flag is always a message's first delivery, unless the
            message was dead-lettered.
        browsable_over: protocols over which a queue can be browsed.
        special_characters: characters by which a name stands for several destinations, or has parameters.
        header_properties: properties that the broker takes for headers -> why a write cannot set a property of that
            name.
        steering: properties that make the broker do something: schedule, replace, copy or deduplicate a message. A
            write leaves them out unless option `brokerProperties` names them.
        drops_copies: whether the broker drops a message with a `_AMQ_DUPL_ID` that it has seen at the address. It also
            remembers what it then refuses for an address with a wildcard.
        stomp, amqp10: how the broker speaks STOMP or AMQP 1.0 wherever the specification leaves that to the broker;
            None if the broker does not speak that protocol.
    """

    name: str
    protocols: Mapping[str, tuple[str, ...]]
    epoch_messages: int
    prefetch_max: Mapping[str, int]
    selectors: bool
    virtual_hosts: bool
    durable_topics: frozenset[str]
    shared_topics: frozenset[str]
    counts_session_ends: bool
    half_open_s: Mapping[str, float]
    ids_by_protocol: bool
    delivery_limit_note: str
    listing: Listing
    remedies: Mapping[str, str] = field(default_factory=dict)
    replaced_prefetch: int | None = None
    delays_session_returns: bool = False
    by_priority: bool = False
    flaws: Mapping[str, tuple[tuple[int, int], str]] = field(default_factory=dict)
    proves_new: bool = False
    browsable_over: frozenset[str] = frozenset()
    special_characters: frozenset[str] = frozenset()
    header_properties: Mapping[str, str] = field(default_factory=dict)
    steering: frozenset[str] = frozenset()
    drops_copies: bool = False
    node_lost_s: float = 0.0
    unavailable_reasons: tuple[str, ...] = ()
    products: frozenset[str] = frozenset()
    stomp: StompDialect | None = None
    amqp10: Amqp10Dialect | None = None
    stranded_s: float = 0.0
    stranded_note: str = ""

    def will_be_back(self, reason: str) -> bool:
        """Whether a queue refused for this reason is only temporarily unavailable."""
        return any(words in reason for words in self.unavailable_reasons)
