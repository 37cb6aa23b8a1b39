"""Options: what is taken, what is refused and with which words, and that no word is a password."""

from __future__ import annotations

import dataclasses
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_mq.brokers import BROKERS
from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.errors import OptionError
from pyspark_mq.sources.settings import Guarantee, OnUnreadable, Settings
from pyspark_mq.spark_source import option_table
from pyspark_mq.spark_source.option_table import OPTIONS as TABLE
from pyspark_mq.spark_source.options import Options, parse_options
from pyspark_mq.wire.endpoint import Endpoint
from tests.support.certificates import Certificates, make_certificates
from tests.support.effort import part_of
from tests.support.pages import block

OPTIONS_PAGE = Path(__file__).parents[2] / "docs" / "options.md"

NEEDED = {"broker": "rabbitmq", "url": "amqp://guest:guest@localhost:5672/", "queue": "orders"}
TOPIC = {"broker": "rabbitmq", "url": "amqp://localhost", "topic": "news", "subscription": "s1"}
TLS_URL = "amqps://localhost"

Getter = Callable[[Options], Any]


def parsed(*changes: dict[str, str], **given: str) -> Options:
    options = {**NEEDED, **given}
    for change in changes:
        options.update(change)
    return parse_options(options)


def start(value: str) -> str:
    return value[:40]


def refusal(options: dict[str, str]) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse_options(options)
    return caught.value


# -- what is taken ----------------------------------------------------------------------------


#: Of an option that has no default.
REQUIRED = object()
#: What is accepted, in the words of a refusal.
NUMBER = "a whole number from"
TIME = "a time with its unit such as"
SIZE = "a number of bytes above 0 such as"
FLAG = "true, false"


@dataclass(frozen=True)
class Row:
    """What is known of one option.

    Attributes:
        read: the value, out of the options that were parsed.
        default: the value if the option is not given; :data:`REQUIRED` if it has to be.
        taken: text of a user -> value.
        refused: text of a user -> part of the refusal that says what is accepted.
    """

    read: Getter
    default: object
    taken: Mapping[str, object] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


