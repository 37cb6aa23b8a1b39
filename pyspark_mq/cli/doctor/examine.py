"""``pyspark-mq doctor`` for a query that reads queues: finds problems before the query runs into them.

Many problems come from the fact that a query acknowledges messages late, after Spark has committed their epoch.

The command examines this machine, each broker of `url`, the broker's management interface if `managementUrl` is set,
and some messages of each queue. It acknowledges nothing. It browses messages if the broker supports browsing; otherwise
it receives them and returns them to the queue. :mod:`pyspark_mq.admin.checks` and
:mod:`pyspark_mq.cli.doctor.machine` decide what counts as a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark_mq.admin import ask_beside, ask_queue, ask_server
from pyspark_mq.admin.checks import Finding, Level, Sample, check_queue, check_sample
from pyspark_mq.admin.http import Management
from pyspark_mq.brokers.base import AMQP_1_0
from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts, version_of
from pyspark_mq.cli.doctor.certificates import check_tls
from pyspark_mq.cli.doctor.hosting import check_host
from pyspark_mq.cli.doctor.machine import check_machine, examine_machine
from pyspark_mq.cli.doctor.report import Section
from pyspark_mq.cli.doctor.sample import sample_of
from pyspark_mq.cli.peek import make_session, open_first, received, rows_of
from pyspark_mq.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConfigurationError,
    DestinationError,
    MqError,
    OptionError,
)
from pyspark_mq.sources.connections.session import Greeting, SessionLostError
from pyspark_mq.sources.exposure import of_management, of_store
from pyspark_mq.sources.queues.pattern import matching
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.options import Options
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["check_version", "examine"]

#: At most this number of queues that match option `queuePattern` are examined.
_QUEUES_MAX = 20


def examine(options: Options, maximum: int, patience_s: float) -> Iterator[Section]:
    """Examine the machine, the brokers and the queues of a query, and yield a section with findings for each of them.

    Args:
        options: the options of the query.
        maximum: maximum number of messages to look at in each queue; 0 for none.
        patience_s: longest wait for the next message.
    """
    settings, management = options.settings, options.management
    machine = check_machine(examine_machine(), settings.endpoint.protocol, options.id_log, syncs=settings.syncs)
    yield Section("this machine", machine)
    try:
        make_session(settings).close()
    except ConfigurationError as missing:
        yield Section(str(settings.endpoint.urls[0]), [Finding("client", Level.PROBLEM, str(missing))])
        return
    server = ""
    if management is not None:
        found, server = _management(management)
        exposed = [Finding("tls", Level.WARNING, one.what, one.remedy) for one in of_management(management.url)]
        yield Section("management", [found, *exposed])
    exposed = [Finding("secrets", Level.WARNING, one.what, one.remedy) for one in of_store(options.dedup_store)]
    if exposed:
        yield Section("dedupStore", exposed)
    try:
        queues, beyond = _queues(options)
    except (BrokerError, OptionError) as failed:
        yield Section(settings.destination, [Finding("queue", Level.PROBLEM, str(failed))])
        return
    if settings.pattern is not None and not queues:
        text = "no queue matches the pattern yet; the query waits for a queue that matches"
        yield Section(
            settings.destination, [Finding("queue", Level.UNKNOWN, text, "run doctor again when there is such a queue")]
        )
        return
    brokers = [_broker(url, (queues or [settings])[0], server, management) for url in settings.endpoint.urls]
    answered = [url for url, broker in zip(settings.endpoint.urls, brokers, strict=True) if broker.answered]
    for broker in brokers:
        yield broker.section(among_others=bool(answered))
    if not answered:
        return
    for one in queues:
        # Use only the brokers that answered. The others would time out again for each queue.
        reached = replace(one, endpoint=replace(one.endpoint, urls=tuple(answered)))
        yield _queue(reached, management, maximum, patience_s, of_topic=settings.endpoint.topic is not None)
    if beyond:
        text = f"{beyond} more queue(s) match, and were not examined"
        yield Section(settings.destination, [Finding("queue", Level.UNKNOWN, text, "name them with option 'queue'")])


def _management(management: Management) -> tuple[Finding, str]:
    """Check that the management interface answers. Return the finding, and the broker's product and version.

    The second value is empty if the management interface does not answer.
    """
    check = "management"
    try:
        names, server = management.names(), ask_server(management)
    except BrokerError as failed:
        advice = "correct 'managementUrl': without it some of the queue's settings are not known"
        return Finding(check, Level.WARNING, str(failed), advice), ""
    text = f"{management.url} answers {_who(management.user)}: {server.replace('/', ' ')}, {len(names)} queue(s)"
    return Finding(check, Level.OK, text), server


def _queues(options: Options) -> tuple[list[Settings], int]:
    """Return the settings of each queue to examine, and the number of queues that are not examined."""
    settings = options.settings
    if settings.endpoint.topic is not None:
        subscription = settings.endpoint.subscription
        if subscription is None or not settings.endpoint.broker.virtual_hosts:
            return [], 0
        # On RabbitMQ a subscription is a queue with the subscription's name. Examine it as a queue, because opening it
        # as a topic would create it.
        endpoint = replace(settings.endpoint, topic=None, subscription=None, queue=subscription)
        return [replace(settings, endpoint=endpoint)], 0
    if settings.pattern is None:
        return list(settings.by_queue()), 0
    assert options.management is not None, "checked with the options"
    names = matching(settings.pattern, options.management.names())
    return [settings.of_queue(name, len(names)) for name in names[:_QUEUES_MAX]], max(0, len(names) - _QUEUES_MAX)


# -- a broker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Broker:
    url: BrokerUrl
    findings: Sequence[Finding]
    #: Why the broker does not answer; empty if it answers.
    unavailable: str = ""

    @property
    def answered(self) -> bool:
        return not self.unavailable and all(one.level < Level.PROBLEM for one in self.findings)

    def section(self, *, among_others: bool) -> Section:
        if not self.unavailable:
            return Section(str(self.url), self.findings)
        advice = "start the broker, or correct 'url'; a passive backup is not expected to answer"
        level = Level.WARNING if among_others else Level.PROBLEM
        return Section(str(self.url), [*self.findings, Finding("login", level, self.unavailable, advice)])


def _broker(url: BrokerUrl, settings: Settings, server: str, management: Management | None) -> _Broker:
    """Log in to a broker, and return what was found.

    Args:
        server: product and version as the management interface reports them. They are used if the broker itself does
            not report its version.
    """
    endpoint = settings.endpoint
    findings = [*check_host(url, settings, asked=management is not None), *check_tls(url, endpoint)]
    if any(one.level is Level.PROBLEM for one in findings):
        return _Broker(url, findings)
    if endpoint.topic is not None:
        text = "not examined: opening a topic creates its subscription"
        return _Broker(url, [*findings, Finding("login", Level.UNKNOWN, text, "start the query")])
    session = make_session(settings)
    try:
        greeting = session.open(url, endpoint.connect_timeout_s)
    except DestinationError:
        # The login has succeeded. The section about the queue will report what is wrong with the queue.
        findings.append(_login(endpoint, url))
    except OptionError as wrong:
        findings.append(Finding("broker", Level.PROBLEM, str(wrong)))
    except BrokerUnavailableError as unavailable:
        return _Broker(url, findings, str(unavailable))
    except MqError as failed:
        findings.append(Finding("login", Level.PROBLEM, str(failed)))
    else:
        product_version = greeting.server if version_of(greeting.server) != (0, 0) else server or greeting.server
        findings += [_login(endpoint, url), check_version(product_version, endpoint)]
    finally:
        session.close()
    return _Broker(url, findings)


def _login(endpoint: Endpoint, url: BrokerUrl) -> Finding:
    return Finding("login", Level.OK, f"{_who(endpoint.user(url))}, over {endpoint.protocol}")


def _who(username: str | None) -> str:
    return "no user named" if username is None else f"user '{username}'"


def check_version(server: str, endpoint: Endpoint) -> Finding:
    """Check whether the broker's version has known flaws over the protocol that the query uses.

    Args:
        server: `product/version`, as the broker reports it.
    """
    check, (product, _, version) = "broker", server.partition("/")
    numbers = version_of(server)
    since, flaw = endpoint.broker.flaws.get(endpoint.protocol, ((0, 0), ""))
    if numbers == (0, 0):
        advice = "look at the broker's console, or set option 'managementUrl'"
        return Finding(check, Level.UNKNOWN, f"{product or 'the broker'} does not report its version", advice)
    text = f"{product} {version.partition(' ')[0]}"
    if numbers < since:
        advice = f"use version {since[0]}.{since[1]} or later, or another protocol"
        return Finding(check, Level.WARNING, f"{text}, over {endpoint.protocol}: {flaw}", advice)
    return Finding(check, Level.OK, text)


# -- a queue -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of opening a session with a queue and looking at its messages.

    Attributes:
        greeting: the broker's greeting; None if the session could not be opened.
        sample: the examined messages; None if the command was told to examine none, or could not receive any.
        problem: why messages could not be examined; empty if there was no problem.
        absent: whether the queue does not exist, or is not visible to this user.
    """

    greeting: Greeting | None
    sample: Sample | None = None
    problem: str = ""
    absent: bool = False


