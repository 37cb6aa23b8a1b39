"""Which state of the package or the checkout was measured or tested."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["last_change", "package_commit"]

_ROOT = Path(__file__).resolve().parents[2]


def package_commit() -> str:
    """Return the commit that last changed the package, eight hex digits.

    A result stays that of the code it was measured with, however pages, tests and tools change afterwards. Outside of
    a Git checkout it is empty.
    """
    try:
        return last_change("pyspark_mq")
    except (OSError, subprocess.CalledProcessError):
        return ""


def last_change(*paths: str) -> str:
    """Return the commit that last changed files, eight hex digits; with `-dirty` if a change is not committed.

    Args:
        paths: which files, as Git's pathspecs from the root of the checkout.

    Raises:
        OSError: there is no Git.
        subprocess.CalledProcessError: this is no checkout of Git.
    """
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *paths)
    return _git("log", "-1", "--format=%h", "--abbrev=8", "--", *paths) + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    # A container may have another owner than its checkout.
    asked = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(asked, cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()
