"""Removes the Python traceback from this package's errors, because Spark would print it before the error's text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, ParamSpec, TypeVar

from pyspark_mq.errors import InternalError, MqError

__all__ = ["without_traceback"]

_LOG = logging.getLogger("pyspark_mq")

A = ParamSpec("A")
R = TypeVar("R")


def without_traceback(call: Callable[A, R]) -> Callable[A, R]:
    """Decorate a method that Spark calls, so that it raises this package's errors without their traceback and cause.

    Users need the error's text, but Spark would print the whole traceback before the text
    (``python_streaming_source_runner.py``, ``worker.py``). The traceback is still logged at level DEBUG. An
    `InternalError`, and any error that is not an `MqError`, keeps its traceback.
    """

    @wraps(call)
    def outer(*positional: A.args, **named: A.kwargs) -> R:
        try:
            return call(*positional, **named)
        except InternalError:
            raise
        except MqError as error:
            raise _bare(error) from None

    @wraps(call)
    def generator(*positional: A.args, **named: A.kwargs) -> Any:
        try:
            yield from call(*positional, **named)  # type: ignore[misc]
        except InternalError:
            raise
        except MqError as error:
            raise _bare(error) from None

    return generator if isgeneratorfunction(call) else outer


def _bare(error: MqError) -> MqError:
    _LOG.debug("%s", error, exc_info=True)
    return error.with_traceback(None)
