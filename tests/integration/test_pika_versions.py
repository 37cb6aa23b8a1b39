"""The seam at which deliveries are cut out of what pika reads: in each pika that is supported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.distributions import cache_folder
from tests.plugin import missing

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
