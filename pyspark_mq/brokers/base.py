"""Differences between brokers, as data.

Outside this folder a broker is known by its name in ``admin/``, which asks each at its management, in the protocol
modules of ``sources/`` that ask one at its own address, and in those of ``sink/``. The rest of the package reads a
:class:`Broker`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import quote

__all__ = [
    "AMQP_0_9_1", "AMQP_1_0", "PASSING_HEADERS", "PASSING_PREFIXES", "STOMP", "Amqp10Dialect", "Broker", "Listing",
    "StompDialect", "by_scheme",
]  # fmt: skip

AMQP_0_9_1 = "amqp-0-9-1"
AMQP_1_0 = "amqp-1.0"
STOMP = "stomp"


#: Headers that RabbitMQ sets or changes from delivery to delivery, and the beginnings of those of dead letters.
#: They are no part of the content of a message.
PASSING_HEADERS = frozenset({"x-delivery-count", "x-acquired-count", "x-opt-rabbitmq-sent-time", "x-death"})
PASSING_PREFIXES = ("x-first-death-", "x-last-death-")


@dataclass(frozen=True, slots=True)
class StompDialect:
    """STOMP 1.2 as one broker speaks it.

    Header templates have `{name}` for the queue or topic and `{subscription}` for the durable one.

    Attributes:
        queue, topic: destination headers.
        id_header: the header that names a message, and keeps its value over redeliveries.
        id_separator: the message's name follows it in that header; empty if the whole header is the name.
        cumulative: acknowledge with mode `client`, where one frame covers everything before it;
            otherwise message by message with `client-individual`.
        window_header: header of SUBSCRIBE with how much may be unacknowledged.
        window_bytes: bytes to ask for in place of one message, until the real size is known, if that
            header counts bytes; 0 if it counts messages.
        queue_headers, topic_headers, durable_headers: further headers of SUBSCRIBE.
        client_id: name of the connection that a durable subscription needs; empty for none.
        shared: may a durable subscription have several consumers?
        reject_headers: further headers of NACK, for it to refuse a message for good.
        slash: how a '/' in a name is written in destinations; empty for as it is.
        stalls: does a queue stop handing out messages when a page of them is unacknowledged, until
            something wakes it?
        timestamp_us: unit of the header `timestamp` in microseconds.
        expires_header: moment of expiration in milliseconds since 1970, 0 for none; empty if there
            is only a time to live.
        count_header: number of deliveries before this one; empty if unknown.
        internal_headers, internal_prefixes: headers of MESSAGE beyond the specification's that no
            application has set, in full and by how they begin.
        own_id: what is in the IDs the broker gives, if the header may have another one: a producer's, or a property of
            that name, which replaces the broker's; None if it has no other.
        foreign_prefix: how headers begin that messages have which came over another protocol. With an ID of their
            producer's these cannot be settled; empty if all can.
        management: address that answers questions for a queue; empty if there is none, or none that can be asked
            without leaving something behind.
        last_header: a header of which the broker's own entry is the last, if an application has set one of that
            name; of all others it is the first.
        user_id, app_id, content_encoding, group_id, group_sequence: headers that have these, each the first that is
            there; none where the broker does not send it.
        routed: does `destination` of MESSAGE say to which exchange, and with which routing key, it was published?
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


@dataclass(frozen=True, slots=True)
class Amqp10Dialect:
    """AMQP 1.0 as one broker speaks it.

    Attributes:
        queue: source address of a queue, with `{name}` for the name.
        topic: the same for a topic.
        capabilities: for a queue and for a topic, what the source asks for (extension
            capabilities of a terminus).
        confirms: does it settle what we accepted, once it has taken that (AMQP 1.0, 2.6.12)?
        counts_acquirers: does the header `first-acquirer` show a redelivery? Its default is false.
        names_itself: is its container ID a name that it keeps over restarts?
        credit_max: most credit to give at a time; more is given when that is used up. 0 for no limit.
        slash: how a '/' in a name is written in addresses; empty for as it is.
        queue_since: from which major version on the address of a queue is another one, with its name
            percent-encoded for `{name}`; empty if in none.
        virtual_host: what `open.hostname` carries, with `{name}` for the virtual host; empty if the
            broker has none.
        management_since: from which major version on it answers questions for a queue; None if it does not.
        management: address that answers such questions to those who may ask; empty if there is none.
        settles_apart: may a delivery be settled after its acceptance was sent?
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
    settles_apart: bool = False

    def queue_address(self, name: str, version: str) -> str:
        """Return a queue's address in this version of the broker; an unknown version counts as an early one."""
        if self.queue_since is not None and _major(version) >= self.queue_since[0]:
            return self.queue_since[1].format(name=quote(name, safe=""))
        return self.queue.format(name=self._written(name))

    def answers(self, version: str) -> bool:
        """Return whether this version has management queries for a queue; an unknown one counts as an early one."""
        return self.management_since is not None and _major(version) >= self.management_since

    def topic_address(self, name: str) -> str:
        return self.topic.format(name=self._written(name))

    def _written(self, name: str) -> str:
        return name.replace("/", self.slash) if self.slash else name


