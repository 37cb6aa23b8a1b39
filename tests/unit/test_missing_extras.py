"""A client library that is not installed is told at `load()`, with the command that installs it."""

from __future__ import annotations

import sys

import pytest

from pyspark_mq.errors import MissingExtraError
from pyspark_mq.spark_source.datasource import MqDataSource

RABBIT = {"broker": "rabbitmq", "queue": "orders"}


@pytest.mark.parametrize(
    ("library", "module", "options", "extra"),
    [
        ("proton", "sources.amqp10.", {"url": "amqp://a", "protocol": "amqp-1.0"}, "pyspark-mq[amqp10]"),
        ("stomp", "sources.stomp.", {"url": "stomp://localhost"}, "pyspark-mq[stomp]"),
        ("redis", "dedup.redis_store", {"url": "amqp://a", "dedupStore": "redis://b"}, "pyspark-mq[redis]"),
    ],
    ids=["amqp-1.0", "stomp", "redis"],
)
def test_told_at_load(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, options: dict[str, str], extra: str
) -> None:
    MqDataSource({**RABBIT, **options})
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith(f"pyspark_mq.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError) as missing:
        MqDataSource({**RABBIT, **options})
    assert f"pip install '{extra}'" in str(missing.value)
