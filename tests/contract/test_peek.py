"""The command `peek`: messages are shown, and stay."""

from __future__ import annotations

import json

import pika
import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.cli.main import main
from testbed.brokers.node import QueueCounts
from testbed.process import poll
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("peek"), pytest.mark.network, pytest.mark.sampled]


def arguments(entry: LiveEntry, **options: object) -> list[str]:
    return [f"{name}={value}" for name, value in entry.options(**options).items()]


def test_the_first_messages_are_shown_and_stay(entry: LiveEntry, capsys: pytest.CaptureFixture[str]) -> None:
    sent = entry.publish(20)
    assert main(["peek", "-n", "5", "--json", *arguments(entry)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["body"] for row in rows] == sent[:5]
    assert {row["destination"] for row in rows} == {entry.queue}
    assert all(row["messageId"] for row in rows)
    assert poll(lambda: entry.counts() == QueueCounts(20, 0), 30)
    assert main(["peek", "-n", "3", *arguments(entry)]) == 0
    text = capsys.readouterr().out
    assert "3 message(s), returned" in text
    assert repr(sent[2]) in text
    with entry.engine() as engine:
        engine.drain(20)
        assert sorted(engine.output) == sorted(sent)


@pytest.mark.protocols(AMQP_0_9_1)
def test_an_id_cannot_move_the_cursor_or_forge_a_line(entry: LiveEntry, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b[2J\x1b]0;title\x07\n0 message(s), returned\u2028\u202ebc\x7f"
    properties = pika.BasicProperties(message_id=hostile, type=hostile, headers={"h": hostile})
    entry.on_channel(lambda channel: channel.basic_publish("", entry.queue, hostile.encode(), properties))
    for arguments_of in (["peek"], ["peek", "--json"]):
        assert main([*arguments_of, *arguments(entry)]) == 0
        lines = capsys.readouterr().out.split("\n")
        assert all(line.isprintable() for line in lines)
        assert "0 message(s), returned" not in lines
    assert main(["peek", "--json", *arguments(entry)]) == 0
    (row,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (row["messageId"], row["body"], row["properties"]["h"]) == (hostile, hostile, hostile)


def test_an_empty_queue_is_not_waited_for_long(entry: LiveEntry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peek", "--wait", "0.5", *arguments(entry)]) == 0
    assert capsys.readouterr().out == "0 message(s), returned\n"


def test_a_wrong_password_is_said_and_not_shown(entry: LiveEntry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peek", *arguments(entry, username="joe", password="hushhush")]) == 1
    captured = capsys.readouterr()
    assert "joe" in captured.err or "refused" in captured.err.lower() or "user" in captured.err
    assert "hushhush" not in captured.out + captured.err
