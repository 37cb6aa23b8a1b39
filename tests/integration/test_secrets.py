"""Secrets that change while a query runs: rotated passwords, and tokens of OAuth 2 that end.

RabbitMQ closes a connection whose token has ended, 4.3 does and 3.10 does not.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, STOMP
from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.proxy import FaultProxy
from testbed.process import NodeError, poll
from tests.plugin import missing
from tests.support.certificates import openssl
from tests.support.checks import bodies
from tests.support.engine import Engine, ReaderError

pytestmark = pytest.mark.whole

#: Seconds for which a short token is good. The file is looked at every five.
SHORT_S = 14


class Issuer:
    """Makes tokens, signed by a key of its own (RFC 7519, RS256)."""

    def __init__(self, folder: Path) -> None:
        self._key, self.public_key = folder / "key.pem", folder / "public.pem"
        openssl("genrsa", "-out", self._key, "2048")
        openssl("rsa", "-in", self._key, "-pubout", "-out", self.public_key)

    def token(self, seconds: float) -> str:
        claims = {
            "aud": "rabbitmq",
            "sub": "spark",
            "exp": int(time.time() + seconds),
            "scope": ["rabbitmq.read:*/*", "rabbitmq.configure:*/*", "rabbitmq.write:*/*"],
        }
        signed = f"{_part(json.dumps({'alg': 'RS256', 'typ': 'JWT', 'kid': 'k'}))}.{_part(json.dumps(claims))}"
        signature = openssl("dgst", "-sha256", "-sign", self._key, given=signed.encode())
        return f"{signed}.{_part(signature)}"


def _part(data: str | bytes) -> str:
    raw = data.encode() if isinstance(data, str) else data
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def node(issuer: Issuer) -> Iterator[RabbitNode]:
    config: dict[str, Any] = {
        "auth_backends.1": "rabbit_auth_backend_oauth2",
        "auth_backends.2": "rabbit_auth_backend_internal",
        "auth_oauth2.resource_server_id": "rabbitmq",
        "auth_oauth2.default_key": "k",
        "auth_oauth2.signing_keys.k": str(issuer.public_key),
    }
    try:
        made = RabbitNode(version="4.3", config=config, plugins=("rabbitmq_auth_backend_oauth2", "rabbitmq_stomp"))
    except NodeError as absent:
        missing(str(absent))
        raise
    with made:
        yield made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return tmp_path / "secret"


def replace(file: Path, text: str) -> None:
    """As secret stores do: in one step."""
    draft = file.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(file)


def options(node: RabbitNode, queue: str, protocol: str, secret: Path, user: str = "spark") -> dict[str, Any]:
    url = node.url(protocol).replace("guest:guest@", f"{user}@")
    return {"broker": "rabbitmq", "protocol": protocol, "url": url, "queue": queue, "passwordFile": secret}


@pytest.mark.parametrize("protocol", [AMQP_0_9_1, STOMP])
def test_a_rotated_password_is_read_at_the_next_connection(node: RabbitNode, secret: Path, protocol: str) -> None:
    queue = f"rotated-{protocol}"
    node.declare(queue)
    node.add_user(queue, "first")
    secret.write_text("first\n")
    sent = node.publish(queue, bodies(20))
    given = options(node, queue, protocol, secret, queue)
    port = urlsplit(given["url"]).port or 0
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        Engine(**{**given, "url": given["url"].replace(str(port), str(proxy.port))}) as run,
    ):
        run.drain(20)
        # The broker has the new one first: until the file has it, logins are refused.
        node.ctl("change_password", queue, "second")
        proxy.cut()
        sent += node.publish(queue, bodies(20))
        assert poll(lambda: run.trigger() == 0 and run.counters()["reconnects"] == 1, 30)
        time.sleep(1)
        replace(secret, "second\n")
        run.drain(40)
        assert sorted(run.ids) == sorted(map(str, sent))


def test_a_wrong_password_in_the_file_fails_at_once(node: RabbitNode, secret: Path) -> None:
    node.declare("wrong")
    secret.write_text("hushhush")
    with Engine(**options(node, "wrong", AMQP_0_9_1, secret, "guest")) as run, pytest.raises(ReaderError) as failed:
        run.batch()
    assert failed.value.kind == "RefusedError"
    assert "hushhush" not in str(failed.value)


def test_a_token_is_replaced_before_it_ends(node: RabbitNode, issuer: Issuer, secret: Path) -> None:
    node.declare("token")
    sent = node.publish("token", bodies(20))
    secret.write_text(issuer.token(SHORT_S))
    ends_s = time.monotonic() + SHORT_S
    with Engine(**options(node, "token", AMQP_0_9_1, secret)) as run:
        run.drain(20)
        replace(secret, issuer.token(3600))
        time.sleep(max(0.0, ends_s + 3 - time.monotonic()))
        sent += node.publish("token", bodies(20))
        run.drain(40)
        assert run.ids == sent
        assert run.counters()["reconnects"] == 0


def test_a_token_that_ends_ends_the_session_until_there_is_another(
    node: RabbitNode, issuer: Issuer, secret: Path
) -> None:
    node.declare("ended")
    sent = node.publish("ended", bodies(20))
    secret.write_text(issuer.token(SHORT_S / 2))
    with Engine(**options(node, "ended", AMQP_0_9_1, secret)) as run:
        run.drain(20)
        assert poll(lambda: run.trigger() == 0 and run.counters()["reconnects"] == 1, 30)
        sent += node.publish("ended", bodies(20))
        replace(secret, issuer.token(3600))
        run.drain(40)
        assert run.ids == sent
