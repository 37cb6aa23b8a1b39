"""The parts of `doctor` that need no broker: certificates, this machine, and what is written."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pyspark_mq.admin.checks import Finding, Level
from pyspark_mq.brokers.hosted import hosted_by
from pyspark_mq.cli.doctor.certificates import check_certificate, of_file, valid_until
from pyspark_mq.cli.doctor.examine import check_version
from pyspark_mq.cli.doctor.hosting import check_host
from pyspark_mq.cli.doctor.machine import Interpreter, Machine, check_machine, examine_machine
from pyspark_mq.cli.doctor.report import Section, as_json, summary, worst, written
from pyspark_mq.cli.main import main
from pyspark_mq.spark_source.options import parse_options
from tests.support.certificates import Certificates
from tests.support.sockets import port

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


# -- hosted brokers ----------------------------------------------------------------------------

AMAZON = "b-1234-5678.mq.eu-central-1.on.aws"


@pytest.mark.parametrize(
    ("host", "known"),
    [
        (AMAZON, True),
        ("B-1234.MQ.us-east-1.AMAZONAWS.com.", True),
        ("b-1234-1.mq.cn-north-1.amazonaws.com.cn", True),
        ("mq.example.org", False),
        ("b-1234.mq.eu-central-1.on.aws.example.org", False),
        ("example.org", False),
        ("127.0.0.1", False),
    ],
)
def test_who_runs_a_broker_is_told_by_its_address(host: str, known: bool) -> None:
    assert bool(hosted_by(host)) is known
    urls = {"url": f"amqps://{host}"}
    assert parse_options({"broker": "rabbitmq", "queue": "q", **urls}).settings.endpoint.clustered is known


@pytest.mark.parametrize(
    ("options", "level", "words"),
    [
        ({"url": f"amqp://{AMAZON}"}, Level.PROBLEM, "accepts only TLS. Use amqps://"),
        ({"heartbeat": "400s"}, Level.WARNING, "Set 'heartbeat' below that time; it is now 400s"),
        ({"managementUrl": f"https://{AMAZON}"}, Level.WARNING, "Set 'managementInterval' to 1m or more; it is now 5s"),
        ({"replayTimeout": "10m"}, Level.WARNING, "Set 'replayTimeout' to 35m"),
        ({}, Level.OK, "Amazon MQ, rabbitmq; counts as a cluster behind one address"),
        ({"broker": "activemq", "url": f"stomp+ssl://{AMAZON}:61614"}, Level.OK, "Amazon MQ, activemq"),
    ],
)
def test_what_follows_from_that_for_the_options(options: dict[str, str], level: Level, words: str) -> None:
    given = {"broker": "rabbitmq", "url": f"amqps://{AMAZON}", "queue": "q", "replayTimeout": "35m", **options}
    parsed = parse_options(given)
    (url,) = parsed.settings.endpoint.urls
    (found,) = check_host(url, parsed.settings, asked=parsed.management is not None)
    assert (found.level, words in str(found)) == (level, True), found


def test_another_broker_is_nothing_to_speak_of() -> None:
    settings = parse_options({"broker": "rabbitmq", "url": "amqp://localhost", "queue": "q"}).settings
    assert list(check_host(settings.endpoint.urls[0], settings, asked=True)) == []


# -- certificates ------------------------------------------------------------------------------


def told_by_openssl(path: Path) -> datetime:
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-enddate", "-in", path], capture_output=True, text=True, check=True
    )
    text = done.stdout.strip().removeprefix("notAfter=")
    return datetime.strptime(text, "%b %d %H:%M:%S %Y %Z").replace(tzinfo=timezone.utc)


def test_the_end_of_a_certificate_is_that_which_openssl_reads(certificates: Certificates) -> None:
    for identity in (certificates.ca, certificates.server, certificates.client):
        assert of_file(str(identity.cert_file)) == told_by_openssl(identity.cert_file)


@pytest.mark.parametrize("days", [30, 365 * 60])
def test_both_forms_of_a_date_are_read(tmp_path: Path, days: int) -> None:
    # Years from 2050 on are written with four digits.
    cert = tmp_path / "own.pem"
    command = ["openssl", "req", "-x509", "-days", str(days), "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*command, "-keyout", tmp_path / "own.key", "-out", cert], capture_output=True, check=True)
    assert of_file(str(cert)) == told_by_openssl(cert)


def test_what_is_no_certificate_is_said(tmp_path: Path, certificates: Certificates) -> None:
    for der in (b"", b"\x30", b"\x30\x03\x02\x01\x01", bytes(100), b"\x30\x84\xff\xff\xff\xff"):
        with pytest.raises(ValueError, match="not a certificate"):
            valid_until(der)
    (tmp_path / "x.pem").write_text("nothing")
    with pytest.raises(ValueError, match="has no certificate"):
        of_file(str(tmp_path / "x.pem"))
    with pytest.raises(ValueError, match="has no certificate"):
        of_file(str(certificates.client.key_file))


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (-1, Level.PROBLEM, "expired on 2029-12-31"),
        (29, Level.WARNING, "29 more day(s)"),
        (30, Level.OK, "30"),
    ],
)
def test_a_certificate_is_worth_a_warning_in_time(days: int, level: Level, words: str) -> None:
    found = check_certificate("the broker's certificate", NOW + timedelta(days=days), NOW)
    assert (found.level, words in found.what) == (level, True), found


@pytest.mark.parametrize(
    ("server", "url", "level", "words"),
    [
        ("ActiveMQ-Artemis/2.40.0 Engine", "stomp://host", Level.WARNING, "2.40 does not deliver some messages"),
        ("ActiveMQ-Artemis/2.56.0 Engine", "stomp://host", Level.OK, "ActiveMQ-Artemis 2.56.0"),
        ("apache-activemq-artemis/2.40.0", "amqp://host", Level.OK, "apache-activemq-artemis 2.40.0"),
        ("ActiveMQ/${project.version}", "stomp://host", Level.UNKNOWN, "does not report its version"),
        ("", "stomp://host", Level.UNKNOWN, "the broker does not report"),
    ],
)
def test_a_version_may_have_a_flaw(server: str, url: str, level: Level, words: str) -> None:
    endpoint = parse_options({"broker": "artemis", "url": url, "queue": "q"}).settings.endpoint
    found = check_version(server, endpoint)
    assert (found.level, words in found.what) == (level, True), found


# -- this machine ------------------------------------------------------------------------------

DRIVER = Interpreter(
    "/env/bin/python", "3.11.7", "/env/bin/python",
    {"pyspark_mq": "0.1.0", "pyarrow": "20.0.0", "pyspark": "4.3.0", "pika": "1.4.4"},
)  # fmt: skip
MACHINE = Machine(DRIVER, replace(DRIVER, name="python"), "PYSPARK_PYTHON", 'openjdk version "17.0.15"')


def judged(machine: Machine, check: str) -> Finding:
    (found,) = [one for one in check_machine(machine, "amqp-0-9-1", None, syncs=False) if one.check == check]
    return found


def test_a_machine_with_everything() -> None:
    assert [one.level for one in check_machine(MACHINE, "amqp-0-9-1", None, syncs=False)] == [Level.OK] * 4
    assert "each executor needs the same" in judged(MACHINE, "workers").what


@pytest.mark.parametrize(
    ("place", "syncs", "level"),
    [("/data/o/mq-ids", False, Level.WARNING), ("/data/o/mq-ids", True, Level.OK), ("s3://b/ids", False, None),
     (None, False, None)],
)  # fmt: skip
def test_a_checkpoint_on_this_machine_may_lose_power(place: str | None, syncs: bool, level: Level | None) -> None:
    found = [one for one in check_machine(MACHINE, "amqp-0-9-1", place, syncs=syncs) if one.check == "power"]
    assert [one.level for one in found] == ([] if level is None else [level])
    assert all(one.level is Level.OK or "'settleAfter' to 'synced'" in one.remedy for one in found)


def without(module: str) -> Interpreter:
    versions = {name: version for name, version in DRIVER.versions.items() if name != module}
    return replace(DRIVER, versions=versions, errors={module: f"ModuleNotFoundError: No module named '{module}'"})


def spark(version: str, driver: Interpreter = DRIVER) -> Machine:
    return replace(MACHINE, driver=replace(driver, versions={**DRIVER.versions, "pyspark": version}))


@pytest.mark.parametrize(
    ("machine", "check", "level", "words"),
    [
        (replace(MACHINE, driver=without("pyspark")), "spark", Level.PROBLEM, "cannot be imported"),
        (spark("3.5.1"), "spark", Level.PROBLEM, "no streaming sources in Python"),
        (spark("4.1.0", without("pyspark.sql.streaming.datasource")), "spark", Level.WARNING, "is one epoch"),
        (spark("4.1.0"), "spark", Level.OK, "4.1.0"),
        (spark("4.2.0"), "spark", Level.OK, "4.2.0"),
        (spark("5.0.0.dev1"), "spark", Level.WARNING, "newer"),
        (replace(MACHINE, java=""), "java", Level.PROBLEM, "no Java"),
        (replace(MACHINE, java='openjdk version "11.0.2"'), "java", Level.PROBLEM, "too old"),
        (replace(MACHINE, driver=without("pyarrow")), "driver", Level.PROBLEM, "pyarrow cannot be imported"),
        (replace(MACHINE, worker=without("pyspark_mq")), "workers", Level.PROBLEM, "cannot import pyspark_mq"),
        (replace(MACHINE, worker=without("pyarrow"), chosen=""), "workers", Level.PROBLEM, "is not set"),
        (replace(MACHINE, worker=Interpreter("py", problem="not found")), "workers", Level.PROBLEM, "not found"),
        (replace(MACHINE, worker=replace(DRIVER, python="3.9.2")), "workers", Level.PROBLEM, "Spark refuses"),
        (
            replace(MACHINE, worker=replace(DRIVER, versions={**DRIVER.versions, "pyspark_mq": "0.0.9"})),
            "workers", Level.WARNING, "0.0.9",
        ),
    ],
)  # fmt: skip
def test_what_a_machine_lacks(machine: Machine, check: str, level: Level, words: str) -> None:
    found = judged(machine, check)
    assert (found.level, words in found.what) == (level, True), found
    assert bool(found.remedy) is (level is not Level.OK)


def test_the_hint_for_workers_is_the_line_to_write() -> None:
    found = judged(replace(MACHINE, worker=without("pyspark_mq"), chosen=""), "workers")
    assert 'os.environ.setdefault("PYSPARK_PYTHON", sys.executable)' in found.remedy
    assert "PYSPARK_DRIVER_PYTHON" not in found.remedy


def test_the_python_of_a_notebook_that_spark_would_start_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jupyter = tmp_path / "jupyter"
    jupyter.write_text("#!/bin/sh\necho usage: jupyter >&2\nexit 1\n")
    jupyter.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", str(jupyter))
    found = judged(examine_machine(), "workers")
    assert found.level is Level.PROBLEM
    assert f"PYSPARK_DRIVER_PYTHON '{jupyter}' does not start as a Python (usage: jupyter)" in found.what
    assert 'os.environ.pop("PYSPARK_DRIVER_PYTHON", None)' in found.remedy
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(jupyter))
    assert judged(examine_machine(), "workers").level is Level.OK


def test_this_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shy = tmp_path / "python"
    shy.write_text("#!/bin/sh\necho no such thing >&2\n")
    shy.chmod(0o755)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", str(shy))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    machine = examine_machine()
    assert (machine.chosen, machine.worker.problem) == ("PYSPARK_PYTHON", "no such thing")
    assert machine.java == ""
    assert machine.driver.versions["pyspark"].startswith("4.")
    assert "pyarrow" in machine.driver.versions
    full = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
    assert ("pyspark.sql.streaming.datasource" in machine.driver.errors) is not full


# -- what is written ---------------------------------------------------------------------------

SECTION = Section(
    "queue 'orders'",
    [
        Finding("a", Level.OK, "fine"),
        Finding("b", Level.UNKNOWN, "not known", "ask"),
        Finding("c", Level.UNKNOWN, "nobody tells", "ask"),
        Finding("d", Level.WARNING, "hm " * 60, "do this"),
        Finding("e", Level.PROBLEM, "bad", "do that"),
    ],
)


def test_what_is_bad_comes_first_and_what_is_not_known_together() -> None:
    lines = list(written(SECTION))
    assert lines[:3] == ["queue 'orders'", "  problem e: bad", "          -> do that"]
    assert lines[-3:] == ["  unknown b; c: nobody tells", "          -> ask", ""]
    assert max(map(len, lines)) <= 110
    assert summary([SECTION]) == "1 problem(s), 1 warning(s), 2 not known, 1 ok"
    assert worst([SECTION]) is Level.PROBLEM
    assert worst([]) is Level.OK


def test_json_has_each_finding() -> None:
    told = as_json([SECTION])
    assert told["level"] == "problem"
    assert told["findings"][0] == {
        "about": "queue 'orders'", "check": "a", "level": "ok", "found": "fine", "remedy": None,
    }  # fmt: skip
    assert len(told["findings"]) == 5


def test_a_topic_of_an_activemq_broker_is_not_opened(capsys: pytest.CaptureFixture[str]) -> None:
    # Nobody is at that port: to open the topic would make its subscription.
    options = ["broker=activemq", "url=stomp://127.0.0.1:9", "topic=news", "subscription=s"]
    main(["doctor", *options])
    said = capsys.readouterr().out
    assert "login: not examined: opening a topic creates its subscription" in said
    assert "1 not known" in said


def test_a_wrong_call_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "broker=rabbitmq", "url=amqp://joe:hushhush@host", "quue=q"]) == 2
    captured = capsys.readouterr()
    assert "did you mean 'queue'?" in captured.err
    assert "hushhush" not in captured.out + captured.err
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "-n", "-1"])
    assert ended.value.code == 2


def test_a_management_url_on_the_port_for_messages_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    with port(b"AMQP\x00\x00\x09\x01") as opened:
        place = f"127.0.0.1:{opened.number}"
        options = [f"url=amqp://{place}", f"managementUrl=http://{place}", "broker=rabbitmq", "queue=q"]
        assert main(["doctor", "--json", "-n", "0", "connectTimeout=1s", *options]) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["management"]["level"] == "warning"
    assert "its answer is not valid HTTP (BadStatusLine: AMQP\\x00" in found["management"]["found"]
