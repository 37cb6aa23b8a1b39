"""Errors: each has a short name that its texts carry, and a section of the page under it."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from pathlib import Path

import pytest

from pyspark_mq import errors
from pyspark_mq.ack.table import Event, IllegalEventError, State
from pyspark_mq.errors import DataLossError, MissingExtraError, MqError, OptionError

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
CLASSES: list[type[MqError]] = [getattr(errors, name) for name in errors.__all__]
PLAIN = [kind for kind in CLASSES if kind not in {OptionError, DataLossError}]
NAMES = {
    "BrokerError": "broker",
    "BrokerUnavailableError": "broker-unavailable",
    "CheckpointError": "checkpoint",
    "ConfigurationError": "configuration",
    "DataLossError": "data-loss",
    "DestinationError": "destination",
    "InternalError": "internal",
    "MessageError": "message",
    "MissingExtraError": "missing-extra",
    "MissingMessageIdError": "missing-message-id",
    "MqError": "error",
    "OptionError": "option",
    "RefusedError": "refused",
    "RowError": "row",
    "SchemaError": "schema",
    "WriteError": "write",
}


def sections() -> dict[str, str]:
    """The text of the page under each short name."""
    _, *parts = PAGE.read_text("utf-8").split("\n## ")
    under = {heading: text for heading, _, text in (part.partition("\n") for part in parts)}
    return {heading: text for heading, text in under.items() if heading[0].islower()}


def test_every_error_there_is_is_public() -> None:
    there = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, MqError)}
    assert there == set(errors.__all__) == set(NAMES)


def test_every_class_has_the_short_name_it_was_given_once() -> None:
    assert {kind.__name__: kind.short_name for kind in CLASSES} == NAMES
    assert len(set(NAMES.values())) == len(NAMES)
    assert [kind for kind in CLASSES if "short_name" not in vars(kind)] == []


def test_every_class_has_its_anchor_on_the_page_and_every_anchor_its_class() -> None:
    assert sorted(sections()) == sorted(NAMES.values())


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_section_names_its_class_and_says_what_to_do(kind: type[MqError]) -> None:
    text = sections()[kind.short_name]
    assert text.startswith(f"\n`{kind.__name__}`")
    assert "\nDo: " in text


def test_the_table_of_the_page_leads_to_every_section() -> None:
    head = PAGE.read_text("utf-8").partition("\n## Errors of this package\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"\[`([\w-]+)`\]\(#\1\)", head)) == sorted(NAMES.values())
    assert [name for name in NAMES if f"`{name}`" not in head] == []


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_a_text_begins_with_the_short_name(kind: type[MqError]) -> None:
    error = kind("queue 'orders': is gone")
    assert str(error) == f"[mq:{kind.short_name}] queue 'orders': is gone"
    assert error.text == "queue 'orders': is gone"


def test_an_error_of_an_option_names_it() -> None:
    error = OptionError("prefetch", "is empty")
    assert str(error) == "[mq:option] option 'prefetch': is empty"
    assert error.text == "option 'prefetch': is empty"


def test_a_kind_that_only_the_source_knows_has_the_name_of_its_class() -> None:
    assert str(IllegalEventError(State.UNSEEN, Event.COMMIT)).startswith("[mq:internal] ")


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
@pytest.mark.parametrize(
    "error",
    [
        *(kind("a text") for kind in PLAIN),
        OptionError("queue", "is required"),
        DataLossError("queue 'orders'", 7, ["a", "b"], "2 are missing"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: MqError, again: object) -> None:
    assert callable(again)
    other = again(error)
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def test_a_missing_library_is_an_import_error_with_a_short_name() -> None:
    with pytest.raises(ImportError, match=r"^\[mq:missing-extra\] protocol"):
        raise MissingExtraError("protocol 'stomp' needs 'stomp'")


# -- what the page quotes ----------------------------------------------------------------------

PACKAGE = Path(__file__).parents[2] / "pyspark_mq"
#: Where a text has a value: a field of an f-string, or one of the logger's.
_VALUE = "\0"
_LOGGED = re.compile(r"%(?:\.\d)?[sdrfg]|\{\w*\}")


def texts_of(source: str) -> list[str]:
    """All texts of a module, with a mark in place of each value."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else _VALUE for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(_LOGGED.sub(_VALUE, node.value))
    return found


def quoted() -> list[str]:
    """Log lines and errors of the package that the page quotes."""
    page = PAGE.read_text("utf-8")
    lines = page[page.index("## Log lines") :]
    example = " ".join(page[page.index("DataLossError: [") : page.index(" …\n```")].split())
    return [*re.findall(r"`(<queue>: [^`]+)`", lines), re.sub(r"\d+|'\w+'", "<value>", example.partition("] ")[2])]


def parts_of(quotation: str) -> list[str]:
    """What is said between its values."""
    parts = re.split(r"<\w+>s?|…", quotation)
    return [part.strip(" :,=") for part in parts if re.search(r"[a-z]{4}", part)]


@pytest.mark.parametrize("quotation", quoted())
def test_what_the_page_quotes_is_what_the_code_says(quotation: str) -> None:
    texts = [text for module in PACKAGE.rglob("*.py") for text in texts_of(module.read_text("utf-8"))]
    missing = [part for part in parts_of(quotation) if not any(part in text for text in texts)]
    assert missing == []


def test_a_quotation_that_is_stale_is_found() -> None:
    texts = texts_of('raise E(f"queue {name}: {count} messages did not come back")')
    assert any(part in texts[0] for part in parts_of("<queue>: <n> messages did not come back …"))
    assert not any(part in texts[0] for part in parts_of("<queue>: <n> messages never came back …"))
