"""Classes that describe a broker, and how it implements each protocol.

The modules next to this one have the description of each broker. The rest of the package reads these descriptions
instead of comparing the names of brokers. Only three places name a broker: ``admin/``, which queries the management
interface of each broker; the protocol modules of ``sources/`` that query a broker at its own management address; and
the protocol modules of ``sink/``.
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


#: Headers that RabbitMQ sets or changes between deliveries of a message, and prefixes of the headers that it adds to
#: dead letters. None of these headers counts as part of a message's content.
PASSING_HEADERS = frozenset({"x-delivery-count", "x-acquired-count", "x-opt-rabbitmq-sent-time", "x-death"})
PASSING_PREFIXES = ("x-first-death-", "x-last-death-")


@dataclass(frozen=True, slots=True)
class StompDialect:
    """How one broker implements STOMP 1.2, where brokers differ.

    Header templates have `{name}` for the queue or topic and `{subscription}` for the durable subscription.

    Attributes:
        queue, topic: templates of the header `destination`.
        id_header: the header that identifies a message, and keeps its value across redeliveries.
        id_separator: separator in the header `id_header` that precedes the message's ID; empty if the whole header is
            the ID.
        cumulative: whether to acknowledge with mode `client`, in which one ACK frame covers all earlier messages.
            Otherwise each message has an ACK frame of its own, with mode `client-individual`.
        window_header: header of SUBSCRIBE that limits the number of unacknowledged messages, or of their bytes.
        window_bytes: bytes to request for each message until the real size is known, if `window_header` counts bytes; 0
            if `window_header` counts messages.
        queue_headers, topic_headers, durable_headers: further headers of SUBSCRIBE for a queue, a topic, and a durable
            subscription.
        client_id: name that a connection needs for a durable subscription; empty if a connection needs no name.
        shared: whether a durable subscription may have several consumers.
        reject_headers: further headers of a NACK that refuses a message for good.
        slash: how a '/' in a name is written in destinations; empty if it is written unchanged.
        stalls: whether a queue stops delivering when a page of messages is unacknowledged, until a client wakes the
            queue.
        timestamp_us: unit of the header `timestamp` in microseconds.
        expires_header: header with the time of expiration in milliseconds since 1970, 0 for none; empty if
            there is only a time to live.
        count_header: header with the number of deliveries before this one; empty if unknown.
        internal_headers, internal_prefixes: names, and prefixes of names, of headers of MESSAGE that the broker adds.
            They are neither in STOMP's specification nor set by an application.
        own_id: pattern of the IDs that the broker creates, if the header `id_header` may also have an ID that the
            broker did not create: a producer's ID, or a property with the header's name. None if the header always has
            the broker's ID.
        foreign_prefix: prefix of the headers of messages that arrived over another protocol. Such messages cannot be
            settled if they have their producer's ID. Empty if all messages can be settled.
        management: address to which a session can send queries about a queue; empty if there is no such address, or if
            each query would leave a destination or a message on the broker.
        always: headers that every message has, if the broker does not escape the names of headers. On such a broker a
            property's name may contain line feeds, and so look like further headers. If the name contains an empty
            line, the headers after it become part of the body, and one of the headers in `always` may be missing.
            Empty if the broker escapes names.
        last_header: name of a header that comes after the application's headers. If an application has set a header
            with this name too, the broker's value is the last one. For all other names the broker's value comes first.
        user_id, app_id, content_encoding, group_id, group_sequence: the headers from which the column with this name is
            made. Its value is that of the first of these headers that a message has. Empty if the broker does not send
            the value.
        routed: whether `destination` of MESSAGE names the exchange and the routing key with which the message was
            published.
        forms: how destinations are written in `reply-to`, see :mod:`.destinations`.
        kinds_in_names: whether destinations are written in these forms in `destination` of SEND, too. Otherwise that
            header has the name alone.
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
    """How one broker implements AMQP 1.0, where brokers differ.

    Attributes:
        queue: source address of a queue, with `{name}` for the name.
        topic: source address of a topic, with `{name}` for the name.
        capabilities: capabilities that the source requests for the source of a link (AMQP 1.0, 3.5.3): first for a
            queue, then for a topic. None to request no capability.
        confirms: whether the broker confirms an acknowledgement: if a client accepts a delivery without settling it,
            the broker settles it after processing the acceptance (AMQP 1.0, 2.6.12).
        counts_acquirers: whether the header field `first-acquirer` is true at a first delivery and false at a
            redelivery. A missing field means false.
        names_itself: whether the broker's container ID is a name that the broker keeps across restarts.
        credit_max: maximum credit to grant at a time; more is granted when the credit is used up. 0 for no limit.
        slash: how a '/' in a name is written in addresses; empty if it is written unchanged.
        queue_since: a major version, and the address of a queue from this version on, with `{name}` for the
            percent-encoded name; None if all versions have the address `queue`.
        virtual_host: content of `open.hostname`, with `{name}` for the virtual host; empty if the broker has no virtual
            hosts.
        management_since: the major version from which the broker answers queries about a queue at the address
            `/management`; None if no version does.
        management: address to which a user with the permission for it can send queries about a queue; empty if there is
            no such address.
        forms: how destinations are written, see :mod:`.destinations`.
        states_kinds: whether messages state the kind of `reply-to` in an annotation, as JMS clients do.
        converted_by: setting with which the broker converts messages of AMQP 1.0 for readers that use other protocols.
            Without this setting such readers get the AMQP encoding of a message as its body. Empty if the broker always
            converts.
        converted_mark: an annotation that messages have if the broker converts them.
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
        """Return the address of a queue in this version of the broker. An unknown version counts as old."""
        if self.queue_since is not None and _major(version) >= self.queue_since[0]:
            return self.queue_since[1].format(name=quote(name, safe=""))
        return self.queue.format(name=self._written(name))

    def answers(self, version: str) -> bool:
        """Whether this version of the broker answers queries about a queue. An unknown version counts as old."""
        return self.management_since is not None and _major(version) >= self.management_since

    def topic_address(self, name: str) -> str:
        return self.topic.format(name=self._written(name))

    def _written(self, name: str) -> str:
        return name.replace("/", self.slash) if self.slash else name


@dataclass(frozen=True, slots=True)
class Listing:
    """How to list a broker's queues over HTTP: through the broker's own API, or through Jolokia, which reads MBeans.

    Attributes:
        url: example of a value for option `managementUrl`, with default ports.
        path: path and parameters of the API after that URL, with `{host}` for the virtual host, and `{page}` and
            `{size}` for the page of the list; empty if Jolokia is used.
        mbeans: pattern that matches one MBean for each queue; empty if the API is used.
    """

    url: str
    path: str = ""
    mbeans: str = ""


def by_scheme(*amqp: str) -> Mapping[str, tuple[str, ...]]:
    """Map each URL scheme to its protocols: the schemes of AMQP to those in `amqp`, the schemes of STOMP to STOMP."""
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
        prefetch_max: protocol -> largest prefetch of one connection.
        selectors: whether the broker can filter by JMS selector.
        virtual_hosts: whether the broker has virtual hosts, which the path of a URL names. Over STOMP the header `host`
            of CONNECT then has the name.
        durable_topics: protocols over which a topic can have durable subscriptions.
        shared_topics: protocols over which several sessions can share a durable subscription.
        counts_session_ends: whether the broker counts the end of a session as a failed delivery of each message that
            the session had received and not acknowledged.
        half_open_s: protocol -> how long the broker may keep the messages of a client that has vanished without
            closing its connection. A protocol is missing if the client's heartbeat determines this time.
        ids_by_protocol: whether the ID of a message is different over different protocols.
        stranded_s: longest time that the broker may keep messages that were delivered through a node that the cluster
            has lost.
        stranded_note: tells operators what to do about such messages; shown with data-loss errors.
        delivery_limit_note: tells operators what happens to a message that is redelivered too often; shown with
            data-loss errors.
        node_lost_s: how long a cluster takes to notice that a node is dead. Until then, it treats the clients of this
            node as connected.
        unavailable_reasons: phrases with which the broker says that a queue is temporarily unavailable because its node
            is down. ("Not found" would mean that the queue does not exist.)
        listing: how to list the names of the broker's queues.
        remedies: name of a check in :mod:`pyspark_mq.admin.checks` -> what an operator can do if the check fails.
            Checks that are missing here do not apply to this broker.
        replaced_prefetch: a prefetch that the broker mistakes for its default, and replaces by the prefetch of a
            policy; None if the broker never replaces a prefetch.
        delays_session_returns: whether the redelivery delay of a queue also applies to messages that are returned
            because a session has ended.
        by_priority: whether every queue delivers messages by priority.
        flaws: protocol -> a flaw that affects consumers that acknowledge late: the first version (major, minor) without
            the flaw, and a description of the flaw.
        proves_new: whether a delivery without the redelivered flag is always a message's first delivery, unless the
            message was dead-lettered.
        browsable_over: protocols over which a queue can be browsed.
        special_characters: characters with a special meaning in names: they list several destinations, are wildcards,
            or begin parameters.
        header_properties: name of a property that the broker takes for a header -> why a write cannot set this
            property.
        steering: properties that make the broker schedule, replace, copy or deduplicate a message. A write leaves them
            out unless option `brokerProperties` names them.
        drops_copies: whether the broker drops a message whose property `_AMQ_DUPL_ID` has a value that it has seen at
            the same address. At an address with a wildcard the broker refuses messages, but also remembers their
            values.
        stomp, amqp10: how the broker speaks STOMP or AMQP 1.0 where the specification leaves it to the broker; None if
            the broker does not speak this protocol.
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
        """Whether the broker's reason for refusing a queue says that the queue is only temporarily unavailable."""
        return any(words in reason for words in self.unavailable_reasons)
