"""What the doctor says of a write: whether the login may write there, by nothing that anybody sees."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_mq.admin.checks import Finding
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0
from pyspark_mq.cli.doctor.writes import examine_write
from pyspark_mq.errors import OptionError
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.java import JavaNode
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError
from tests.plugin import missing
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("doctor of a write"), pytest.mark.network, pytest.mark.writes]


def findings(entry: LiveEntry, **options: Any) -> list[Finding]:
    given = {"broker": entry.entry.broker, "url": entry.url(), "protocol": entry.entry.protocol, "queue": entry.queue}
    if isinstance(entry.node, JavaNode):
        given["managementUrl"] = entry.node.management_url
    given |= options
    return [one for one in all_findings(given) if one.check in {"login", "write"}]


def all_findings(options: dict[str, str]) -> list[Finding]:
    sections = examine_write({name: value for name, value in options.items() if value})
    return [one for section in sections for one in section.findings]


def told(entry: LiveEntry, **options: Any) -> str:
    """What is found of the destination, which is its last finding, with its level and its remedy."""
    found = findings(entry, **options)[-1]
    return f"{found.check} {found.level.word}: {found.what} -> {found.remedy}"


@pytest.mark.whole
def test_who_may_write_is_told_so_and_nothing_is_there_afterwards(entry: LiveEntry) -> None:
    login, right = findings(entry)
    assert (login.check, login.level.word) == ("login", "ok")
    assert (right.check, right.level.word) == ("write", "ok"), right
    assert entry.total() == 0


def test_who_may_only_read_is_told_what_to_do(entry: LiveEntry) -> None:
    with entry.reader() as login:
        text = told(entry, **login)
    assert text.startswith("write problem:"), text
    assert f"user '{login['username']}'" in text
    assert "permission to write" in text
    assert login["password"] not in text
    assert entry.total() == 0


@pytest.mark.whole
def test_a_name_that_looks_misspelt_is_told_and_not_made(entry: LiveEntry) -> None:
    name = f"{entry.queue}x"
    text = told(entry, queue=name)
    if isinstance(entry.node, RabbitNode):
        assert text.startswith("write problem:")
        assert f"queue '{name}' does not exist" in text
        return
    assert isinstance(entry.node, JavaNode)
    assert text.startswith("write warning: there is no such queue")
    assert f"did you mean '{entry.queue}'?" in text
    assert "write unknown: not checked" in told(entry, queue=name, managementUrl="")
    assert "write warning: there is no such queue" in told(entry, queue=name), "it was made by asking"


@pytest.mark.whole
def test_a_wrong_login_and_rows_with_destinations_of_their_own(entry: LiveEntry) -> None:
    (login,) = findings(entry, username="nobody", password="s3cret-pw")
    assert login.level.word == "problem"
    assert "'username' and 'password'" in login.what
    assert "s3cret-pw" not in login.what
    assert "write unknown: rows name their own" in told(entry, queue="")
    with pytest.raises(OptionError, match="queu"):
        findings(entry, queu="orders")


@pytest.mark.whole
@pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0)
def test_an_exchange_is_asked_without_routing_anything(entry: LiveEntry) -> None:
    if not isinstance(entry.node, RabbitNode):
        pytest.skip("only RabbitMQ has exchanges")
    with entry.node._channel() as channel:
        channel.queue_bind(entry.queue, "amq.fanout")
    assert "write ok" in told(entry, queue="", exchange="amq.fanout", routingKey="any")
    assert "write problem" in told(entry, queue="", exchange="amq.nothing")
    assert entry.total() == 0


@pytest.mark.protocols(AMQP_1_0)
def test_whether_readers_over_other_protocols_find_the_messages_is_asked_of_the_broker(entry: LiveEntry) -> None:
    given = {"broker": entry.entry.broker, "url": entry.url(), "protocol": AMQP_1_0, "queue": entry.queue}
    readers = [one for one in all_findings(given) if one.check == "readers"]
    assert entry.total() == 0
    if not isinstance(entry.node, ActiveMqNode):
        assert readers == []
        return
    (finding,) = readers
    assert finding.level.word == "warning"
    assert "set `transport.transformer=jms` at the broker's AMQP connector" in finding.what


@pytest.mark.whole
def test_a_classic_that_converts_messages_and_one_that_lets_nobody_ask_bring_no_warning() -> None:
    try:
        node = ActiveMqNode(amqp_transformer="jms")
    except NodeError as absent:
        missing(str(absent))
        raise
    with node:
        node.declare("q")
        given = {"broker": "activemq", "url": node.url(AMQP_1_0), "protocol": AMQP_1_0, "queue": "q"}
        assert [one for one in all_findings(given) if one.check == "readers"] == []