#: Every option, in the order of the error texts.
OPTIONS = {
    "broker": Row(
        lambda o: o.settings.endpoint.broker.name,
        REQUIRED,
        taken={"RabbitMQ": "rabbitmq"},
        refused={"kafka": "rabbitmq"},
    ),
    "url": Row(
        lambda o: [str(url) for url in o.settings.endpoint.urls],
        REQUIRED,
        taken={
            "AMQP://Example.org": ["amqp://example.org:5672"],
            " amqp://a:1/v , amqp://b/v ": ["amqp://a:1/v", "amqp://b:5672/v"],
        },
        refused={"http://localhost:5672": "amqp://", "localhost:5672": "amqp://"},
    ),
    "protocol": Row(
        lambda o: o.settings.endpoint.protocol,
        "amqp-0-9-1",
        taken={"AMQP-0-9-1": "amqp-0-9-1"},
        refused={"mqtt": "amqp-0-9-1"},
    ),
    "username": Row(lambda o: o.settings.endpoint.username, None, taken={"jörg": "jörg", " spaced ": " spaced "}),
    "password": Row(lambda o: o.settings.endpoint.password, None),
    "passwordFile": Row(lambda o: o.settings.endpoint.password_file, None),
    "queue": Row(lambda o: o.settings.endpoint.queue, REQUIRED, taken={"a queue/with:signs": "a queue/with:signs"}),
    "queuePattern": Row(
        lambda o: o.settings.pattern, None, refused={"orders-(": "Python's syntax", "[[": "match the whole name"}
    ),
    "queuePatternInterval": Row(lambda o: o.settings.pattern_interval_s, 60.0, refused={"1": TIME, "999ms": "from 1s"}),
    "managementUrl": Row(
        lambda o: o.management,
        None,
        refused={"host:15672": "for example, http://host:15672", "ftp://host/": "for example, http://host:15672"},
    ),
    "managementInterval": Row(lambda o: o.settings.management_interval_s, 5.0, refused={"5": TIME, "999ms": "from 1s"}),
    "topic": Row(lambda o: o.settings.endpoint.topic, None),
    "subscription": Row(lambda o: o.settings.endpoint.subscription, None),
    "selector": Row(lambda o: o.settings.endpoint.selector, None),
    "includeMetadata": Row(
        lambda o: o.include_metadata, False, taken={"True": True, "false": False}, refused={"yes": FLAG}
    ),
    "guarantee": Row(
        lambda o: o.settings.guarantee,
        Guarantee.EXACTLY_ONCE,
        taken={
            "at-least-once": Guarantee.AT_LEAST_ONCE,
            "None": Guarantee.NONE,
            "EXACTLY-ONCE": Guarantee.EXACTLY_ONCE,
        },
        refused={"Twice": "exactly-once, at-least-once, none"},
    ),
    "messageIdFrom": Row(
        lambda o: o.settings.id_source,
        IdSource("message-id"),
        taken={
            "Message-ID": IdSource("message-id"),
            "correlation-id": IdSource("correlation-id"),
            "Content": IdSource("content"),
            "json:$.order.id": IdSource("json", "order.id"),
            "JSON:id": IdSource("json", "id"),
            "property:orderId": IdSource("property", "orderId"),
            "PROPERTY:a:b": IdSource("property", "a:b"),
        },
        refused={
            "Message_ID": "message-id, correlation-id, property:<name>, json:$.<name>.<name>, content",
            "property:": "message-id, correlation-id, property:<name>, json:$.<name>.<name>, content",
            "json:$.a..b": "json:$.<name>.<name>",
            "property": "property:<name>",
        },
    ),
    "onMissingMessageId": Row(
        lambda o: o.settings.on_missing,
        OnMissing.CONTENT,
        taken={"Fail": OnMissing.FAIL, "row": OnMissing.ROW, "reject": OnMissing.REJECT},
        refused={"ignore": "content, fail, reject, row", "body-hash": "content, fail, reject, row"},
    ),
    "onUnreadableMessage": Row(
        lambda o: o.settings.on_unreadable,
        OnUnreadable.FAIL,
        taken={"Row": OnUnreadable.ROW, "reject": OnUnreadable.REJECT},
        refused={"skip": "fail, reject, row"},
    ),
    "maxMessagesPerTrigger": Row(
        lambda o: o.settings.max_messages,
        50_000,
        taken={"1": 1, " 10000 ": 10_000},
        refused={
            "0": NUMBER,
            "-1": NUMBER,
            "1.5": NUMBER,
            "1_000": NUMBER,
            "many": NUMBER,
            "٣": NUMBER,
            "1000000001": NUMBER,
            "9" * 5000: NUMBER,
        },
    ),
    "maxBytesPerTrigger": Row(
        lambda o: o.settings.max_bytes,
        64 * 1024 * 1024,
        taken={
            "1": 1,
            "512k": 512 << 10,
            "512KB": 512 << 10,
            "64MiB": 64 << 20,
            "64 mb": 64 << 20,
            "2g": 2 << 30,
            "10b": 10,
        },
        refused={"0": SIZE, "0g": SIZE, "-1m": SIZE, "1.5m": SIZE, "64x": SIZE, "9" * 5000: SIZE},
    ),
    "maxPartitionBytes": Row(
        lambda o: o.settings.max_partition_bytes,
        120 << 20,
        taken={"7m": 7 << 20, "1g": 1 << 30},
        refused={"0": SIZE, "many": SIZE},
    ),
    "minMessagesPerTrigger": Row(lambda o: o.settings.min_messages, 1, taken={"50000": 50_000}, refused={"0": NUMBER}),
    "maxTriggerDelay": Row(
        lambda o: o.settings.max_delay_s,
        15 * 60.0,
        taken={
            "0s": 0.0,
            "500ms": 0.5,
            "90 S": 90.0,
            "1.5m": 90.0,
            "2min": 120.0,
            "1h": 3600.0,
            "365d": 365 * 86_400.0,
        },
        refused={
            "15": TIME,
            "-1s": TIME,
            "1 week": TIME,
            "nan": TIME,
            "1e3s": TIME,
            "366d": TIME,
            "9" * 5000 + "s": TIME,
        },
    ),
    "prefetch": Row(
        lambda o: o.settings.prefetch,
        65_535,
        taken={"1": 1, "65535": 65_535},
        refused={"0": NUMBER, "65536": "from 1 to 65535"},
    ),
    "consumers": Row(lambda o: o.settings.consumers, 1, taken={"64": 64}, refused={"0": NUMBER, "65": "from 1 to 64"}),
    "numPartitions": Row(
        lambda o: o.num_partitions, None, taken={"10000": 10_000}, refused={"0": NUMBER, "10001": "from 1 to 10000"}
    ),
    "dedupWindow": Row(lambda o: o.settings.dedup_window, 100_000, taken={"0": 0}, refused={"-1": "from 0 to"}),
    "settleGrace": Row(lambda o: o.settings.settle_grace_s, 5.0, taken={"0s": 0.0}, refused={"5": TIME}),
    "settleAfter": Row(
        lambda o: o.settings.syncs,
        False,
        taken={"Committed": False},
        refused={"fsync": "use one of: committed, synced"},
    ),
    "dedupStore": Row(
        lambda o: o.dedup_store,
        "checkpoint",
        taken={
            "Checkpoint": "checkpoint",
            "redis://:pw@host:6379/0": "redis://:pw@host:6379/0",
            "REDISS://Host/1": "rediss://Host/1",
        },
        refused={
            "memory": "checkpoint, redis://host:port/db",
            "postgres://host/db": "checkpoint, redis://host:port/db",
            "redis://": "%2F",
        },
    ),
    "dedupStorePasswordFile": Row(lambda o: o.dedup_secret, None),
    "checkpointLocation": Row(
        lambda o: o.id_log,
        None,
        taken={
            "/data/checkpoint": "/data/checkpoint/mq-ids",
            "file:/data/checkpoint/": "/data/checkpoint/mq-ids",
            "file:///data/checkpoint": "/data/checkpoint/mq-ids",
            "FILE:///data/./a/../my%20job?x=[1]": "/data/my%20job?x=[1]/mq-ids",
            "/data/größe #1?": "/data/größe #1?/mq-ids",
            "s3a://bucket/a?region=x": "s3://bucket/a/mq-ids?region=x",
            "s3a://bucket//my job/%3D/": "s3://bucket/my job/%3D/mq-ids",
            "s3n://bucket": "s3://bucket/mq-ids",
            "s3://bucket/a?b/c?region=x&scheme=http": "s3://bucket/a?b/c/mq-ids?region=x&scheme=http",
            "abfss://c@a.dfs.core.windows.net/a b": "abfss://c@a.dfs.core.windows.net/a b/mq-ids",
            "hdfs:/data": "hdfs:///data/mq-ids",
        },
        refused={
            "checkpoint": "an absolute path",
            "dbfs:/tmp/ck": "/Volumes/<catalog>/<schema>/<volume>",
            "dbfs:/Volumes/a/b/c": "/Volumes/<catalog>/<schema>/<volume>",
            "wasbs://account/ck": "abfss://<container>@<account>.dfs.core.windows.net",
            "WASB:/ck": "abfss://<container>@<account>.dfs.core.windows.net",
            "oss://bucket/ck": "s3://, s3a://, gs://, abfss://, hdfs://",
            "file://host/ck": "names a host",
            "s3:/bucket/ck": "does not name a bucket",
        },
    ),
    "idLog": Row(
        lambda o: o.id_log,
        None,
        taken={"/data/ids": "/data/ids", "s3a://bucket/my ids": "s3://bucket/my ids"},
        refused={"ids": "an absolute path", "./data/ids": "pyarrow.fs", "dbfs:/ids": "/Volumes"},
    ),
    "failOnDataLoss": Row(
        lambda o: o.settings.fail_on_data_loss, True, taken={"FALSE": False, "true": True}, refused={"yes": FLAG}
    ),
    "replayTimeout": Row(
        lambda o: o.settings.replay_timeout_s, 300.0, taken={"1s": 1.0}, refused={"0s": "from 1s", "999ms": "from 1s"}
    ),
    "connectTimeout": Row(
        lambda o: o.settings.endpoint.connect_timeout_s, 30.0, taken={"100ms": 0.1}, refused={"0s": "from 0.1s"}
    ),
    "heartbeat": Row(
        lambda o: o.settings.endpoint.heartbeat_s,
        60.0,
        taken={"1s": 1.0, "65535s": 65_535.0},
        refused={"0s": "from 1s to 65535s", "1d": "from 1s to 65535s"},
    ),
    "reconnectTimeout": Row(
        lambda o: o.settings.endpoint.reconnect_timeout_s, 600.0, taken={"100ms": 0.1}, refused={"99ms": "from 0.1s"}
    ),
    "tls.caFile": Row(lambda o: o.settings.endpoint.tls.ca_file, None),
    "tls.certFile": Row(lambda o: o.settings.endpoint.tls.cert_file, None),
    "tls.keyFile": Row(lambda o: o.settings.endpoint.tls.key_file, None),
    "tls.verify": Row(lambda o: o.settings.endpoint.tls.verify, True),
}
NAMES = tuple(OPTIONS)
DEFAULTS = [name for name, row in OPTIONS.items() if row.default is not REQUIRED]
TAKEN = [(name, text, value) for name, row in OPTIONS.items() for text, value in row.taken.items()]
REFUSED = [(name, text, accepted) for name, row in OPTIONS.items() for text, accepted in row.refused.items()]


