"""Lines of the log: whatever producers and brokers have put into them is escaped before a handler sees it."""

from __future__ import annotations

import logging

from pyspark_mq.errors import shown

__all__ = ["LOGGERS", "escape_log_lines"]

#: All that this package writes to.
LOGGERS = ("pyspark_mq", "pyspark_mq.listener")
_formatter = logging.Formatter()


def escape_log_lines() -> None:
    """From now on. To call it, or to hand a line on to another process, a second time changes nothing."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _escape not in logger.filters:
            logger.addFilter(_escape)


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = shown(record.getMessage()), None
    if record.exc_info:
        record.exc_text = _formatter.formatException(record.exc_info)
        record.exc_info = None
    if record.exc_text:
        record.exc_text = "\n".join(f"  {shown(line.strip())}" for line in record.exc_text.splitlines())
    return True