def _queue(
    settings: Settings, management: Management | None, maximum: int, patience_s: float, *, of_topic: bool
) -> Section:
    about = settings.endpoint.destination
    facts, to_know = _ask(settings, management)
    look = _look(settings, maximum, patience_s)
    greeting, sample = look.greeting, look.sample
    if greeting is not None:
        facts = facts.or_else(greeting.facts)
        if (depth := greeting.depth) is not None:
            # The session reports current numbers, while those of the management interface may be outdated.
            names = facts.consumer_names if len(facts.consumer_names or ()) == depth.other_consumers else None
            facts = replace(facts, ready=depth.ready, other_consumers=depth.other_consumers, consumer_names=names)
    if sample is not None and sample.sizes and settings.endpoint.broker.by_priority:
        facts = replace(facts, priorities=len(set(sample.priorities)) > 1)
    checked = check_queue(facts, settings, to_know)
    if look.absent and of_topic:
        advice = "start the query, whose user needs the permissions to configure, write and read the subscription"
        text = f"the query creates this subscription: {look.problem}"
        return Section(about, [Finding("read", Level.UNKNOWN, text, advice)])
    if look.problem:
        reads = Finding("read", Level.PROBLEM, look.problem)
        if greeting is None:
            checked = [one for one in checked if one.level >= Level.WARNING]
    elif sample is None:
        reads = Finding("read", Level.UNKNOWN, "no message was examined", "use --messages above 0")
    else:
        waiting = "" if facts.ready is None else f", {facts.ready:,} message(s) waiting"
        reads = Finding("read", Level.OK, f"{len(sample.sizes)} message(s) {sample.how}{waiting}")
    if sample is not None and sample.cut_short:
        checked = [one for one in checked if one.check != "prefetch"]
    return Section(about, [reads, *checked, *([] if sample is None else check_sample(sample, settings))])


