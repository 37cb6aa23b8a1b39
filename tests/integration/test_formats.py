"""The recipes for a schema registry, run on messages of a real broker, with a registry of two calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.plugin import missing
from tests.support.pages import block

try:
    from fastavro import parse_schema, schemaless_writer
except ImportError:
    missing("fastavro is not installed: make setup")

PAGE = "docs/formats.md"
pytestmark = pytest.mark.whole

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEWEST = {**FIRST, "fields": [*FIRST["fields"], {"name": "item", "type": "string", "default": "none"}]}  # type: ignore[misc]
OTHER = {**FIRST, "fields": [{"name": "id", "type": "string"}]}
#: Number of a schema -> it; the newest is the last.
#: 9 cannot be converted to it.
SCHEMAS: Mapping[int, dict[str, Any]] = {7: FIRST, 9: OTHER, 300: NEWEST}


class Registry(BaseHTTPRequestHandler):
    """What the two calls of a registry of schemas answer."""

    def do_GET(self) -> None:
        """Answer with the schema in the form of Confluent's registry."""
        answers = {f"/schemas/ids/{number}": schema for number, schema in SCHEMAS.items()}
        answers["/subjects/orders-value/versions/latest"] = NEWEST
        found = answers.get(self.path)
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"schema": json.dumps(found)}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def read(spark: Any, rabbit: RabbitNode, name: str, tmp_path: Path) -> Callable[..., list[Any]]:
    """Publish bodies, run the block of the page that begins so, and return `order` of each row in order."""

    def run(begin: str, bodies: list[bytes], **names: Any) -> list[Any]:
        rabbit.publish(name, bodies)
        place = {"checkpointLocation": str(tmp_path / "checkpoint")}
        given = {"broker": "rabbitmq", "url": rabbit.url(), "queue": name, "maxMessagesPerTrigger": "1000"}
        messages = spark.readStream.format("mq").options(**given, **place).load()
        names |= {"spark": spark, "messages": messages, "__name__": "__main__"}
        # The JVM, which takes files, has a folder of its own.
        code = block(PAGE, begin).replace('"orders_pb2.py"', repr(str(tmp_path / "orders_pb2.py")))
        exec(compile(code, PAGE, "exec"), names)
        table = f"formats_{uuid.uuid4().hex[:8]}"
        query = names["rows"].writeStream.format("memory").queryName(table).options(**place).start()
        try:
            assert poll(lambda: spark.table(table).count() == len(bodies) or not query.isActive, 120)
        finally:
            query.stop()
        assert query.exception() is None
        return [row.order and tuple(row.order) for row in spark.table(table).collect()]

    return run


def framed(number: int, data: bytes) -> bytes:
    """As serializers of Confluent frame it."""
    return b"\0" + number.to_bytes(4, "big") + data


def avro(number: int, **values: object) -> bytes:
    written = BytesIO()
    schemaless_writer(written, parse_schema(dict(SCHEMAS[number])), values)
    return framed(number, written.getvalue())


def test_avro_of_two_schemas_has_the_columns_of_the_newest(read: Callable[..., list[Any]], registry: str) -> None:
    bodies = [avro(7, id=1), avro(300, id=2, item="tea"), b"", b"text", framed(300, b""), avro(7, id=-3)]
    bodies += [avro(9, id="x"), framed(10, b"\2")]
    assert read("import json", bodies, registry=registry) == [
        (1, "none"),
        (2, "tea"),
        None,
        None,
        None,
        (-3, "none"),
        None,
        None,
    ]


#: What protoc writes for this file, whose descriptor is filled in.
ORDERS_PB2 = """
from google.protobuf import descriptor_pool, symbol_database
from google.protobuf.internal import builder
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({descriptor!r})
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, "orders_pb2", globals())
"""


def orders_file() -> bytes:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    message.field.add(name="item", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    return file.SerializeToString()


def test_protobuf_is_read_by_its_class(read: Callable[..., list[Any]], tmp_path: Path) -> None:
    (tmp_path / "orders_pb2.py").write_text(ORDERS_PB2.format(descriptor=orders_file()), "utf-8")
    # 1: id, as a varint; 2: item, a text of three bytes; 9: a field that a newer schema has.
    tea, newer = b"\x08\x05\x12\x03tea", b"\x08\x06\x4a\x01x"
    bodies = [
        framed(1, b"\0" + tea),
        framed(2, b"\0" + newer),
        b"",
        framed(1, b"\x02\x02" + tea),
        framed(1, b"\0\x12\x09te"),
    ]
    found = read("from google.protobuf.message import DecodeError", bodies)
    assert found == [(5, "tea"), (6, ""), None, None, None]


def test_json_behind_the_number_of_its_schema(read: Callable[..., list[Any]]) -> None:
    good = json.dumps({"id": 4, "item": "tea"}).encode()
    found = read(
        "from pyspark.sql.functions import expr, from_json, when",
        [framed(1, good), b"", good, framed(1, b'{"id": 5'), framed(1, b'{"id": "x"}'), framed(1, b"\xff\xfe")],
    )
    assert found == [(4, "tea"), None, None, None, None, None]


def test_the_file_of_the_page_logs_everything(tmp_path: Path) -> None:
    page = "docs/tuning.md"
    (tmp_path / "sitecustomize.py").write_text(block(page, "# sitecustomize.py"), "utf-8")
    program = "import logging; logging.getLogger('pyspark_mq').debug('seen')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "DEBUG:pyspark_mq:seen" in done.stderr
    environment["PYTHONPATH"] = ""
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
