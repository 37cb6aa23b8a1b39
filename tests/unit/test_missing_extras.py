"""A client library that is not installed is told at `load()`, with the command that installs it."""

from __future__ import annotations

import sys

import pytest

from pyspark_mq.errors import ConfigurationError, MissingExtraError, OptionError
from pyspark_mq.spark_source.datasource import MqDataSource

RABBIT = {"broker": "rabbitmq", "queue": "orders", "checkpointLocation": "/data/x"}


@pytest.mark.parametrize(
    ("library", "module", "options", "extra"),
    [
        ("proton", "amqp10.", {"url": "amqp://a", "protocol": "amqp-1.0"}, "pyspark-mq[amqp10]"),
        ("stomp", "stomp.", {"url": "stomp://localhost"}, "pyspark-mq[stomp]"),
        ("redis", "redis_store", {"url": "amqp://a", "dedupStore": "redis://b"}, "pyspark-mq[redis]"),
    ],
    ids=["amqp-1.0", "stomp", "redis"],
)
def test_told_at_load(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, options: dict[str, str], extra: str
) -> None:
    MqDataSource({**RABBIT, **options}).schema()
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("pyspark_mq.") and f".{module}" in name]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError) as missing:
        MqDataSource({**RABBIT, **options}).schema()
    assert f"pip install '{extra}'" in str(missing.value)


@pytest.mark.parametrize(
    "options", [{"url": "amqp://a"}, {"url": "stomp://a"}, {"url": "amqp://a", "protocol": "amqp-1.0"}]
)
@pytest.mark.parametrize("module", ["fcntl", "termios"])
def test_a_system_that_is_none_for_it_is_said_at_load(
    monkeypatch: pytest.MonkeyPatch, module: str, options: dict[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys, "platform", "win32")
    for name in [name for name in sys.modules if name.startswith(("pyspark_mq.sources.", "pyspark_mq.wire."))]:
        if name.endswith((".session", ".socket_loop", ".connection", ".client")):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigurationError, match="runs on Linux, but this is 'win32'") as refused:
        MqDataSource({**RABBIT, **options}).schema()
    assert "pip" not in str(refused.value)


def test_what_macos_has_not_is_refused_and_the_rest_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    given = {**RABBIT, "url": "amqp://a"}
    assert MqDataSource(given).schema()
    with pytest.raises(OptionError, match=r"'synced' needs Linux.* this system is darwin") as refused:
        MqDataSource({**given, "settleAfter": "synced"}).schema()
    assert refused.value.option == "settleAfter"