def _ask(settings: Settings, management: Management | None) -> tuple[QueueFacts, str]:
    """Ask the management interface for a queue's facts. Return them, and advice on how to learn the unknown facts."""
    if management is None:
        url = settings.endpoint.broker.listing.url
        to_know = f"set option 'managementUrl', for example to {url}, with a user who may read there"
        return ask_beside(settings.endpoint), to_know
    try:
        facts = ask_queue(management, settings.endpoint.name)
    except BrokerError:
        return NOTHING_KNOWN, "see 'management'"
    return facts, "the broker does not report this: look into the broker's configuration"


def _look(settings: Settings, maximum: int, patience_s: float) -> _Look:
    """Look at some messages of a queue, if possible by browsing, otherwise in a session like that of a query."""
    endpoint = settings.endpoint
    if maximum and endpoint.protocol in endpoint.broker.browsable_over:
        look = _session(settings, maximum, patience_s, browses=True)
        # Browsing has failed, perhaps because it needs a permission that reading does not need. Try to read instead.
        if not look.problem:
            return look
    if maximum and endpoint.protocol != AMQP_1_0:
        # After a restart a query may have to raise its prefetch within a session. Over AMQP 1.0 it then sends more
        # credit. Over other protocols it adds a consumer, and a broker that does not accept this consumer ends the
        # session. So raise the prefetch here, too, to find out.
        wide = _session(settings, maximum, patience_s, widens=True)
        if not wide.problem:
            return wide
        look = _session(settings, maximum, patience_s)
        if look.sample is not None:
            look = replace(look, sample=replace(look.sample, cut_short=wide.problem))
        return look
    return _session(settings, maximum, patience_s)


def _session(
    settings: Settings, maximum: int, patience_s: float, *, browses: bool = False, widens: bool = False
) -> _Look:
    session = make_session(settings, browses=browses)
    greeting = None
    try:
        greeting = open_first(session, settings)
        if not maximum:
            return _Look(greeting)
        session.consume(maximum)
        if widens:
            session.consume(maximum + 1)
        batches = received(session, maximum, patience_s)
    except MqError as failed:
        return _Look(greeting, problem=str(failed), absent=isinstance(failed, DestinationError))
    except SessionLostError as lost:
        return _Look(greeting, problem=f"{settings.endpoint.destination}: the session ended: {lost}")
    finally:
        session.close()
    rows = rows_of(settings, batches)
    return _Look(greeting, sample_of(rows, "browsed" if browses else "returned"))
