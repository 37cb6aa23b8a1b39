"""Logins by certificate alone (SASL EXTERNAL), on both protocols that have SASL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.brokers.node import TlsFiles
from testbed.brokers.rabbitmq import RabbitNode
from tests.support.certificates import Certificates
from tests.support.checks import assert_ids_exactly_once, bodies
from tests.support.effort import with_all
from tests.support.engine import Engine, ReaderError


@pytest.fixture(scope="module")
def node(certificates: Certificates) -> Iterator[RabbitNode]:
    """A broker where the common name of a certificate is the name of a user."""
    server = certificates.server
    files = TlsFiles(Path(certificates.ca.cert_file), server.cert_file, server.key_file, verify_client=True)
    config = {
        "auth_mechanisms.1": "PLAIN",
        "auth_mechanisms.2": "EXTERNAL",
        "ssl_cert_login_from": "common_name",
    }
    with RabbitNode(plugins=("rabbitmq_amqp1_0", "rabbitmq_auth_mechanism_ssl"), tls=files, config=config) as broker:
        broker.add_user("client", "a password nobody uses")
        yield broker


def options(node: RabbitNode, certificates: Certificates, protocol: str, queue: str) -> dict[str, str]:
    node.declare(queue)
    return {
        "protocol": protocol,
        "url": node.url(protocol, tls=True).replace("guest:guest@", ""),
        "queue": queue,
        "tls.caFile": str(certificates.ca.cert_file),
        "tls.certFile": str(certificates.client.cert_file),
        "tls.keyFile": str(certificates.client.key_file),
        "connectTimeout": "5s",
    }


@pytest.mark.whole
@pytest.mark.parametrize("protocol", ["amqp-0-9-1", "amqp-1.0"])
def test_the_certificate_says_who_it_is(node: RabbitNode, certificates: Certificates, protocol: str) -> None:
    given = options(node, certificates, protocol, f"external-{protocol}")
    sent = node.publish(given["queue"], bodies(10))
    with Engine(**given) as run:
        run.drain(10)
        assert_ids_exactly_once(node, given["queue"], run, sent)


@pytest.mark.parametrize("protocol", [with_all("amqp-0-9-1"), "amqp-1.0"])
def test_a_certificate_of_nobody_known_is_refused_in_words(
    node: RabbitNode, certificates: Certificates, protocol: str
) -> None:
    given = options(node, certificates, protocol, "external")
    node.delete_user("client")
    try:
        with Engine(**given) as run, pytest.raises(ReaderError) as failed:
            run.batch()
    finally:
        node.add_user("client", "a password nobody uses")
    assert failed.value.kind == "RefusedError"
    assert "login" in str(failed.value)
