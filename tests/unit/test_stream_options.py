"""Options of streams, and offsets in the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import CheckpointError, OptionError
from pyspark_mq.spark_source.datasource import MqDataSource
from pyspark_mq.spark_source.option_table import OPTIONS
from pyspark_mq.spark_source.stream_options import STREAM_OPTIONS, is_stream, parse_stream_options
from pyspark_mq.streams.access import make_access
from pyspark_mq.streams.chunk import ChunkIdentity
from pyspark_mq.streams.offsets import EARLIEST, LATEST, StreamPosition, decode, encode
from pyspark_mq.streams.settings import Where

GIVEN = {"broker": "rabbitmq", "url": "rabbitmq-stream://me:s3cret@host/", "stream": "events"}
OF = "stream 'events' in virtual host '/'"


def test_the_url_tells_a_stream_from_a_queue() -> None:
    assert is_stream({"URL": " Rabbitmq-Stream://host"})
    assert is_stream({"url": "rabbitmq-stream+tls://host"})
    assert not is_stream({"url": "amqp://host"})
    assert not is_stream({"broker": "rabbitmq"})


def test_a_query_begins_at_the_end_and_a_batch_at_the_beginning() -> None:
    options = parse_stream_options(GIVEN)
    assert options.streaming.starting == Where(LATEST)
    assert options.batch.starting == Where(EARLIEST)
    assert options.batch.ending == Where(LATEST)


def test_positions_are_json_by_partition() -> None:
    settings = parse_stream_options({**GIVEN, "startingOffsets": '{"events": 500, "b": -2}'}).streaming
    assert settings.starting == Where(EARLIEST, {"events": 500, "b": EARLIEST})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingOffsets": "soon"}, "'soon' is not JSON"),
        ({"startingOffsets": "[1]"}, "names no partition"),
        ({"startingOffsets": '{"events": -3}'}, "-3 for partition 'events'"),
        ({"startingOffsets": '{"events": true}'}, "True for partition 'events'"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "as well as 'startingOffsets'"),
        ({"maxOffsetsPerTrigger": "0"}, "use a whole number from 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "can never be reached"),
        ({"onUnreadableMessage": "skip"}, "use one of: fail, row, reject"),
        # If it took time in the square of their length, these would take hours.
        ({"stream": "x" * 3_000_000}, "longer than 255 bytes"),
        ({"stream": "a://" * 500_000}, "longer than 255 bytes"),
        ({"stream": "a,,b"}, "empty name"),
        ({"stream": "a,a"}, "the same name twice"),
        ({"broker": "artemis"}, "use one of: rabbitmq"),
        ({"queue": "a"}, "name the stream with 'stream'"),
        ({"guarantee": "exactly-once"}, "leave it out"),
        ({"numPartitions": "3"}, "'minPartitions'"),
        ({"subscribe": "events"}, "use 'stream'"),
        ({"kafka.bootstrap.servers": "a:9092"}, "use 'url'"),
        ({"startOffsets": "latest"}, "did you mean 'startingOffsets'"),
        ({"tls.caFile": "/x"}, "use rabbitmq-stream[+]tls://"),
        ({"passwordFile": "/x", "password": "y"}, "set only one of them"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem) as wrong:
        parse_stream_options({**GIVEN, **options})
    assert "s3cret" not in str(wrong.value)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in STREAM_OPTIONS])
def test_each_option_of_queues_is_refused_with_words(name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}'.*(leave it out|name|for streams use)"):
        parse_stream_options({**GIVEN, name: "1"})


def test_a_stream_with_the_url_of_queues_is_told_which_url_reads_it() -> None:
    with pytest.raises(OptionError, match="'events': to read a stream, use a URL rabbitmq-stream://"):
        MqDataSource({**GIVEN, "url": "amqp://me:s3cret@host/"}).schema()


def test_a_stream_is_required() -> None:
    with pytest.raises(OptionError, match="'stream': is required"):
        parse_stream_options({"broker": "rabbitmq", "url": GIVEN["url"]})


def test_the_source_has_the_columns_of_streams() -> None:
    names = MqDataSource({**GIVEN}).schema().names
    assert {"body", "partition", "streamOffset", "chunkTimestamp"} <= set(names)
    assert not {"redelivered", "deliveryCount"} & set(names)
    assert "routingKey" in MqDataSource({**GIVEN, "includeMetadata": "true"}).schema().names


def test_a_password_is_in_no_text() -> None:
    settings = parse_stream_options(GIVEN).streaming
    access = make_access(settings.endpoint)
    assert access.password == "s3cret"
    assert "s3cret" not in f"{settings!r} {access!r} {settings.of}"


def test_an_offset_is_a_place_with_its_identity() -> None:
    places = {
        "b": StreamPosition(7),
        "a": StreamPosition(500, ChunkIdentity(480, 1_700, 3, 99), ChunkIdentity(0, 1_600, 1, 7)),
    }
    offset = encode(OF, places)
    assert json.dumps(offset["at"]) == (
        '{"a": {"next": 500, "last": [480, 1700, 3, 99], "first": [0, 1600, 1, 7]}, '
        '"b": {"next": 7, "last": null, "first": null}}'
    )
    assert decode(OF, json.loads(json.dumps(offset))) == places


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"v": 2}, "Upgrade"),
        ({"of": "stream 'b' in virtual host '/'"}, "the query reads"),
        ({"at": {"a": {"next": -1, "last": None, "first": None}}}, "broken"),
        ({"at": {"a": {"next": 1, "last": [1, 2, 3], "first": None}}}, "broken"),
        ({"at": {"a": {"next": 1}}}, "broken"),
        ({"at": []}, "broken"),
        ({"at": {"a": {"next": 1, "last": None, "first": [1, 2, 3, "4"]}}}, "broken"),
    ],
)
def test_an_offset_that_is_none_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        decode(OF, {**encode(OF, {"a": StreamPosition(1)}), **change})


def test_an_offset_of_queues_is_refused() -> None:
    with pytest.raises(CheckpointError, match="another source"):
        decode(OF, {"v": 4, "broker": "rabbitmq", "epoch": 3})


def test_the_page_has_each_option_with_its_text() -> None:
    page = (Path(__file__).parents[2] / "docs" / "streams.md").read_text("utf-8")
    missing = [option.name for option in STREAM_OPTIONS.values() if f"`{option.name}`" not in page]
    assert [name for name in missing if not name.startswith("tls.")] == []
    own = [option for name, option in STREAM_OPTIONS.items() if name not in OPTIONS or option is not OPTIONS[name]]
    assert [option.name for option in own if option.text not in page] == []