def test_the_options_are_these_in_this_order() -> None:
    assert tuple(TABLE) == NAMES


def test_the_documentation_has_every_option_once_and_no_other() -> None:
    section = OPTIONS_PAGE.read_text("utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\| option \|.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    rows = [row.partition("|")[2].partition("|")[0] for table in tables for row in table.splitlines()[1:]]
    assert sorted(name for row in rows for name in re.findall(r"`([\w.]+)`", row)) == sorted(NAMES)


def test_what_an_option_sets_is_a_field() -> None:
    known = {one.name for of in (Settings, Endpoint) for one in dataclasses.fields(of)}
    assert {option.sets for option in option_table.OPTIONS.values() if option.sets} <= known


def test_every_option_but_the_required_ones_has_a_checked_default() -> None:
    assert set(NAMES) - set(DEFAULTS) == set(NEEDED)


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_is_the_documented_one(name: str) -> None:
    assert OPTIONS[name].read(parsed()) == OPTIONS[name].default


@pytest.mark.parametrize(("name", "text", "value"), TAKEN)
def test_a_value_is_taken_as(name: str, text: str, value: object) -> None:
    assert OPTIONS[name].read(parsed({name: text})) == value


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.swapcase])
def test_names_are_case_insensitive(spell: Callable[[str], str]) -> None:
    given = {**NEEDED, "maxMessagesPerTrigger": "7", "messageIdFrom": "correlation-id", "settleGrace": "1s"}
    assert parse_options({spell(name): value for name, value in given.items()}) == parse_options(given)


def test_a_topic_is_read_through_its_subscription() -> None:
    endpoint = parse_options(TOPIC).settings.endpoint
    assert (endpoint.queue, endpoint.topic, endpoint.subscription) == (None, "news", "s1")
    assert endpoint.destination == "topic 'news' (subscription 's1')"
    assert endpoint.name == "news"


def test_a_topic_needs_no_subscription_without_a_guarantee() -> None:
    options = parse_options({"broker": "rabbitmq", "url": "amqp://h", "topic": "news", "guarantee": "none"})
    assert options.settings.endpoint.subscription is None
    assert options.settings.endpoint.destination == "topic 'news'"


def test_the_prefetch_is_twice_an_epoch_within_what_the_broker_takes() -> None:
    assert parsed(maxMessagesPerTrigger="100").settings.prefetch == 200
    assert parsed(maxMessagesPerTrigger="40000").settings.prefetch == 65_535


def test_an_epoch_holds_no_more_than_may_be_unacknowledged() -> None:
    assert parsed(prefetch="100").settings.max_messages == 100
    assert parsed(prefetch="100", consumers="3").settings.max_messages == 300
    assert parsed(prefetch="100", consumers="3", maxMessagesPerTrigger="20").settings.max_messages == 20


def test_the_options_of_the_page_hold_ten_seconds_of_messages_of_4_kib() -> None:
    names: dict[str, Any] = {}
    exec(block("docs/tuning.md", "options = {"), names)
    found = parsed(names["options"]).settings
    messages, id_bytes, own_bytes = 50_000, 36, 330
    assert found.max_bytes >= messages * (4_096 + id_bytes + own_bytes)
    # The window is cut into equal epochs, as few as `maxMessagesPerTrigger` allows.
    assert found.window // -(-found.window // found.max_messages) >= messages


def test_the_size_of_an_epoch_is_by_default_that_of_the_broker() -> None:
    assert parsed().settings.max_messages == BROKERS["rabbitmq"].epoch_messages


def test_user_and_password_may_come_beside_the_url() -> None:
    endpoint = parsed(url="amqp://host", username="u", password="p w").settings.endpoint
    assert (endpoint.username, endpoint.password) == ("u", "p w")


def test_a_password_alone_goes_with_the_user_of_the_url() -> None:
    endpoint = parsed(url="amqp://u@host", password="pw").settings.endpoint
    assert (endpoint.urls[0].username, endpoint.password) == ("u", "pw")


