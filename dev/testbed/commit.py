"""Which state of the package was measured or tested."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["package_commit"]

_ROOT = Path(__file__).resolve().parents[2]


def package_commit() -> str:
    """Return the commit that last changed the package, eight hex digits.

    A result stays that of the code it was measured with, however pages, tests and tools change afterwards. If files of
    the package are changed and not committed, `-dirty` is appended. Outside of a Git checkout it is empty.
    """
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("log", "-1", "--format=%h", "--abbrev=8") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> str:
    # A container may have another owner than its checkout.
    asked = ["git", "-c", "safe.directory=*", *arguments, "--", "pyspark_mq"]
    return subprocess.run(asked, cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()
