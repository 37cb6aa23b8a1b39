"""Secrets that a query's options let others see."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_mq.cli.doctor.certificates import check_tls
from pyspark_mq.sources.exposure import exposures
from pyspark_mq.spark_source.options import parse_options


def said(tmp_path: Any, **options: str) -> list[str]:
    given = {"broker": "rabbitmq", "url": "amqps://u:p@mq.example/", "queue": "q", "checkpointLocation": str(tmp_path)}
    known = parse_options(given | options)
    management = known.management.url if known.management else ""
    found = [str(one) for one in exposures(known.settings.endpoint, management, known.dedup_store)]
    assert not any("secret" in one for one in found)
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LocalHost"])
def test_nothing_leaves_this_machine(tmp_path: Any, host: str) -> None:
    options = {"url": f"amqp://u:secret@{host}/", "managementUrl": f"http://u:secret@{host}:15672"}
    assert said(tmp_path, **options, dedupStore=f"redis://{host}/0") == []


def test_tls_and_a_file_expose_nothing(tmp_path: Any) -> None:
    file = tmp_path / "file"
    file.write_text("secret")
    options = {"dedupStore": "rediss://u@redis.example/0", "dedupStorePasswordFile": str(file)}
    assert said(tmp_path, managementUrl="https://u:secret@mq.example", **options) == []


def test_each_connection_without_tls_is_told(tmp_path: Any) -> None:
    found = said(
        tmp_path, url="amqp://u:secret@a.example/,amqp://u:secret@10.0.0.1/",
        managementUrl="http://u:secret@a.example:15672", dedupStore="redis://redis.example/0",
    )  # fmt: skip
    assert [one.partition(":")[0] for one in found] == [
        "option 'url'", "option 'url'", "option 'managementUrl'", "option 'dedupStore'",
    ]  # fmt: skip
    assert "amqp://a.example:5672 unencrypted: use amqps://" in found[0]
    assert "http://a.example:15672 unencrypted: use https://" in found[2]
    assert "rediss://" in found[3]


@pytest.mark.parametrize("store", ["rediss://u:secret@r.example/0", "rediss://r.example/0?password=secret"])
def test_a_password_that_spark_shows_in_plans_is_told(tmp_path: Any, store: str) -> None:
    (found,) = said(tmp_path, dedupStore=store)
    assert "'dedupStorePasswordFile'" in found


@pytest.mark.parametrize(("host", "level"), [("mq.example", "warning"), ("127.0.0.1", "ok")])
def test_doctor_does_not_call_a_clear_login_right(tmp_path: Any, host: str, level: str) -> None:
    options = {"broker": "rabbitmq", "url": f"amqp://u:p@{host}/", "queue": "q", "checkpointLocation": str(tmp_path)}
    endpoint = parse_options(options).settings.endpoint
    (finding,) = check_tls(endpoint.urls[0], endpoint)
    assert finding.level.word == level
