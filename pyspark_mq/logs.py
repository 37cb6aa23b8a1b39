"""Filters of log lines. They escape text from producers and brokers, and leave out lines of client libraries."""

from __future__ import annotations

import logging
import threading

from pyspark_mq.errors import shown

__all__ = ["LOGGERS", "escape_log_lines", "leave_out_own_lines"]

#: Names of all loggers that this package writes to.
LOGGERS = ("pyspark_mq", "pyspark_mq.listener")
#: Name of the attribute that marks a thread as one of the command `pyspark-mq`.
COMMAND = "pyspark_mq_command"
_formatter = logging.Formatter()


def escape_log_lines() -> None:
    """Install the filter that escapes the package's log lines. Repeated calls change nothing."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _escape not in logger.filters:
            logger.addFilter(_escape)


def leave_out_own_lines(library: str) -> None:
    """Silence the log lines that a client library writes while it works for this package.

    The library's work for other users in this process is still logged. Call this function in the module that imports
    the library, after the import, because the library's loggers exist by then.
    """
    names = [name for name in logging.root.manager.loggerDict if name == library or name.startswith(f"{library}.")]
    for name in [library, *names]:
        logger = logging.getLogger(name)
        if _is_of_others not in logger.filters:
            logger.addFilter(_is_of_others)


def _is_of_others(_: logging.LogRecord) -> bool:
    thread = threading.current_thread()
    # Receivers have threads of that name (`begin_thread`); in the main thread the command `pyspark-mq` looks at queues.
    return not (thread.name.startswith("pyspark-mq") or getattr(thread, COMMAND, False))


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = shown(record.getMessage()), None
    if record.exc_info:
        record.exc_text = _formatter.formatException(record.exc_info)
        record.exc_info = None
    if record.exc_text:
        record.exc_text = "\n".join(f"  {shown(line.strip())}" for line in record.exc_text.splitlines())
    return True
