"""Option `managementUrl` where no broker is: what another web server answers is refused in words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pyspark_mq.brokers import BROKERS
from pyspark_mq.errors import BrokerUnavailableError, RefusedError
from pyspark_mq.sources.inquiry import ask_queue, ask_server
from pyspark_mq.sources.management import Management
from pyspark_mq.spark_source.options import parse_options


class Web:
    """A web server that answers everything alike."""

    def __init__(self) -> None:
        self.code, self.body = 200, b""
        web = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(web.code)
                self.send_header("Content-Length", str(len(web.body)))
                self.end_headers()
                self.wfile.write(web.body)

            def do_GET(self) -> None:
                self.answer()

            def do_POST(self) -> None:
                self.answer()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.close()


def management(broker: str, url: str) -> Management:
    found = parse_options(
        {"broker": broker, "url": "amqp://joe:hushhush@host", "queue": "q", "managementUrl": url}
    ).settings.management
    assert found is not None
    return found


ODD = [
    b"", b"<html>", b"null", b"7", b'"text"', b"[]", b"[7]", b"{}", b'{"items":7}', b'{"items":[7]}',
    b'{"items":[{}]}', b'{"items":[{"name":7}]}', b'{"rabbitmq_version":7,"arguments":7}',
    b'{"status":200}', b'{"status":200,"value":7}', b'{"status":200,"value":{"a":7}}',
    b'{"status":200,"value":{"a":{}}}', b'{"status":404,"error":"no"}', b'{"status":200,"value":{"a":{"Name":7}}}',
]  # fmt: skip


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("body", ODD)
def test_an_answer_of_something_else_is_refused_in_words(web: Web, broker: str, body: bytes) -> None:
    web.code, web.body = 200, body
    asked = management(broker, web.url)
    questions: list[Callable[[], object]] = [asked.names, lambda: ask_server(asked), lambda: ask_queue(asked, "q")]
    said = [text for question in questions if (text := refusal(question)) is not None]
    assert all("'managementUrl' is such as http://host:" in text and "hushhush" not in text for text in said)


def refusal(question: Callable[[], object]) -> str | None:
    """What it is refused with, if it is."""
    try:
        question()
    except RefusedError as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("broker", BROKERS)
def test_what_is_no_answer_at_all_is_refused(web: Web, broker: str) -> None:
    asked = management(broker, web.url)
    for body in (b"", b"<html>", b"7", b"[7]"):
        web.code, web.body = 200, body
        with pytest.raises(RefusedError):
            ask_queue(asked, "q")
        with pytest.raises(RefusedError):
            asked.names()


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize(("code", "error"), [(401, RefusedError), (404, RefusedError), (503, BrokerUnavailableError)])
def test_the_status_of_an_answer_counts(web: Web, broker: str, code: int, error: type[Exception]) -> None:
    web.code, web.body = code, b"{}"
    asked = management(broker, web.url)
    for question in (asked.names, lambda: ask_server(asked), lambda: ask_queue(asked, "q")):
        with pytest.raises(error):
            question()


def test_what_an_agent_without_the_mbean_says_is_an_empty_broker(web: Web) -> None:
    web.code = 200
    web.body = json.dumps({"status": 404, "error_type": "javax.management.InstanceNotFoundException"}).encode()
    asked = management("artemis", web.url)
    assert asked.names() == []
    with pytest.raises(RefusedError, match="there is no MBean of a broker"):
        ask_queue(asked, "q")
