"""Runs docs/quick-start.md as a reader would, block after block: tests run the checkout, a release its wheel."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGE", "URL", "QuickStart", "run"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quick-start.md"
#: The broker of the page.
URL = "amqp://guest:guest@localhost:5672/"

_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class QuickStart:
    """What came of it.

    Attributes:
        published: what the commands printed that publish and look at the queue.
        read: what the job and the look at its checkpoint printed.
    """

    published: str
    read: str

    def problem(self) -> str:
        """What is not as the page says; empty if all is."""
        missing = [f"order {number}" for number in range(10) if f"order {number}" not in self.read]
        if missing:
            return f"not in the output: {', '.join(missing)}"
        if "3 message(s), returned" not in self.published:
            return "`pyspark-mq peek` did not show three messages"
        return "" if "newest committed batch: " in self.read else "`pyspark-mq inspect` found no committed batch"


def run(python: Path, url: str, folder: Path) -> QuickStart:
    """Run the blocks in a folder.

    Args:
        python: of an environment that has what the page installs.
        url: the broker to use in place of that of the page.
        folder: where scripts, rows and checkpoint go; empty.

    Raises:
        AssertionError: a command failed; with what it printed.
    """
    # Others are run by tests of their own.
    for text in (block for block in _blocks("python") if block.startswith("# ")):
        (folder / text.partition("\n")[0].removeprefix("# ")).write_text(text.replace(URL, url), "utf-8")
    _install, *commands = _blocks("sh")
    others = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in others}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    printed = []
    for command in commands:
        done = subprocess.run(
            ["sh", "-e", "-c", command.replace(URL, url)],
            cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode != 0:
            raise AssertionError(f"{command.strip()}\n{(done.stdout + done.stderr).strip()[-4000:]}")
        printed.append(done.stdout)
    published, read = printed
    return QuickStart(published, read)


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
