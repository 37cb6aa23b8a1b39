"""The versions of Spark that are tested."""

from __future__ import annotations

__all__ = ["VERSIONS"]

#: The first that this package runs on, and the last of each minor version, oldest first.
VERSIONS = ("4.0.0", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