def test_an_empty_password_is_one() -> None:
    assert parsed(username="u", password="").settings.endpoint.password == ""


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text", "accepted"), REFUSED, ids=start)
def test_a_bad_value_is_refused_with_option_value_and_what_is_accepted(name: str, text: str, accepted: str) -> None:
    error = refusal({**NEEDED, name: text})
    assert error.option == name
    assert f"option '{name}': {text!r}" in str(error)
    assert accepted in str(error)


def test_every_option_with_a_form_has_a_bad_value_among_the_tests() -> None:
    free = {"username", "password", "queue", "topic", "subscription", "selector"}
    files = {name for name in NAMES if name.startswith("tls.") or name.endswith("asswordFile")}
    assert {name for name, _, _ in REFUSED} == set(NAMES) - free - files


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"username", "password"}])
def test_an_empty_value_is_refused(name: str) -> None:
    options = TOPIC if name in {"topic", "subscription"} else NEEDED
    options = {**options, "url": TLS_URL if name.startswith("tls.") else options["url"], name: "  "}
    assert str(refusal(options)) == f"[mq:option] option '{name}': is empty"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b", ("a", "b")),
        (" a , b b ,c", ("a", "b b", "c")),
        ("a\\,b,c", ("a,b", "c")),
        ("a\\b,c", ("a\\b", "c")),
    ],
)
def test_several_queues(text: str, names: tuple[str, ...]) -> None:
    settings = parsed(queue=text).settings
    assert settings.queues == names
    assert [one.endpoint.queue for one in settings.by_queue()] == list(names)
    assert settings.destination == f"queues {', '.join(map(repr, names))}"


def test_one_queue_may_have_a_comma_in_its_name() -> None:
    settings = parsed(queue="a\\,b").settings
    assert (settings.queues, settings.endpoint.queue) == ((), "a,b")
    (one,) = settings.by_queue()
    assert one is settings


def test_what_is_synced_is_noted_beside_the_checkpoint() -> None:
    assert parsed(settleAfter="Synced", checkpointLocation="/data/orders").settings.syncs
    assert parsed(settleAfter="synced", checkpointLocation="file:///data/orders").settings.syncs


@pytest.mark.parametrize(
    ("given", "option", "words"),
    [
        ({"queue": "a,,b"}, "queue", "empty name"),
        ({"queue": "a,"}, "queue", "empty name"),
        ({"queue": "a,b,a"}, "queue", "'a' more than once"),
        ({"queue": ",".join(map(str, range(257)))}, "queue", "more than 256 connections"),
        ({"queue": ",".join(map(str, range(65))), "consumers": "4"}, "queue", "65 queues with 4 consumer(s)"),
        ({"queuePattern": "a.*"}, "queuePattern", "'queue' are both set"),
        ({"managementUrl": "http://host/?x=1"}, "managementUrl", "'http://host/?***' is not accepted"),
        ({"managementUrl": "http://joe:hushhush@host:port"}, "managementUrl", "'http://***@***' is not accepted"),
        ({"queuePatternInterval": "5s"}, "queuePatternInterval", "needs 'queuePattern'"),
        ({"managementInterval": "5s"}, "managementInterval", "needs 'managementUrl'"),
        ({"settleAfter": "synced"}, "settleAfter", "Set 'checkpointLocation'"),
        ({"settleAfter": "synced", "idLog": "s3://bucket/ids"}, "settleAfter", "on this machine's disk"),
        (
            {"settleAfter": "synced", "checkpointLocation": "/data/o", "idLog": "/data/ids"},
            "settleAfter",
            "do not set 'idLog'",
        ),
    ],
    ids=[
        "gap",
        "end",
        "twice",
        "many",
        "many connections",
        "both",
        "parameters",
        "port",
        "interval",
        "management",
        "not noted",
        "elsewhere",
        "shared",
    ],
)
def test_names_that_cannot_be_read_together_are_refused(given: dict[str, str], option: str, words: str) -> None:
    error = refusal({**NEEDED, **given})
    assert error.option == option
    assert words in str(error)


