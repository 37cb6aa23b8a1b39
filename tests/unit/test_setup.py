"""What set-up takes for granted of the rest, and how it answers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from pyspark_mq.brokers import BROKERS
from tests.plugin import missing

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "dev" / "tools" / "setup.sh"


def test_brokers_are_fetched_with_the_interpreter_alone() -> None:
    # Side by side with the making of the environment. -S: without what is installed; -I: without PYTHONPATH.
    run = "runpy.run_module('testbed.fetch', run_name='__main__')"
    program = f"import runpy, sys; sys.path.insert(0, 'dev'); sys.argv = ['fetch', '--help']; {run}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {"activemq", "artemis"} <= set(re.findall(r"\w+", done.stdout))


@pytest.mark.parametrize(
    "word", sorted({*BROKERS, *chain.from_iterable(chain(*one.protocols.values()) for one in BROKERS.values())})
)
def test_each_broker_and_protocol_of_a_demo_is_known(word: str) -> None:
    arms = re.findall(r"^ +([\w.| -]+)\) (?:broker|protocol)=\$word ;;$", SCRIPT.read_text("utf-8"), re.MULTILINE)
    assert word in " | ".join(arms).split(" | ")


def test_every_extra_that_is_asked_for_is_one() -> None:
    asked = set(
        chain.from_iterable(one.split() for one in re.findall(r"extras\+?=\(([\w ]+)\)", SCRIPT.read_text("utf-8")))
    )
    project = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    assert {"spark", "demo", "dev"} <= asked <= set(re.findall(r"^(\w+) = \[", project, re.MULTILINE))


def test_what_there_is_no_set_up_for_is_refused() -> None:
    if shutil.which("bash") is None:
        missing("bash is not installed")
    done = subprocess.run([str(SCRIPT), "--quiet", "nothing"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "known: everything, python, demo" in done.stderr
