"""Log lines: text of producers and brokers is escaped before a handler sees it."""

from __future__ import annotations

import logging
import threading

from pyspark_mq.errors import shown

__all__ = ["LOGGERS", "escape_log_lines", "leave_out_own_lines"]

#: All that this package writes to.
LOGGERS = ("pyspark_mq", "pyspark_mq.listener")
#: Attribute of a thread that belongs to the command line.
COMMAND = "pyspark_mq_command"
_formatter = logging.Formatter()


def escape_log_lines() -> None:
    """Install the filter. Repeated calls change nothing."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _escape not in logger.filters:
            logger.addFilter(_escape)


def leave_out_own_lines(library: str) -> None:
    """Silence a client library's log lines about its work for us. Its work for others in this process is still logged.

    To be called by the module that imports the library, after the import: the library's loggers exist by then.
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
