"""What the doctor says of a write: whether the login may write there, by nothing that anybody sees."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_mq.admin.checks import Finding
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0
from pyspark_mq.cli.doctor.writes import examine_write
from pyspark_mq.errors import OptionError
from testbed.brokers.java import JavaNode
from testbed.brokers.rabbitmq import RabbitNode
from tests.support.cells import LiveCell

pytestmark = [pytest.mark.network, pytest.mark.writes]


def findings(cell: LiveCell, **options: Any) -> list[Finding]:
    given = {"broker": cell.cell.broker, "url": cell.url(), "protocol": cell.cell.protocol, "queue": cell.queue}
    if isinstance(cell.node, JavaNode):
        given["managementUrl"] = cell.node.management_url
    given |= options
    sections = examine_write({name: value for name, value in given.items() if value})
    return [one for section in sections for one in section.findings if one.check in {"login", "write"}]


def told(cell: LiveCell, **options: Any) -> str:
    """What is found of the destination, which is its last finding, with its level and its remedy."""
    found = findings(cell, **options)[-1]
    return f"{found.check} {found.level.word}: {found.what} -> {found.remedy}"


@pytest.mark.whole
def test_who_may_write_is_told_so_and_nothing_is_there_afterwards(cell: LiveCell) -> None:
    login, right = findings(cell)
    assert (login.check, login.level.word) == ("login", "ok")
    assert (right.check, right.level.word) == ("write", "ok"), right
    assert cell.total() == 0


def test_who_may_only_read_is_told_what_to_do(cell: LiveCell) -> None:
    with cell.reader() as login:
        text = told(cell, **login)
    assert text.startswith("write problem:"), text
    assert f"user '{login['username']}'" in text
    assert "permission to write" in text
    assert login["password"] not in text
    assert cell.total() == 0


@pytest.mark.whole
def test_a_name_that_looks_misspelt_is_told_and_not_made(cell: LiveCell) -> None:
    name = f"{cell.queue}x"
    text = told(cell, queue=name)
    if isinstance(cell.node, RabbitNode):
        assert text.startswith("write problem:")
        assert f"queue '{name}' does not exist" in text
        return
    assert isinstance(cell.node, JavaNode)
    assert text.startswith("write warning: there is no such queue")
    assert f"did you mean '{cell.queue}'?" in text
    assert "write unknown: not asked" in told(cell, queue=name, managementUrl="")
    assert "write warning: there is no such queue" in told(cell, queue=name), "it was made by asking"


@pytest.mark.whole
def test_a_wrong_login_and_rows_with_destinations_of_their_own(cell: LiveCell) -> None:
    (login,) = findings(cell, username="nobody", password="s3cret-pw")
    assert login.level.word == "problem"
    assert "'username' and 'password'" in login.what
    assert "s3cret-pw" not in login.what
    assert "write unknown: rows name their own" in told(cell, queue="")
    with pytest.raises(OptionError, match="queu"):
        findings(cell, queu="orders")


@pytest.mark.whole
@pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0)
def test_an_exchange_is_asked_without_routing_anything(cell: LiveCell) -> None:
    if not isinstance(cell.node, RabbitNode):
        pytest.skip("only RabbitMQ has exchanges")
    with cell.node._channel() as channel:
        channel.queue_bind(cell.queue, "amq.fanout")
    assert "write ok" in told(cell, queue="", exchange="amq.fanout", routingKey="any")
    assert "write problem" in told(cell, queue="", exchange="amq.nothing")
    assert cell.total() == 0
