"""Filters for Python's loggers.

One filter escapes text from producers and brokers in this package's log lines. Another filter drops the lines that
client libraries (pika, stomp.py) log while they work for this package.
"""

from __future__ import annotations

import logging
import threading

from pyspark_mq.errors import shown

__all__ = ["LOGGERS", "escape_log_lines", "leave_out_own_lines"]

#: Names of all loggers that this package writes to.
LOGGERS = ("pyspark_mq", "pyspark_mq.listener")
#: Name of an attribute of thread objects. If set, the thread runs the command `pyspark-mq`, or writes rows in a task.
COMMAND = "pyspark_mq_command"
_formatter = logging.Formatter()


def escape_log_lines() -> None:
    """Install the filter that escapes this package's log lines. Calling this function again has no effect."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _escape not in logger.filters:
            logger.addFilter(_escape)


def leave_out_own_lines(library: str) -> None:
    """Drop the log lines that a client library writes while it works for this package.

    If other code in this process uses the library too, lines about that use are still logged. Call this function after
    importing the library, because the library creates its loggers on import.
    """
    names = [name for name in logging.root.manager.loggerDict if name == library or name.startswith(f"{library}.")]
    for name in [library, *names]:
        logger = logging.getLogger(name)
        if _is_of_others not in logger.filters:
            logger.addFilter(_is_of_others)


def _is_of_others(_: logging.LogRecord) -> bool:
    thread = threading.current_thread()
    # `begin_thread` gives the threads of a query this prefix. The command `pyspark-mq` looks at queues in its main
    # thread, and a task writes rows in Spark's thread, so both set an attribute instead.
    return not (thread.name.startswith("pyspark-mq") or getattr(thread, COMMAND, False))


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = shown(record.getMessage()), None
    if record.exc_info:
        record.exc_text = _formatter.formatException(record.exc_info)
        record.exc_info = None
    if record.exc_text:
        record.exc_text = "\n".join(f"  {shown(line.strip())}" for line in record.exc_text.splitlines())
    return True