def test_a_pattern_needs_a_place_to_look_and_has_the_login_of_the_connection() -> None:
    by_name = {"broker": "artemis", "url": "amqp://joe:hushhush@host", "queuePattern": "a.*"}
    assert str(refusal(by_name)).endswith("for example http://host:8161/console/jolokia")
    management = parse_options({**by_name, "managementUrl": "http://h:1/x/"}).management
    assert management is not None
    assert (management.url, *management.credentials()) == ("http://h:1/x", "joe", "hushhush")
    assert "hushhush" not in repr(management)
    management = parse_options({**by_name, "managementUrl": "https://ann:s%40crets@h/x"}).management
    assert management is not None
    assert (management.url, *management.credentials()) == ("https://h/x", "ann", "s@crets")
    assert parsed(managementUrl="http://h:1").management is not None  # the command `doctor` asks there


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("que", "queue"),
        ("quue", "queue"),
        ("maxMessagePerTrigger", "maxMessagesPerTrigger"),
        ("MAXMESSAGEPERTRIGGER", "maxMessagesPerTrigger"),
        ("tls.cafile.", "tls.caFile"),
        ("tlsVerify", "tls.verify"),
        ("dedup_window", "dedupWindow"),
        ("pasword", "password"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(wrong: str, meant: str) -> None:
    error = refusal({**NEEDED, wrong: "x"})
    assert error.option == wrong
    assert f"option '{wrong}': is unknown; did you mean '{meant}'?" in str(error)


def test_a_path_is_no_queue() -> None:
    error = refusal({**NEEDED, "path": "orders"})
    assert error.option == "path"
    assert ".option('queue', 'orders')" in str(error)


@pytest.mark.parametrize(
    ("theirs", "advice"),
    [
        ("subscribe", "'queue'"),
        ("subscribePattern", "'queuePattern'"),
        ("startingOffsets", "a queue has no offsets"),
        ("maxOffsetsPerTrigger", "'maxMessagesPerTrigger'"),
        ("minPartitions", "'numPartitions'"),
        ("kafka.bootstrap.servers", "'url'"),
        ("kafka.security.protocol", "'tls.*'"),
        ("includeHeaders", "column 'properties'"),
        ("groupIdPrefix", "no consumer groups"),
        ("host", "is part of 'url'"),
        ("virtualHost", "is part of 'url'"),
        ("user", "'username'"),
        ("exchange", "bind a queue to the exchange"),
    ],
)
def test_names_of_other_sources_and_clients_get_the_name_here(theirs: str, advice: str) -> None:
    error = refusal({**NEEDED, theirs: "x"})
    assert error.option == theirs
    assert advice in str(error)
    assert "is unknown" not in str(error)


def test_an_unknown_option_like_no_other_is_refused_with_all_known_ones() -> None:
    text = str(refusal({**NEEDED, "zzz": "x"}))
    assert "is unknown" in text
    assert "did you mean" not in text
    assert all(name in text for name in NAMES)


@pytest.mark.parametrize(("name", "example"), [("broker", "rabbitmq"), ("url", "amqp://"), ("queue", "topic")])
def test_a_required_option_that_is_missing_is_named(name: str, example: str) -> None:
    error = refusal({other: value for other, value in NEEDED.items() if other != name})
    assert error.option == name
    assert "is required" in str(error)
    assert example in str(error)


def test_queue_and_topic_together_are_refused() -> None:
    error = refusal({**NEEDED, "topic": "news"})
    assert error.option == "topic"
    assert "'news'" in str(error)
    assert "'orders'" in str(error)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_topic_without_subscription_is_refused_under_a_guarantee(guarantee: str) -> None:
    options = {"broker": "rabbitmq", "url": "amqp://h", "topic": "news", "guarantee": guarantee}
    error = refusal(options)
    assert error.option == "subscription"
    assert "'news'" in str(error)
    assert f"'{guarantee}'" in str(error)


def test_a_subscription_of_a_queue_is_refused() -> None:
    error = refusal({**NEEDED, "subscription": "s1"})
    assert error.option == "subscription"
    assert "'s1'" in str(error)
    assert "'orders'" in str(error)


def test_a_selector_is_refused_where_the_broker_has_none() -> None:
    error = refusal({**NEEDED, "selector": "a = 1"})
    assert error.option == "selector"
    assert "'rabbitmq'" in str(error)


def test_an_epoch_that_can_never_be_full_enough_is_refused() -> None:
    error = refusal({**NEEDED, "minMessagesPerTrigger": "11", "maxMessagesPerTrigger": "10"})
    assert error.option == "minMessagesPerTrigger"
    assert "11 can never be reached: an epoch holds at most 10 messages" in str(error)


def test_an_epoch_that_the_prefetch_keeps_from_being_full_enough_is_refused() -> None:
    error = refusal({**NEEDED, "minMessagesPerTrigger": "11", "prefetch": "5", "consumers": "2"})
    assert error.option == "minMessagesPerTrigger"
    assert "at most 10 messages" in str(error)


@pytest.mark.parametrize(
    ("urls", "given", "what"),
    [
        ("amqp://joe:hushhush@one,amqp://two", {}, "user for amqp://one:5672 but not for amqp://two:5672"),
        ("amqp://one,amqp://joe:hushhush@two", {}, "user for amqp://two:5672 but not for amqp://one:5672"),
        ("amqp://joe@one,amqp://two", {"password": "hushhush"}, "user for amqp://one:5672 but not for"),
        ("amqp://joe:hushhush@one,amqp://joe@two", {}, "password for amqp://one:5672 but not for"),
        ("amqp://joe:hushhush@one,amqp://two", {"username": "ann"}, "password for amqp://one:5672 but not for"),
    ],
)
def test_each_of_several_urls_has_a_login_or_none(urls: str, given: dict[str, str], what: str) -> None:
    error = refusal({**NEEDED, "url": urls, **given})
    assert error.option == "url"
    assert f"names a {what}" in str(error)
    assert "'username' and 'password'" in str(error)
    assert "hushhush" not in str(error)


def test_urls_share_the_login_of_options_or_have_their_own() -> None:
    shared = parsed(url="amqp://joe:a@one,amqp://two", username="ann", password="b").settings.endpoint
    assert [shared.credentials(url) for url in shared.urls] == [("ann", "b")] * 2
    own = parsed(url="amqp://joe:a@one,amqp://ann:b@two").settings.endpoint
    assert [own.credentials(url) for url in own.urls] == [("joe", "a"), ("ann", "b")]
    nobody = parsed(url="amqp://one,amqp://two").settings.endpoint
    assert [nobody.credentials(url) for url in nobody.urls] == [(None, None)] * 2


@pytest.mark.parametrize("url", ["redis://host:port/0", "redis://host:0", "redis://:pa/ss@host", "redis://[::1"])
def test_a_shared_store_with_a_malformed_url_is_refused(url: str) -> None:
    error = refusal({**NEEDED, "dedupStore": url})
    assert error.option == "dedupStore"
    assert "is not a URL" in str(error)
    assert "'/' as %2F" in str(error)


@pytest.mark.parametrize("guarantee", ["at-least-once", "none"])
def test_a_shared_store_is_refused_where_nothing_is_identified(guarantee: str) -> None:
    error = refusal({**NEEDED, "dedupStore": "redis://host:6379/0", "guarantee": guarantee})
    assert error.option == "dedupStore"
    assert f"'{guarantee}'" in str(error)


def test_a_file_with_the_password_for_redis_needs_a_redis_without_one(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hushhush")
    given = {**NEEDED, "dedupStorePasswordFile": str(file)}
    for store, problem in (("checkpoint", "is not a Redis URL"), ("redis://:hushhush@host", "set only one")):
        error = refusal({**given, "dedupStore": store})
        assert (error.option, problem in str(error), "hush" in str(error)) == ("dedupStorePasswordFile", True, False)
    assert parsed({"dedupStore": "redis://host", "dedupStorePasswordFile": str(file)}).dedup_secret == str(file)
    file.unlink()
    assert "cannot be read" in str(refusal({**given, "dedupStore": "redis://host"}))


def test_a_password_without_a_user_is_refused() -> None:
    error = refusal({**NEEDED, "url": "amqp://host", "password": "hush-hush"})
    assert error.option == "password"
    assert "'username'" in str(error)
    assert "hush" not in str(error)


# -- TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = make_certificates(tmp_path_factory.mktemp("certificates"))
    return {
        "tls.caFile": str(made.ca.cert_file),
        "tls.certFile": str(made.client.cert_file),
        "tls.keyFile": str(made.client.key_file),
    }


def test_tls_files_are_taken_with_a_tls_url(pem: dict[str, str]) -> None:
    options = parsed(pem, {"url": TLS_URL, "tls.verify": "false"})
    assert {name: OPTIONS[name].read(options) for name in pem} == pem
    context = options.settings.endpoint.tls.context()
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname


def test_certificates_and_host_names_are_verified_by_default(pem: dict[str, str]) -> None:
    context = parsed({"url": TLS_URL, "tls.caFile": pem["tls.caFile"]}).settings.endpoint.tls.context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1  # none of the system's


@pytest.mark.parametrize("name", ["tls.caFile", "tls.certFile", "tls.keyFile", "tls.verify"])
def test_a_tls_option_with_a_plain_url_is_refused(name: str) -> None:
    error = refusal({**NEEDED, name: "true"})
    assert error.option == name
    assert "amqp://localhost:5672 is not a TLS URL" in str(error)
    assert "amqps://" in str(error)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_an_authority_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    error = refusal({**NEEDED, "url": TLS_URL, "tls.caFile": str(file)})
    assert error.option == "tls.caFile"
    assert f"{str(file)!r} cannot be used" in str(error)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_certificate_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "cert.pem"
    if content is not None:
        file.write_text(content)
    error = refusal({**NEEDED, "url": TLS_URL, "tls.certFile": str(file)})
    assert error.option == "tls.certFile"
    assert f"{str(file)!r} with tls.keyFile None cannot be used" in str(error)


def test_a_key_file_that_is_missing_is_refused(pem: dict[str, str], tmp_path: Path) -> None:
    missing = str(tmp_path / "key.pem")
    error = refusal({**NEEDED, **pem, "url": TLS_URL, "tls.keyFile": missing})
    assert error.option == "tls.certFile"
    assert repr(missing) in str(error)


def test_a_key_without_its_certificate_is_refused() -> None:
    error = refusal({**NEEDED, "url": TLS_URL, "tls.keyFile": "key.pem"})
    assert error.option == "tls.keyFile"
    assert "'tls.certFile'" in str(error)


@pytest.mark.parametrize("text", ["no", "1"])
def test_a_flag_of_tls_is_true_or_false(text: str) -> None:
    error = refusal({**NEEDED, "url": TLS_URL, "tls.verify": text})
    assert error.option == "tls.verify"
    assert f"{text!r} is not accepted; use one of: true, false" in str(error)


# -- passwords --------------------------------------------------------------------------------

#: Between the two halves of a password: signs that mean something in an url, and others.
SIGNS = ["", "/", "//", "://", "?", "#", "@", ",", ", ", " ", ":", ";", "%", "%2F", "%zz", "&", "=", "+",
         "[", "]", "[]", "\\", '"', "'", "|", "\t", "\n", "é", "\u2100", "\0", "a/b?c#d@e,f g"]  # fmt: skip

URLS = [
    "amqp://user:{}@host:5672/vhost",
    "amqp://user:{}@host:5672/%2F",
    "amqp://user:{}@host",
    "amqp://user:{}@host:notaport/",
    "amqp://user:{}@host:99999/",
    "amqp://user:{}@host:0/",
    "amqp://user:{}@host:5672/vhost?heartbeat=5",
    "amqp://user:{}@host:5672/vhost#part",
    "amqp://user:{}@/vhost",
    "amqp://user:{}@:5672/vhost",
    "amqp://user:{}@[::1/vhost",
    "amqp://user:{}@[::1]:x/",
    "amqp://:{}@host",
    "amqp://{}@host",
    "amqp:/user:{}@host",
    "amqp:user:{}@host",
    "amqp//user:{}@host",
    "//user:{}@host",
    "user:{}@host:5672",
    "ampq://user:{}@host:5672/vhost",
    "http://user:{}@host",
    "amqp://host:5672/?user=user&password={}",
    "amqp://host:5672/#{}",
    "amqp://user:{}@a,amqp://user:{}@b:99999",
    "amqp://user:{}@a,amqp://user:{}@b",
    "amqp://user:{}@a,amqps://user:{}@b",
    "amqp://user:{}@a/v,amqp://user:{}@b/w",
    "amqp://good:guest@a,user:{}@b",
    "redis://user:{}@host:6379/0",
    "rediss://:{}@host:notaport/0",
    "redis://:{}@/0",
]
#: Nothing says where the password ends. One of digits alone would be a port, so it has letters.
URLS_OPEN = [
    "amqp://user:{}",
    "amqp://user:{}@",
    "redis://:{}@",
    "amqp://user:{}/vhost",
    "user:{}",
    "redis://user:{}",
]

HALVES = ("Xq7", "Zw9")
DIGITS = ("47114711", "08150815")


def shown_by(options: dict[str, str]) -> str:
    """Everything a user can be shown of these options, in lower case."""
    try:
        result = parse_options(options)
    except OptionError as error:
        # A traceback shows what led to the error, too, unless it is suppressed.
        context = "" if error.__suppress_context__ else repr(error.__context__)
        return f"{error} {error!r} {error.__cause__!r} {context}".lower()
    settings = result.settings
    endpoint = settings.endpoint
    things = [result, settings, endpoint, *endpoint.urls]
    return "".join([*map(repr, things), *map(str, things), endpoint.destination]).lower()


def assert_hidden(halves: tuple[str, str], options: dict[str, str]) -> None:
    shown = shown_by(options)
    assert not [half for half in halves if half.lower() in shown], shown


@pytest.mark.parametrize("halves", [HALVES, DIGITS])
@pytest.mark.parametrize("url", URLS)
def test_a_password_in_an_url_is_never_shown(url: str, halves: tuple[str, str]) -> None:
    for sign in SIGNS:
        text = url.replace("{}", sign.join(halves))
        assert_hidden(halves, {**NEEDED, "url": text})
        assert_hidden(halves, {**NEEDED, "dedupStore": text, "guarantee": "none"})
        assert_hidden(halves, {**NEEDED, "url": text, "tls.verify": "false"})


@pytest.mark.parametrize("url", URLS_OPEN)
def test_a_password_in_an_url_without_a_host_is_never_shown(url: str) -> None:
    for sign in SIGNS:
        # What is behind the last '@' is the host: nothing tells that it is not.
        if "@" not in sign:
            text = url.replace("{}", sign.join(HALVES))
            assert_hidden(HALVES, {**NEEDED, "url": text})
            assert_hidden(HALVES, {**NEEDED, "dedupStore": text})


@pytest.mark.parametrize(
    "others",
    [
        {"username": "u"},
        {"url": "amqp://host"},
        {"username": "u", "passwrd": "Xq7Zw9"},
        {"username": "u", "dedupStore": "redis://u:Xq7Zw9@host"},
        {"username": "Xq7", "topic": "t"},
    ],
)
def test_the_option_password_is_never_shown(others: dict[str, str]) -> None:
    assert_hidden(HALVES, {**NEEDED, "password": "Xq7/Zw9", **others})


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, _ in REFUSED], ids=start)
def test_no_refusal_of_another_option_shows_a_password(name: str, text: str) -> None:
    secret = "".join(HALVES)
    options = {
        "broker": "rabbitmq",
        "url": f"amqp://user:{secret}@host/",
        "username": "user",
        "password": secret,
        "queue": "orders",
        "dedupStore": f"redis://user:{secret}@host/0",
        name: text,
    }
    refusal(options)
    assert_hidden(HALVES, options)


