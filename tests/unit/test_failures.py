"""A failure shows what to do, and not where in this package it was found."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from pyspark_mq.errors import BrokerUnavailableError, InternalError, MqError
from pyspark_mq.spark_source.datasource import MqDataSource
from pyspark_mq.spark_source.failures import without_traceback


def fails(error: MqError) -> None:
    raise error from OSError("the reason")


def texts(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_wrong_option_is_shown_behind_one_frame_of_the_package() -> None:
    with pytest.raises(MqError) as caught:
        MqDataSource({"subscribe": "orders"}).schema()
    frames = [one.name for one in traceback.extract_tb(caught.value.__traceback__) if "pyspark_mq" in one.filename]
    assert frames == ["outer"]


def test_neither_frames_nor_causes_stand_in_front_of_the_text() -> None:
    with pytest.raises(BrokerUnavailableError) as caught:
        without_traceback(fails)(BrokerUnavailableError("nobody answers"))
    assert "in fails" not in texts(caught.value)
    assert "the reason" not in texts(caught.value)


def test_the_same_holds_for_rows_in_a_task() -> None:
    def rows() -> Iterator[int]:
        yield 1
        fails(BrokerUnavailableError("nobody answers"))

    read = without_traceback(rows)()
    assert next(read) == 1
    with pytest.raises(BrokerUnavailableError) as caught:
        next(read)
    assert "the reason" not in texts(caught.value)


def test_a_defect_keeps_where_it_was_found() -> None:
    with pytest.raises(InternalError) as caught:
        without_traceback(fails)(InternalError("impossible"))
    assert "in fails" in texts(caught.value)
    assert "the reason" in texts(caught.value)


def test_the_log_has_all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "pyspark_mq")
    with pytest.raises(BrokerUnavailableError):
        without_traceback(fails)(BrokerUnavailableError("nobody answers"))
    assert "the reason" in caplog.text
