"""Renews requirements-dev.txt: ``make lock``. The newest versions that go together, for each Python, found by uv.

Set-up installs these versions, so that everybody tests with the same ones until they are renewed, and checks their
hashes. They bind nobody who installs the package: pyproject.toml has the ranges for users.
"""

from __future__ import annotations

import re
import sys

from tools.release import LOCK, ROOT, run, tools

__all__: list[str] = []

_HEAD = """\
# Versions for development, of every extra and each Python. Written by `make lock`, which also renews them.
# What users get is in pyproject.toml.
"""


def main() -> int:
    """Write the file."""
    oldest = re.findall(r'^requires-python = ">=(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    asked = ["--universal", "--all-extras", "--upgrade", "--no-header", "--no-annotate", "--no-emit-index-url",
             "--generate-hashes"]  # fmt: skip
    found = run(
        tools(), "-m", "uv", "pip", "compile", "-q", "--python-version", oldest[0], *asked, ROOT / "pyproject.toml"
    )
    LOCK.write_text(_HEAD + found, "utf-8")
    print(f"written: {LOCK.name}, {found.count('==')} versions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
