"""Examines a write (`doctor --write`): the login, the destination, and the permission to write to the destination.

The command publishes nothing to the destination. On ActiveMQ Classic over AMQP 1.0 it publishes one message to a
temporary queue of its own, to find out how the broker stores messages of AMQP 1.0. The command creates no other queue:
ActiveMQ Classic and Artemis create a queue when a client asks to write to it, so on these brokers the command probes
only queues that the management interface at `managementUrl` lists.
"""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pyspark_mq.admin.checks import Finding, Level
from pyspark_mq.admin.http import Management
from pyspark_mq.cli.doctor.certificates import check_tls
from pyspark_mq.cli.doctor.machine import check_machine, examine_machine
from pyspark_mq.cli.doctor.report import Section
from pyspark_mq.errors import BrokerUnavailableError, ConfigurationError, MqError
from pyspark_mq.sink.publisher import Publisher, publisher_class
from pyspark_mq.sink.settings import Destination, SinkSettings
from pyspark_mq.spark_source.sink_options import parse_sink_options
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["examine_write"]

_CHECK = "write"
_MANAGEMENT = "managementurl"


def examine_write(options: Mapping[str, str]) -> Iterator[Section]:
    """Examine the machine, the brokers and the destination of a write, and yield a section with findings for each.

    Args:
        options: the options of the write, and `managementUrl` if that is known.
    """
    asked = next((value for name, value in options.items() if name.lower() == _MANAGEMENT), None)
    own = {name: value for name, value in options.items() if name.lower() != _MANAGEMENT}
    settings = parse_sink_options(own, streaming=False)
    endpoint, destination = settings.endpoint, settings.destination
    management = None if asked is None else Management.of(asked, endpoint)
    yield Section("this machine", check_machine(examine_machine(), endpoint.protocol, None, syncs=False))
    # Leave out the destination: opening it may create it.
    anywhere = replace(settings, queue=None, topic=None, exchange=None)
    answered = []
    with endpoint.hiding():
        for url in endpoint.urls:
            findings = [*check_tls(url, endpoint)]
            if not any(one.level is Level.PROBLEM for one in findings):
                login, *others = _login(anywhere, url, others=len(endpoint.urls) > 1)
                findings += [login, *others]
                if login.level is Level.OK:
                    answered.append(url)
            yield Section(str(url), findings)
        if destination is None:
            text = "rows name their own destinations, which are not examined"
            yield Section("the rows", [Finding(_CHECK, Level.UNKNOWN, text, "run doctor again with option 'queue'")])
        elif answered:
            found = _unsaid(settings, destination, management) or _right(anywhere, destination, answered[0])
            yield Section(str(destination), [found])


def _login(settings: SinkSettings, url: BrokerUrl, *, others: bool) -> Iterator[Finding]:
    """Yield a finding about the login, and then perhaps a finding about readers that use another protocol."""
    try:
        publisher = _opened(settings, url)
    except BrokerUnavailableError as unavailable:
        level = Level.WARNING if others else Level.PROBLEM
        yield Finding("login", level, str(unavailable), "start the broker, or correct 'url'")
        return
    except (ConfigurationError, MqError) as failed:
        yield Finding("login", Level.PROBLEM, str(failed))
        return
    with contextlib.closing(publisher):
        user = settings.endpoint.user(url)
        yield Finding("login", Level.OK, f"{'no user named' if user is None else f'user {user!r}'}, to write")
        reading = publisher.reading(time.monotonic() + settings.endpoint.connect_timeout_s)
        if reading:
            yield Finding("readers", Level.WARNING, reading, "nothing to do if all readers use AMQP 1.0")


def _opened(settings: SinkSettings, url: BrokerUrl) -> Publisher:
    publisher = publisher_class(settings.endpoint.protocol)(settings, url)
    try:
        publisher.open(time.monotonic() + settings.endpoint.connect_timeout_s)
    except BaseException:
        publisher.close()
        raise
    return publisher


def _unsaid(settings: SinkSettings, destination: Destination, management: Management | None) -> Finding | None:
    """Return why the destination must not be probed, as a finding; None if the destination may be probed.

    On ActiveMQ Classic and Artemis, probing would create a missing destination.
    """
    broker = settings.endpoint.broker
    if broker.virtual_hosts:
        return None
    if destination.kind == "topic" or management is None:
        text = f"not checked: the broker would create a missing {destination.kind}, even one with a misspelt name"
        return Finding(_CHECK, Level.UNKNOWN, text, f"set option 'managementUrl', for example to {broker.listing.url}"
                       if destination.kind == "queue" else "compare the name with the reader's")  # fmt: skip
    try:
        names = management.names()
    except MqError as failed:
        return Finding(_CHECK, Level.UNKNOWN, str(failed), "correct option 'managementUrl', or its user")
    if destination.name in names:
        return None
    near = difflib.get_close_matches(destination.name, names, n=1)
    meant = f"; did you mean '{near[0]}'?" if near else ""
    text = f"there is no such queue, so the write creates it{meant}"
    return Finding(_CHECK, Level.WARNING, text, "correct option 'queue' if the name is misspelt, or create the queue")


def _right(settings: SinkSettings, destination: Destination, url: BrokerUrl) -> Finding:
    publisher = None
    try:
        publisher = _opened(settings, url)
        publisher.probe(destination, time.monotonic() + settings.endpoint.connect_timeout_s)
    except MqError as failed:
        return Finding(_CHECK, Level.PROBLEM, str(failed))
    finally:
        if publisher is not None:
            publisher.close()
    return Finding(_CHECK, Level.OK, "it exists, and the user may write to it; nothing was published")
