"""The seam at which deliveries are cut out of what pika reads: in each pika that is supported, and without it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.sources.amqp091 import client as module
from testbed.distributions import cache_folder
from tests.plugin import missing
from tests.support.entries import LiveEntry

ROOT = Path(__file__).parents[2]
#: Of each minor version the last one; what is installed is tested by everything else.
OTHERS = ("1.3.2",)
CONTRACT = ("tests/contract/test_session.py", "tests/contract/test_unreadable.py")


def installed(number: str) -> Path:
    """A folder with that pika, from PyPI."""
    folder = cache_folder() / f"pika-{number}"
    if not (folder / f"pika-{number}.dist-info").exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(folder),
            f"pika=={number}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            missing(f"pika {number} cannot be installed: {done.stderr.strip()[-500:]}")
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("number", OTHERS)
def test_the_contract_holds_with_another_pika(number: str) -> None:
    environment = os.environ | {"PYTHONPATH": f"{installed(number)}{os.pathsep}{ROOT}"}
    asked = [sys.executable, "-c", "import pika; print(pika.__version__)"]
    assert subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout.strip() == number
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "rabbitmq-amqp-0-9-1-classic",
        *CONTRACT,
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:]
    assert " passed" in done.stdout


@pytest.mark.contract("pika")
@pytest.mark.protocols(AMQP_0_9_1)
@pytest.mark.parametrize("seam", [True, False])
def test_deliveries_are_the_same_with_the_seam_and_without(
    entry: LiveEntry, seam: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not seam:
        monkeypatch.setattr(module, "_HAS_SEAM", False)
    caplog.set_level(logging.INFO, "pyspark_mq")
    sent = entry.publish(20, headers={"a": "b", "n": 5})
    with entry.session() as session:
        session.take_any(20)
        assert session.bodies() == sent
        decoder, raws = session.decoder, session.raws
        assert decoder.tags(raws) == list(range(1, 21))
        assert [dict(pairs or ()) for pairs in decoder.columns["properties"](raws)] == [{"a": "b", "n": "5"}] * 20
        assert set(decoder.columns["redelivered"](raws)) == {False}
        session.acknowledge(upto=20)
        assert session.turn(lambda: entry.total() == 0)
    assert (f"pika {version('pika')} decodes each delivery" in caplog.text) is not seam