def test_what_is_not_secret_is_shown() -> None:
    shown = shown_by({**NEEDED, "url": "amqp://user:Xq7@host.example:notaport/v"})
    assert "amqp://***" in shown
    shown = shown_by({**NEEDED, "url": "ampq://user:Xq7@host.example:5672/v"})
    assert "ampq://***@host.example:5672/v" in shown
    shown = shown_by({**NEEDED, "url": "amqp://user:Xq7@host.example:5672/v"})
    assert "amqp://host.example:5672/v" in shown


@pytest.mark.parametrize(
    "url", ["amqp://user:SECRET@host/", "user:SECRET@host", "amqp//user:SECRET@host:5672/x", " a:SECRET@h "]
)
def test_a_url_in_the_wrong_place_does_not_show_its_password(url: str) -> None:
    right = {"broker": "rabbitmq", "url": "amqp://host", "queue": "q"}
    refused: list[OptionError] = []
    for options in [*({**right, name: url} for name in NAMES), {**right, url: "x"}]:
        try:
            parse_options(options)
        except OptionError as wrong:
            refused.append(wrong)
    assert len(refused) > 20
    for error in refused:
        assert "SECRET" not in f"{error} {error!r} {error.option} {error.__cause__}"
        assert error.__suppress_context__


def test_ids_need_a_place_and_messages_without_need_none() -> None:
    for enough in ({"idLog": "/ids"}, {"checkpointLocation": "/a"}, {"guarantee": "at-least-once"}):
        parse_options({**NEEDED, **enough}).check_place()
    with pytest.raises(OptionError, match=r"is required on the source too.*'idLog'.*'at-least-once'") as wrong:
        parse_options(NEEDED).check_place()
    assert wrong.value.option == "checkpointLocation"
    assert parse_options({**NEEDED, "checkpointLocation": "/a", "idLog": "/b"}).id_log == "/b"


