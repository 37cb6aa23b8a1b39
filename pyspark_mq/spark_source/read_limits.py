"""Spark's classes for read limits, which `latestOffset` receives, and its mix-in class for `Trigger.AvailableNow`.

Spark before 4.2 lacks these classes, so this module defines substitutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
    except ImportError:  # before Spark 4.2: no limits, no AvailableNow, no `start` in latestOffset

        class SupportsTriggerAvailableNow:
            """Substitute for Spark's mix-in class, which this version of Spark lacks."""

        ReadAllAvailable = ReadMaxRows = None

__all__ = ["ReadAllAvailable", "ReadMaxRows", "SupportsTriggerAvailableNow", "is_unlimited"]


def is_unlimited(limit: Any) -> bool:
    """Whether this limit tells a source to read everything that is available."""
    return ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable)
