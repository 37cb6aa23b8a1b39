"""Options of a write: what is taken, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_mq.errors import ConfigurationError, OptionError, SchemaError
from pyspark_mq.sink.settings import SinkSettings
from pyspark_mq.spark_source.datasource import MqDataSource
from pyspark_mq.spark_source.sink_options import SINK_OPTIONS, parse_sink_options

RABBIT = {"broker": "rabbitmq", "url": "amqp://me:s3cret@localhost/shop", "queue": "orders"}
ARTEMIS = {"broker": "artemis", "url": "amqp://localhost", "queue": "orders"}
BODY = StructType().add("body", "binary")


def parsed(given: dict[str, str], *, streaming: bool = False, **more: str) -> SinkSettings:
    return parse_sink_options({**given, **more}, streaming=streaming)


def refused(given: dict[str, str], *, streaming: bool = False, **more: str) -> tuple[str, str]:
    options = {name: value for name, value in {**given, **more}.items() if value is not None}
    with pytest.raises(OptionError) as caught:
        parse_sink_options(options, streaming=streaming)
    assert "s3cret" not in str(caught.value)
    return caught.value.option, caught.value.problem


def test_what_is_taken() -> None:
    settings = parsed(RABBIT, sendTimeout="30s", writeId="nightly", heartbeat="10s", CheckpointLocation="/c")
    assert (settings.queue, settings.send_timeout_s, settings.write_id) == ("orders", 30.0, "nightly")
    endpoint = settings.endpoint
    assert (endpoint.protocol, endpoint.heartbeat_s, endpoint.urls[0].virtual_host) == ("amqp-0-9-1", 10.0, "shop")
    assert "s3cret" not in repr(settings)
    assert parsed(RABBIT, streaming=True, checkpointLocation="/c").send_timeout_s == 120.0
    assert parsed(ARTEMIS).endpoint.protocol == "amqp-1.0"
    assert parsed({**ARTEMIS, "url": "stomp://localhost"}).endpoint.protocol == "stomp"
    assert parsed(RABBIT, protocol="amqp-1.0").endpoint.protocol == "amqp-1.0"
    exchange = parsed({name: value for name, value in RABBIT.items() if name != "queue"}, exchange="e", routingKey="k")
    assert str(exchange.destination) == "exchange 'e' with routing key 'k'"


@pytest.mark.parametrize(
    ("changes", "option", "words"),
    [
        ({"broker": None}, "broker", "is required; use one of: rabbitmq"),
        ({"broker": "kafka"}, "broker", "'kafka' is not accepted"),
        ({"url": None}, "url", "is required; for example amqp://"),
        ({"url": "stomp://localhost"}, "url", "RabbitMQ does not report over STOMP whether a queue has accepted"),
        ({"url": "stomp+ssl://localhost"}, "url", "use amqps://"),
        ({"url": "rabbitmq-stream://localhost"}, "url", "name the stream with 'queue'"),
        ({"protocol": "stomp"}, "protocol", "use one of: amqp-0-9-1, amqp-1.0"),
        ({"topic": "t"}, "topic", "RabbitMQ has exchanges: use 'exchange'"),
        ({"exchange": "e"}, "exchange", "set as well as 'queue'"),
        ({"routingKey": "k"}, "routingKey", "goes with 'exchange', not with 'queue'"),
        ({"queue": ""}, "queue", "is empty"),
        ({"queue": "q" * 256}, "queue", "has 256 bytes, but AMQP 0-9-1 allows at most 255"),
        ({"queu": "q"}, "queu", "did you mean 'queue'? The options for a write are queue, topic, exchange"),
        ({"sendTimeout": "0s"}, "sendTimeout", "'0s' is not accepted"),
        ({"sendTimeout": "5"}, "sendTimeout", "use a time with its unit"),
        ({"guarantee": "exactly-once"}, "guarantee", "is for reading"),
        ({"prefetch": "5"}, "prefetch", "is for reading"),
        ({"path": "orders"}, "path", "use .option('queue', 'orders') and save() without an argument"),
        ({"kafka.bootstrap.servers": "a"}, "kafka.bootstrap.servers", "use 'url'"),
        ({"password": "s3cret"}, "", ""),
        ({"tls.caFile": "/x"}, "tls.caFile", "is not a TLS URL"),
        ({"queue": "amqp://me:s3cret@host"}, "queue", "is a URL with a user"),
    ],
    ids=str,
)
def test_what_is_refused_of_rabbitmq(changes: dict[str, Any], option: str, words: str) -> None:
    if not option:
        assert parsed(RABBIT, **changes).endpoint.password == "s3cret"
        return
    found, problem = refused(RABBIT, **changes)
    assert (found, words in problem) == (option, True), problem


@pytest.mark.parametrize("name", ["a,b", "a.*", "a.>", "a?consumer.exclusive=true"])
def test_a_name_that_is_several_on_classic_is_refused(name: str) -> None:
    classic = {"broker": "activemq", "url": "stomp://localhost"}
    escaped = name.replace(",", "\\,")
    assert "are wildcards or parameters" in refused(classic, queue=escaped)[1]
    assert "are wildcards or parameters" in refused(classic, topic=name)[1]
    if name == "a.*":
        assert "has a wildcard" in refused(ARTEMIS, queue=name)[1]
    else:
        assert parsed({**ARTEMIS, "queue": escaped}).queue == name


@pytest.mark.parametrize("given", [RABBIT, ARTEMIS])
def test_several_names_are_for_the_source_and_a_comma_within_one_is_escaped(given: dict[str, str]) -> None:
    assert "names 2 queues, but a write has one" in refused(given, queue="a,b")[1]
    assert parsed(given, queue="a\\,b").queue == "a,b"


def test_an_option_names_a_queue_and_not_another_kind() -> None:
    assert "set 'topic' to 'prices'" in refused(ARTEMIS, queue="topic://prices")[1]
    assert "name it in column 'queue'" in refused(ARTEMIS, queue="temp-queue://x")[1]
    assert parsed(ARTEMIS, queue="queue://prices").queue == "prices"
    assert parsed(RABBIT, queue="topic://prices").queue == "topic://prices"


@pytest.mark.parametrize(
    ("changes", "option", "words"),
    [
        ({"exchange": "e"}, "exchange", "it has topics: use 'topic', or 'queue'"),
        ({"routingKey": "k"}, "routingKey", "has no routing keys"),
        ({"topic": "t"}, "topic", "set as well as 'queue'"),
        ({"url": "amqp://localhost/vhost"}, "url", "has no virtual hosts"),
        ({"protocol": "amqp-0-9-1"}, "protocol", "use one of: amqp-1.0"),
    ],
    ids=str,
)
def test_what_is_refused_of_artemis(changes: dict[str, Any], option: str, words: str) -> None:
    found, problem = refused(ARTEMIS, **changes)
    assert (found, words in problem) == (option, True), problem


def test_a_query_has_no_write_id() -> None:
    assert refused(RABBIT, streaming=True, writeId="x") == (
        "writeId",
        "is for batch writes: a query numbers its batches in its checkpoint",
    )


def test_every_option_has_a_text() -> None:
    assert all(option.text and option.section for option in SINK_OPTIONS.values())


# -- the source of Spark, which is not told whether it reads or writes


def test_one_source_reads_and_writes_and_each_checks_its_own_options() -> None:
    source = MqDataSource({**RABBIT, "writeId": "nightly"})
    assert source.writer(BODY, overwrite=False)
    with pytest.raises(OptionError, match=r"option 'writeId': is unknown"):
        MqDataSource({**RABBIT, "writeId": "nightly"}).schema()
    with pytest.raises(OptionError, match=r"option 'prefetch': is for reading"):
        MqDataSource({**RABBIT, "prefetch": "7"}).streamWriter(BODY, overwrite=False)
    assert MqDataSource({**RABBIT, "checkpointLocation": "/c", "prefetch": "7"}).schema().names


@pytest.mark.parametrize("way", ["writer", "streamWriter"])
def test_modes_other_than_append_are_refused_with_the_way(way: str) -> None:
    with pytest.raises(ConfigurationError, match=r"use mode 'append'.*foreachBatch"):
        getattr(MqDataSource(RABBIT), way)(BODY, overwrite=True)


@pytest.mark.parametrize("way", ["writer", "streamWriter"])
def test_columns_are_checked_when_a_writer_is_made(way: str) -> None:
    with pytest.raises(SchemaError, match="did you mean 'body'"):
        getattr(MqDataSource(RABBIT), way)(StructType().add("bodi", "binary"), overwrite=False)