# -- a password in a file ---------------------------------------------------------------------


def test_a_password_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("one two\n")
    endpoint = parsed({"username": "joe", "passwordFile": str(file)}).settings.endpoint
    assert endpoint.credentials(endpoint.urls[0]) == ("joe", "one two")
    file.write_text("three")
    assert endpoint.credentials(endpoint.urls[0]) == ("joe", "three")
    assert "three" not in repr(endpoint)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_password_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    error = refusal({**NEEDED, "username": "joe", "passwordFile": str(file)})
    assert error.option == "passwordFile"
    assert str(file) in str(error)


def test_a_file_and_a_password_or_no_user_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hushhush")
    error = refusal({**NEEDED, "username": "joe", "password": "hushhush", "passwordFile": str(file)})
    assert "set only one of them" in str(error)
    assert "hushhush" not in str(error)
    error = refusal({**NEEDED, "url": "amqp://broker.example/", "passwordFile": str(file)})
    assert "is set without 'username'" in str(error)


# -- what nobody gives on purpose ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_nul_is_refused_in_every_option(name: str) -> None:
    error = refusal({**NEEDED, name: "a\0hushhush"})
    assert error.option == name
    assert "has a NUL" in str(error)
    assert name not in {"username", "password"} or "hushhush" not in str(error)


@pytest.mark.parametrize("text", ["queue\ud800", "\udcff"])
def test_half_a_character_is_refused(text: str) -> None:
    assert "surrogate" in str(refusal({**NEEDED, "queue": text}))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x0b", "\x7f"])
