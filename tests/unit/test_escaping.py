"""What others have written is shown escaped: on terminals, in log lines, in errors."""

from __future__ import annotations

import ast
import logging
import pickle
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pyspark_mq
from pyspark_mq import errors
from pyspark_mq.errors import DataLossError, MqError, OptionError, shown
from pyspark_mq.logs import LOGGERS
from pyspark_mq.sources.connections.session import SessionLostError

#: Control characters, directions and other formats, halves of pairs, private and unknown ones; ends of lines.
UNWANTED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
HOSTILE = "ok\x1b[2J\x1b]0;title\x07\r\n2026-01-01 ERROR forged\u2028x\u202egnp.exe\x9b31m\x7f\ud800"


def harmless(text: str) -> bool:
    return not any(unicodedata.category(one) in UNWANTED for one in text)


@given(st.text(st.characters(codec=None)))
@example(HOSTILE)
def test_nothing_that_moves_a_cursor_ends_a_line_or_turns_the_writing_is_shown(text: str) -> None:
    assert harmless(shown(text))
    assert shown(shown(text)) == shown(text)
    if text.isascii() and text.isprintable():
        assert shown(text) == text


@pytest.mark.parametrize("text", ["Größe-1", "\u6ce8\u6587", "\u0437\u0430\u043a\u0430\u0437", "a b", "C:\\x1b"])
def test_letters_of_every_script_are_shown_as_they_are(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_no_error_shows_what_a_broker_or_a_producer_has_put_into_it(kind: type[MqError]) -> None:
    error: MqError
    if kind is OptionError:
        error = OptionError("queue", HOSTILE)
    elif kind is DataLossError:
        error = DataLossError("q", 1, [HOSTILE], f"missing: {HOSTILE}")
        assert error.missing == (HOSTILE,)
    else:
        error = kind(HOSTILE)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert harmless(str(one))
        assert harmless(one.text)
        assert harmless(repr(one))
        assert "forged" in str(one)


def test_the_end_of_a_session_does_not_show_it_as_the_cause_of_an_error_either() -> None:
    assert harmless(str(SessionLostError(HOSTILE)))


@pytest.mark.parametrize("name", LOGGERS)
def test_no_line_of_the_log_is_forged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(name)
    with caplog.at_level(logging.INFO, name):
        log.info("%s: session lost: %s", "stomp://host", HOSTILE)
        log.warning(HOSTILE)
        log.error("100%")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR"]
    lines = caplog.text.splitlines()
    assert len(lines) == 3
    assert all(map(harmless, lines))
    assert lines[-1].endswith("100%")


def test_no_line_of_the_log_is_forged_by_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        int(HOSTILE)
    except ValueError:
        logging.getLogger("pyspark_mq").exception("it failed")
    first, *others = caplog.text.splitlines()
    assert first.endswith("it failed")
    assert all(line.startswith("  ") and harmless(line) for line in others)
    assert any("Traceback" in line for line in others)


def test_every_line_of_the_log_goes_through_the_same_hands() -> None:
    named = {
        ast.unparse(node.args[0])
        for path in (Path(pyspark_mq.__file__).parent).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"
    }
    # Those of libraries are told to be silent; that of a record of another process is one of ours.
    assert named <= {*map(repr, LOGGERS), "'pika'", "'stomp.py'", "name", "said.name"}