@dataclass(frozen=True, slots=True)
class Listing:
    """List of a broker's queues over HTTP: an API of its own, or Jolokia, an agent for JMX.

    Attributes:
        url: value of the option `managementUrl` where everything is on its default port.
        path: of the API, after that URL, with `{host}` for the virtual host and `{page}`; empty where it is Jolokia.
        mbeans: pattern of the MBeans of which each is a queue; empty where it is an API.
    """

    url: str
    path: str = ""
    mbeans: str = ""


def by_scheme(*amqp: str) -> Mapping[str, tuple[str, ...]]:
    """URL scheme -> protocols: these over the schemes of AMQP, STOMP over its own."""
    return MappingProxyType({"amqp": amqp, "amqps": amqp, "stomp": (STOMP,), "stomp+ssl": (STOMP,)})


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Broker:
    """A kind of broker.

    Attributes:
        name: value of the option `broker`.
        products: what it calls itself to clients, without its version.
        protocols: URL scheme -> the protocols that may be spoken over it, the default first.
        epoch_messages: default of `maxMessagesPerTrigger`.
        prefetch_max: protocol -> most unacknowledged messages one connection can be handed.
        selectors: can it filter by JMS selector?
        virtual_hosts: does the path of a URL name one? Over STOMP the header `host` does then.
        durable_topics: protocols over which a topic has durable subscriptions.
        shared_topics: those over which several sessions can take turns with one.
        counts_session_ends: does the end of a session count as a delivery of every message it received?
        half_open_s: protocol -> how long the broker may keep the messages of a connection that has
            died without it noticing, where it decides that alone.
        ids_by_protocol: does a message's ID differ between protocols?
        stranded_s: the longest it may keep messages handed out through a node that the cluster has lost.
        stranded_note: what an operator does about it; shown with data-loss errors.
        delivery_limit_note: what an operator has to know about messages that are handed out
            again and again; shown with data-loss errors.
        node_lost_s: how long a cluster considers a dead node, and its clients, alive.
        unavailable_reasons: what it says, except "not found", of a queue that nobody can use now, as the node that has
            it is not there.
        listing: how it lists the names of its queues.
        remedies: a setting that breaks late acknowledgement -> what an operator does about it. Others
            do not apply to this broker. Names: :mod:`pyspark_mq.admin.checks`.
        replaced_prefetch: one that the broker takes for its own default and replaces by what a policy says; None if
            it takes all as they are.
        delays_session_returns: does a redelivery delay apply whenever the end of a session returns messages?
        by_priority: are messages of any queue handed out by their priority?
        flaws: protocol -> first version, major and minor, without a flaw that bites who acknowledges late, and what
            that is.
        proves_new: a delivery that is not flagged as redelivered, of a message that was never dead-lettered, is the
            first of its message.
        browsable_over: protocols over which a queue can be browsed.
        special_characters: characters that make a name several destinations, or add parameters.
        header_properties: properties that it takes for headers -> why a write has none of that name.
        stomp, amqp10: how it speaks a protocol where the specification leaves it to the broker;
            None if it does not speak it.
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
    node_lost_s: float = 0.0
    unavailable_reasons: tuple[str, ...] = ()
    products: frozenset[str] = frozenset()
    stomp: StompDialect | None = None
    amqp10: Amqp10Dialect | None = None
    stranded_s: float = 0.0
    stranded_note: str = ""

    def will_be_back(self, reason: str) -> bool:
        """Return whether a queue refused for this reason is only temporarily unavailable."""
        return any(words in reason for words in self.unavailable_reasons)
