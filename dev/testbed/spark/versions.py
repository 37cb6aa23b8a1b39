"""The versions of Spark that are tested, and what an interpreter with one of them can do."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["VERSIONS", "settles_at_once"]

#: The last of each minor version that this package runs on, oldest first.
VERSIONS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")


def settles_at_once(python: Path) -> bool:
    """Whether this Spark shows a source the committed offset when it plans, with limits and runs of several epochs.

    Asked as the source asks: by what there is to import.
    """
    asked = "import importlib.util as u, sys; sys.exit(u.find_spec('pyspark.sql.streaming.datasource') is None)"
    return subprocess.run([str(python), "-c", asked], check=False, capture_output=True).returncode == 0