@pytest.mark.parametrize("name", ["username", "password", "subscription"])
def test_the_end_of_a_line_in_a_login_does_not_become_a_header(name: str, end: str) -> None:
    options = {"broker": "activemq", "url": "stomp://localhost", "topic": "news", "subscription": "s", "username": "u"}
    error = refusal({**options, name: f"hush{end}heart-beat:0,0"})
    assert error.option == name
    assert "leave it out" in str(error)
    assert name == "subscription" or "hush" not in str(error)


@pytest.mark.parametrize("secret", ["hush\nheart-beat:0,0", "hush\r\nx:y\n", "hu\0sh"])
def test_a_password_file_with_more_than_a_password_is_refused(secret: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(secret)
    error = refusal({**NEEDED, "username": "u", "passwordFile": str(file)})
    assert (error.option, str(file) in str(error), "hush" in str(error)) == ("passwordFile", True, False)


PATTERN = {"broker": "rabbitmq", "url": "amqp://h", "queuePattern": "a", "managementUrl": "http://h:1"}


@pytest.mark.parametrize(
    "pattern", ["a{99999999999}", "(" * 5_000 + ")" * 5_000, "(?L)a", "[", "a**", "(?P<n>a)(?P<n>b)", "\\8", "(?<=a+)b"]
)
def test_a_pattern_that_python_cannot_read_is_refused(pattern: str) -> None:
    options = {**PATTERN, "queuePattern": pattern}
    assert refusal(options).option == "queuePattern"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("queue", {"queue": "q" * 256}),
        ("queue", {"queue": "a,ü" + "ü" * 127}),
        ("topic", {"topic": "t" * 256, "subscription": "s"}),
        ("subscription", {"topic": "t", "subscription": "s" * 256}),
        ("url", {"queue": "q", "url": "amqp://h/" + "v" * 256}),
    ],
)
def test_a_name_that_amqp_0_9_1_has_no_room_for_is_refused(name: str, options: dict[str, str]) -> None:
    error = refusal({"broker": "rabbitmq", "url": "amqp://h", **options})
    assert error.option == name
    assert "256 bytes" in str(error)
    assert parse_options({"broker": "rabbitmq", "url": "amqp://h", "queue": "q" * 255})
    assert parse_options({"broker": "artemis", "url": "amqp://h", "queue": "q" * 256})


PASTED = [
    "amqp://u:hush,hush,hush@host/v", "amqp://u:hush\\,hush@host", "amqp://u:" + "hush" * 70 + "@host",
    "orders, amqp://u:hush@host", "amqp://u:hush@host,amqp://u:hush@host", "stomp+ssl://u:hush/hush@host",
    "x://u:hush hush@host",
]  # fmt: skip


@pytest.mark.parametrize("value", PASTED)
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"username", "password"}))
def test_a_url_that_was_given_as_another_option_is_never_shown_with_its_password(name: str, value: str) -> None:
    try:
        parsed = parse_options({**NEEDED, name: value})
    except OptionError as wrong:
        said = str(wrong) + repr(wrong) + wrong.problem
        assert "hush" not in said
    else:
        # Where a URL may be, and what is compared with one.
        assert name in {"url", "selector", "idLog", "checkpointLocation", "managementUrl"}
        assert "hush" not in repr(parsed) or name == "selector"


@pytest.mark.parametrize("name", ["queue", "topic", "subscription", "queuePattern", "tls.caFile", "messageIdFrom"])
def test_a_url_with_a_user_is_no_name(name: str) -> None:
    error = refusal({"broker": "artemis", "url": "amqp://h", name: "amqp://u:hush@host/v"})
    assert error.option == name
    assert "'amqp://***@host/v' is a URL with a user: set it as 'url'" in str(error)


def test_tls_options_count_for_the_management_beside_a_url_without_tls(certificates: Certificates) -> None:
    ca = str(certificates.ca.cert_file)
    options = {**NEEDED, "managementUrl": "https://h:15671", "tls.caFile": ca}
    assert parse_options(options).settings.endpoint.tls.ca_file == ca
    assert refusal({**options, "managementUrl": "http://h:15672"}).option == "tls.caFile"
    assert refusal({**options, "tls.caFile": "/nowhere"}).option == "tls.caFile"


@pytest.mark.parametrize(
    "url", ["http://u:9/s3cret@h", "http://u:9/s3cret@h:15672/x", "http://u:s3cret\n@h", "http://u:s3cret%0A@h",
            "http://h/a b", "http://h/\u00fc", "http://u:s3cret@", "http://[::1", "http://u:s3cret@h:99999"]
)  # fmt: skip
def test_a_management_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    error = refusal({**NEEDED, "managementUrl": url})
    assert error.option == "managementUrl"
    assert "s3cret" not in str(error) + repr(error)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://[::1]:15672", "http://[::1]:15672"), ("https://u:s3cret@[fe80::1]/x/", "https://[fe80::1]/x"),
        ("http://u:9%2Fs3cret@H:1", "http://h:1"),
    ],
)  # fmt: skip
def test_a_management_url_keeps_its_brackets_and_not_its_password(given: str, shown: str) -> None:
    management = parse_options({**NEEDED, "managementUrl": given}).management
    assert management is not None
    assert management.url == shown
    assert "s3cret" not in repr(management)


ODD_TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=30),
    st.text("a1.,:/@?#[]%(){}*+\\|^$-_ \n", max_size=40),
    st.sampled_from(["9" * 5_000, "a" * 300, ",", "amqp://", "http://[", "redis://:pw@", "(a+)+", "property:", "\\,"]),
)


@settings(max_examples=part_of(500), deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), ODD_TEXTS, max_size=5), st.sampled_from(["queue", "topic", "none"]))
@example({"checkpointLocation": "A://["}, "queue")
def test_whatever_is_given_is_taken_or_refused_in_words(options: dict[str, str], reads: str) -> None:
    base = {"queue": NEEDED, "topic": TOPIC, "none": {}}[reads]
    with suppress(OptionError):
        parse_options({**base, **options})
