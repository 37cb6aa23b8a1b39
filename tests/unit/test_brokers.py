"""What a broker needs everywhere: its data, a matrix entry for each of its protocols, titles, and a place in the
docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.brokers import BROKERS, Broker
from pyspark_mq.brokers.base import AMQP_1_0, STOMP
from pyspark_mq.sources.connections.protocols import SESSIONS
from testbed.chaos import soak
from testbed.clusters.factory import CLUSTERS
from tests import matrix
from tests.support.entries import ENTRIES

ROOT = Path(__file__).parents[2]
brokers = pytest.mark.parametrize("broker", BROKERS.values(), ids=list(BROKERS))


def spoken(broker: Broker) -> set[str]:
    return {protocol for protocols in broker.protocols.values() for protocol in protocols}


@brokers
def test_what_differs_by_protocol_is_there_for_those_it_speaks_and_no_others(broker: Broker) -> None:
    protocols = spoken(broker)
    assert protocols <= set(SESSIONS)
    assert set(broker.prefetch_max) == protocols
    assert (broker.stomp is not None) is (STOMP in protocols)
    assert (broker.amqp10 is not None) is (AMQP_1_0 in protocols)
    assert set(broker.half_open_s) <= protocols
    assert broker.shared_topics <= broker.durable_topics <= protocols


@brokers
def test_each_protocol_of_a_broker_has_an_entry(broker: Broker) -> None:
    assert {entry.protocol for entry in ENTRIES if entry.broker == broker.name} == spoken(broker)


def test_every_protocol_is_spoken_by_a_broker() -> None:
    assert set().union(*map(spoken, BROKERS.values())) == set(SESSIONS)


def test_the_compatibility_page_and_the_soak_know_every_broker_and_protocol() -> None:
    assert set(matrix.TITLES) == set(soak._SETTINGS) == set(BROKERS)
    assert set(matrix.PROTOCOLS) == set(SESSIONS)
    assert set(CLUSTERS) == set(BROKERS)


def test_the_compatibility_page_keeps_the_chaos_of_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = ["messages sent", "lost", "duplicated", "unexpected", "left in the queue", "faults in all", "reconnects"]
    chaos: dict[str, Any] = dict.fromkeys([*counts, "duplicates recognised and dropped"], 1_234)
    chaos |= {"cluster": "RabbitMQ, three nodes", "version": "3.10.8", "protocol": "stomp", "date": "2026-11-21"}
    chaos |= {"faults": {"a kill": 1, "a kill ": 1, "a cut": 1}, "seconds": 99, "problem": "", "holds": True}
    monkeypatch.setattr(matrix, "_KEPT", tmp_path)
    assert "## Clusters" not in matrix.page([], matrix._clusters(), {}, "0.1.0")
    (tmp_path / "rabbitmq-stomp.cluster.json").write_text(json.dumps(chaos), "utf-8")
    page = matrix.page([], matrix._clusters(), {}, "0.1.0")
    row = next(line for line in page.splitlines() if "three nodes | STOMP" in line)
    assert row.startswith("| RabbitMQ 3.10.8, three nodes | STOMP | 1,234 | 1,234 | 2,468 | 1,234 |")
    assert "- RabbitMQ, three nodes: a kill; a cut" in page


@brokers
@pytest.mark.parametrize("page", ["README.md", "docs/protocols.md"])
def test_the_docs_name_every_broker_and_scheme(page: str, broker: Broker) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert f"\n| `{broker.name}` " in text
    assert [scheme for scheme in broker.protocols if f"{scheme}://" not in text] == []


@pytest.mark.parametrize("protocol", SESSIONS)
def test_the_docs_name_every_protocol(protocol: str) -> None:
    assert f"`{protocol}`" in (ROOT / "docs" / "protocols.md").read_text("utf-8")
