"""Option `managementUrl` where no broker is: what another web server answers is refused in words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pyspark_mq.admin import ask_depth, ask_queue, ask_server
from pyspark_mq.admin import http as management_module
from pyspark_mq.admin.http import Management
from pyspark_mq.brokers import BROKERS
from pyspark_mq.errors import BrokerError, BrokerUnavailableError, RefusedError
from pyspark_mq.sources.queues.pattern import QueueWatch
from pyspark_mq.sources.queues.watch import BacklogWatch
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.spark_source.options import parse_options
from testbed.process import poll
from tests.support.certificates import Certificates
from tests.support.sockets import LIMIT_S, port


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
    ).management
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
    assert all("'managementUrl' is, e.g., http://host:" in text and "hushhush" not in text for text in said)


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
    with pytest.raises(RefusedError, match="there is no broker MBean here"):
        ask_queue(asked, "q")


# -- what is no answer of a web server


def told(body: object, code: str = "200 OK") -> bytes:
    """A whole answer."""
    text = json.dumps(body).encode()
    return f"HTTP/1.1 {code}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text


QUEUES = told({"items": [{"name": "q.a"}], "page_count": 1})
MORE_QUEUES = told({"items": [{"name": "q.a"}, {"name": "q.b"}], "page_count": 1})
#: What a port sends that a broker has opened for something else, and answers that end where they should not.
OK = b"HTTP/1.1 200 OK\r\n"
NO_ANSWERS = [
    b"AMQP\x00\x00\x09\x01", b"ERROR\nmessage:Unknown\n\n\x00\n", b"\x15\x03\x03\x00\x02\x02\x46",
    b"HTTP/1.1 abc\r\n\r\n", b"", b"HTTP/1.1 200", QUEUES[:-5], OK + b"a: b\r\n" * 200 + b"\r\n",
    OK + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"it', OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    OK + b"a: " + b"b" * 70_000 + b"\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("answer", NO_ANSWERS, ids=lambda answer: repr(answer[:24]))
def test_a_port_that_does_not_answer_as_a_web_server_is_an_error_in_words(broker: str, answer: bytes) -> None:
    with port(answer) as opened:
        asked = management(broker, f"http://127.0.0.1:{opened.number}")
        for question in (asked.names, lambda: ask_server(asked), lambda: ask_depth(asked, "q")):
            with pytest.raises(BrokerError, match="'managementUrl'") as raised:
                question()
            assert f"127.0.0.1:{opened.number}" in str(raised.value)
            assert str(raised.value).isprintable()
            assert "hushhush" not in str(raised.value)


@pytest.mark.parametrize("answer", [QUEUES[:-5], b"AMQP\x00\x00\x09\x01"])
def test_queues_are_found_again_after_an_answer_that_was_cut_off(answer: bytes) -> None:
    with port(QUEUES) as opened:
        names = management("rabbitmq", f"http://127.0.0.1:{opened.number}").names
        watch = QueueWatch("q.*", names, 0.02, 10, Threads())
        assert watch.begin() == ["q.a"]
        opened.answer = answer
        asked = len(opened.heard)
        assert poll(lambda: len(opened.heard) > asked + 3, LIMIT_S)
        assert watch.seen() == ["q.a"]
        opened.answer = MORE_QUEUES
        assert poll(lambda: watch.seen() == ["q.a", "q.b"], LIMIT_S)
        watch.stop()


def test_the_backlog_is_counted_again_after_an_answer_that_was_cut_off() -> None:
    depth = told({"messages_ready": 7})
    with port(depth) as opened:
        asked = management("rabbitmq", f"http://127.0.0.1:{opened.number}")
        watch = BacklogWatch(partial(ask_depth, asked), 0.02, Threads())
        watch.begin(["q"])
        assert poll(lambda: watch.seen("q") == 7, LIMIT_S)
        opened.answer = depth[:-5]
        assert poll(lambda: watch.seen("q") is None, LIMIT_S)
        opened.answer = depth
        assert poll(lambda: watch.seen("q") == 7, LIMIT_S)
        watch.stop()


def test_the_backlog_is_counted_again_after_a_ca_file_that_was_away(certificates: Certificates, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(certificates.ca.cert_file.read_bytes())
    with port(b"") as opened:
        options = {"broker": "rabbitmq", "url": "amqp://host", "queue": "q", "tls.caFile": str(ca)}
        url = f"https://127.0.0.1:{opened.number}"
        asked = parse_options({**options, "managementUrl": url}).management
        assert asked is not None
        ca.unlink()
        with pytest.raises(BrokerUnavailableError, match=r"option 'tls.caFile': .*ca.pem' cannot be used"):
            ask_depth(asked, "q")
        watch = BacklogWatch(partial(ask_depth, asked), 0.02, Threads())
        watch.begin(["q"])
        ca.write_bytes(certificates.ca.cert_file.read_bytes())
        assert poll(lambda: len(opened.heard) > 1, LIMIT_S)
        assert watch.seen("q") is None
        watch.stop()


@pytest.mark.parametrize("code", ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("broker", BROKERS)
def test_a_redirect_is_not_followed_and_the_password_goes_nowhere(broker: str, code: str) -> None:
    with port(QUEUES) as other, port(b"") as opened:
        place = f"http://127.0.0.1:{other.number}"
        opened.answer = f"HTTP/1.1 {code}\r\nLocation: {place}/x?token=abc\r\nContent-Length: 0\r\n\r\n".encode()
        asked = management(broker, f"http://127.0.0.1:{opened.number}")
        with pytest.raises(RefusedError, match="managementUrl") as raised:
            asked.names()
        assert other.heard == []
        assert f"127.0.0.1:{other.number}" in str(raised.value)
        assert "abc" not in str(raised.value)


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
#: What comes first, and what comes again and again behind it.
ENDLESS = {
    "status": (b"", b"H"),
    "header": (OK + b"a: ", b"b"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (OK + b"Content-Length: 10000000\r\n\r\n", b" "),
    "body without a length": (OK + b"\r\n", b" "),
    "size of a chunk": (CHUNKED, b"0"),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n"),
}


@pytest.mark.parametrize("part", ENDLESS)
def test_an_answer_that_takes_for_ever_anywhere_is_abandoned(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_module, "_TIMEOUT_S", 0.3)
    answer, again = ENDLESS[part]
    with port(answer) as opened:
        opened.again, opened.pause_s = again, 0.02
        asked = management("rabbitmq", f"http://127.0.0.1:{opened.number}")
        with pytest.raises(BrokerUnavailableError, match="bytes arrived, but the answer did not end"):
            asked.names()


@pytest.mark.parametrize("part", ["continue", "body", "body without a length", "chunks", "trailers"])
def test_an_answer_that_is_too_long_anywhere_is_abandoned(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_module, "_ANSWER_BYTES_MAX", 50_000)
    answer, again = ENDLESS[part]
    with port(answer) as opened:
        opened.again = again * 1_000
        asked = management("rabbitmq", f"http://127.0.0.1:{opened.number}")
        with pytest.raises(BrokerUnavailableError, match="bytes arrived, but the answer did not end"):
            asked.names()


@pytest.mark.parametrize("values", [b"[],", b"{},", b'"a",', b'{"a":1},'])
def test_an_answer_with_more_values_than_any_broker_has_takes_no_memory(values: bytes) -> None:
    body = b'{"items":[' + values * (9_000_000 // len(values)) + b"[]]}"
    with port(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body) as opened:
        asked = management("rabbitmq", f"http://127.0.0.1:{opened.number}")
        with pytest.raises(BrokerUnavailableError, match=r"an answer has \d+ values, and at most 2000000 are accepted"):
            asked.names()


def test_pages_that_come_too_slowly_are_abandoned(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_module, "_LIST_TIMEOUT_S", 0.0)
    web.code, web.body = 200, b'{"page_count":2,"items":[{"name":"q"}]}'
    with pytest.raises(BrokerUnavailableError, match="1 of 2 pages of its queues arrived in 0 s"):
        management("rabbitmq", web.url).names()


def test_a_proxy_that_the_environment_names_hears_nothing(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.code, web.body = 200, b'{"items":[{"name":"q"}]}'
    with port(told({"items": [{"name": "wrong"}]})) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.number}")
        assert management("rabbitmq", web.url).names() == ["q"]
        assert proxy.heard == []


@pytest.mark.parametrize("host", ["a..b", "a b", "\u00fc" * 70])
def test_a_host_that_there_cannot_be_is_an_error_in_words(host: str) -> None:
    with pytest.raises(BrokerError, match="'managementUrl'"):
        management("rabbitmq", f"http://{host}:15672").names()


@pytest.mark.parametrize("own", [True, False])
def test_a_management_that_quotes_the_login_is_not_believed_to_keep_it(own: bool) -> None:
    words = "x" * 80 + " s3cret/hush and s3cret%2fhush"
    for answer in (
        f"HTTP/1.1 401 {words}\r\nContent-Length: 0\r\n\r\n".encode(),
        f"HTTP/1.1 {words}\r\n\r\n".encode(),
        told({"status": 500, "error": "y" * 100 + words}),
        f"HTTP/1.1 302 no\r\nLocation: http://{words.replace(' ', '')}/\r\nContent-Length: 0\r\n\r\n".encode(),
    ):
        with port(answer) as opened:
            user = "joe:s3cret%2Fhush@"
            options = {"broker": "artemis", "url": f"amqp://{'' if own else user}host", "queue": "q"}
            options["managementUrl"] = f"http://{user if own else ''}127.0.0.1:{opened.number}"
            asked = parse_options(options).management
            assert asked is not None
            with pytest.raises(BrokerError) as raised:
                asked.names()
        assert "***" in str(raised.value)
        assert "hush" not in str(raised.value)
        assert "s3c" not in str(raised.value)


def test_queues_beyond_those_that_can_be_listed_are_an_error(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_module, "_PAGES_MAX", 3)
    asked = management("rabbitmq", web.url)
    web.code, web.body = 200, b'{"page_count":3,"items":[{"name":"q"}]}'
    assert asked.names() == ["q"]
    web.body = b'{"page_count":4,"items":[{"name":"q"}]}'
    with pytest.raises(RefusedError, match=r"more than 1,500 queues, the maximum that can be listed"):
        asked.names()
