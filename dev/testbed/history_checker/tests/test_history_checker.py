"""The checker of histories: it knows nothing of us, finds every kind of fault, and in both forms of a history."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.chaos.history import History, packed, unpacked
from testbed.history_checker.check import Findings, check, parse_edn

DEV = Path(__file__).parents[3]
FORMS = ["history.jsonl", "history.edn"]
Operations = list[dict[str, Any]]


def good() -> Operations:
    """A run as it should be: a chunk that was sent twice, a task that was killed, a queue that is empty."""
    told = [
        ("info", "run", {"seed": 1, "protocol": None, "quorum": False, "said": 'a "word"\\ and ä'}, {}),
        ("invoke", "enqueue", [[0, 9]], {}),
        ("ok", "enqueue", [[0, 9]], {}),
        ("invoke", "fault", "cut", {}),
        ("invoke", "enqueue", [[10, 19]], {}),
        ("ok", "dequeue", [[0, 4]], {"batch": 0, "since": 0, "files": 1}),
        ("ok", "fault", "cut", {}),
        ("info", "enqueue", [[10, 19]], {}),
        ("ok", "dequeue", [8, 5, [6, 7], 9], {"batch": 1, "since": 1, "files": 1}),
        ("info", "ack", {"run": "a", "batch": 0, "settled": 5}, {"upto": 100}),
        ("info", "usage", {"JVM: MiB": 300, "offset: bytes": 1_460}, {}),
        ("invoke", "enqueue", [[10, 19]], {}),
        ("ok", "enqueue", [[10, 19]], {}),
        ("ok", "dequeue", [[10, 19]], {"batch": 3, "since": 2, "files": 2}),
        ("info", "attempt", [5, 6], {"file": "part-0"}),
        ("ok", "left", 0, {}),
    ]
    return [{"type": kind, "f": f, "value": value, "process": "test", **more} for kind, f, value, more in told]


def written(folder: Path, operations: Operations) -> Path:
    with History(folder) as history:
        for each in operations:
            more = {key: each[key] for key in each if key not in {"type", "f", "value", "process"}}
            history.add(each["type"], each["f"], each["value"], each["process"], **more)
    return folder


def wrong(findings: Findings) -> dict[str, int]:
    return {name: kind.count for name, kind in findings.wrong.items() if kind.count}


def at(operations: Operations, f: str, which: int = 0) -> dict[str, Any]:
    return [each for each in operations if each["f"] == f][which]


# -- it is an outsider ------------------------------------------------------------------------


def test_the_checker_shares_no_code_with_what_it_checks() -> None:
    files = sorted((DEV / "testbed" / "history_checker").glob("*.py"))
    assert len(files) == 2
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [str(node.module)]
            assert [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names] == []


def test_it_runs_alone_and_its_exit_code_is_the_verdict(tmp_path: Path) -> None:
    file = written(tmp_path, good()) / "history.jsonl"
    program = [sys.executable, "-I", "-S", str(DEV / "testbed" / "history_checker" / "check.py"), str(file)]
    told = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (told.returncode, told.stdout.splitlines()[-1], told.stderr) == (0, "It holds.", "")
    with file.open("ab") as more:
        more.write(b'{"torn')
    told = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert told.returncode == 1
    assert "the last line is torn" in told.stdout


# -- what it finds ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_good_history_holds(tmp_path: Path, form: str) -> None:
    findings = check(written(tmp_path, good()) / form)
    assert wrong(findings) == {}
    assert findings.holds
    counts = {name: findings.counts[name] for name in ("operations", "sent", "dequeued", "batches", "faults")}
    assert counts == {"operations": 16, "sent": 20, "dequeued": 20, "batches": 4, "faults": 1}


def lose(history: Operations) -> None:
    at(history, "dequeue", 1)["value"] = [8, 5, [6, 7]]


def double(history: Operations) -> None:
    at(history, "dequeue", 2)["value"] = [4, [10, 19]]


def double_within_a_batch(history: Operations) -> None:
    at(history, "dequeue")["value"] = [[0, 4], 4]


def invent(history: Operations) -> None:
    at(history, "dequeue")["value"] = [[0, 4], 20]


def strange(history: Operations) -> None:
    at(history, "dequeue")["value"] = [[0, 4], "of another run"]


def too_early(history: Operations) -> None:
    history.insert(1, history.pop(5))


def leave(history: Operations) -> None:
    at(history, "left")["value"] = 3


def replay_with_other_rows(history: Operations) -> None:
    again = dict(at(history, "dequeue"), value=[[0, 3]])
    history.insert(-1, again)


def replay_in_another_order(history: Operations) -> None:
    again = dict(at(history, "dequeue", 1), value=[5, [6, 7], 8, 9])
    history.insert(-1, again)


def attempt_at_other_rows(history: Operations) -> None:
    at(history, "attempt")["value"] = [5, 7]


def attempt_across_batches(history: Operations) -> None:
    at(history, "attempt")["value"] = [[3, 5]]


def hand_over_less(history: Operations) -> None:
    at(history, "attempt")["value"] = [5, 6]
    at(history, "attempt")["batch"] = 1


def hand_over_nothing(history: Operations) -> None:
    at(history, "attempt").update(value=[], batch=1)


def hand_over_another_batch(history: Operations) -> None:
    at(history, "attempt").update(value=[[0, 4]], batch=1)


def hand_over_a_batch_that_does_not_come(history: Operations) -> None:
    at(history, "attempt")["batch"] = 4


def skip_a_batch(history: Operations) -> None:
    at(history, "dequeue", 2)["since"] = 3


def swap_batches(history: Operations) -> None:
    first, second = at(history, "dequeue"), at(history, "dequeue", 1)
    for name in ("batch", "since"):
        first[name], second[name] = second[name], first[name]


def stop_before_the_end(history: Operations) -> None:
    history.pop()


def go_on_after_the_end(history: Operations) -> None:
    history += [{**at(history, "enqueue"), "value": [[20, 29]]}]


def kill_after_the_end(history: Operations) -> None:
    history += [{**at(history, "fault"), "value": "kill"}]


def send_less_than_was_to_be_sent(history: Operations) -> None:
    at(history, "run")["value"] = {"messages": 21}


def look_in_vain(history: Operations) -> None:
    at(history, "left")["type"] = "fail"


def take_what_was_never_sent(history: Operations) -> None:
    at(history, "enqueue", 1)["value"] = [[0, 30]]


FAULTS: list[tuple[Callable[[Operations], None], dict[str, int]]] = [
    (lose, {"lost": 1}),
    (double, {"duplicated": 1}),
    (double_within_a_batch, {"duplicated": 1}),
    (invent, {"unexpected": 1}),
    (strange, {"unexpected": 1}),
    (too_early, {"unexpected": 5}),
    (leave, {"left": 3}),
    (replay_with_other_rows, {"replayed otherwise": 1}),
    (replay_in_another_order, {"replayed otherwise": 1}),
    (attempt_at_other_rows, {"replayed otherwise": 1}),
    (attempt_across_batches, {"replayed otherwise": 1}),
    (hand_over_less, {"replayed otherwise": 1}),
    (hand_over_nothing, {"replayed otherwise": 1}),
    (hand_over_another_batch, {"replayed otherwise": 1}),
    (hand_over_a_batch_that_does_not_come, {"replayed otherwise": 1}),
    (skip_a_batch, {"batches missing": 1}),
    (swap_batches, {"batches missing": 3}),
    (stop_before_the_end, {"unfinished": 1}),
    (go_on_after_the_end, {"unfinished": 1}),
    (kill_after_the_end, {"unfinished": 1}),
    (look_in_vain, {"unfinished": 1}),
    (send_less_than_was_to_be_sent, {"unfinished": 1}),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("spoil", "found"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_each_kind_of_fault_is_found(
    tmp_path: Path, form: str, spoil: Callable[[Operations], None], found: dict[str, int]
) -> None:
    operations = good()
    spoil(operations)
    assert wrong(check(written(tmp_path, operations) / form)) == found


def test_a_message_that_was_taken_has_been_sent(tmp_path: Path) -> None:
    operations = good()
    take_what_was_never_sent(operations)
    assert wrong(check(written(tmp_path, operations) / "history.jsonl"))["malformed"] == 1


@pytest.mark.parametrize("taken", [0, 4, 10])
def test_what_nobody_knows_to_be_taken_may_arrive_or_not(tmp_path: Path, taken: int) -> None:
    operations = [each for each in good() if (each["type"], each["value"]) != ("ok", [[10, 19]])]
    operations.insert(-2, {**at(good(), "dequeue", 2), "value": packed(range(10, 10 + taken))})
    findings = check(written(tmp_path, operations) / "history.jsonl")
    assert wrong(findings) == {}
    assert (findings.counts["unsure"], findings.counts["unsure and dequeued"]) == (10, taken)


def test_what_nobody_knows_to_be_taken_may_not_arrive_twice(tmp_path: Path) -> None:
    operations = [each for each in good() if (each["type"], each["value"]) != ("ok", [[10, 19]])]
    operations.insert(-2, {**at(good(), "dequeue", 2), "value": [[10, 12], 11]})
    assert wrong(check(written(tmp_path, operations) / "history.jsonl")) == {"duplicated": 1}


def test_a_batch_that_is_there_again_with_the_same_rows_is_none_of_its_own(tmp_path: Path) -> None:
    operations = good()
    operations.insert(-1, dict(at(operations, "dequeue", 1)))
    assert wrong(check(written(tmp_path, operations) / "history.edn")) == {}


@pytest.mark.parametrize("form", FORMS)
def test_a_torn_last_line_is_no_end(tmp_path: Path, form: str) -> None:
    file = written(tmp_path, good()) / form
    file.write_bytes(file.read_bytes()[:-5])
    assert set(wrong(check(file))) == {"malformed", "unfinished"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("line", [0, 7, 13])
def test_a_line_that_is_missing_is_found(tmp_path: Path, form: str, line: int) -> None:
    file = written(tmp_path, good()) / form
    lines = file.read_bytes().splitlines(keepends=True)
    del lines[line]
    file.write_bytes(b"".join(lines))
    assert wrong(check(file))["malformed"] == 1


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_history_does_not_hold(tmp_path: Path, form: str) -> None:
    file = written(tmp_path, []) / form
    assert file.exists()
    assert not check(file).holds


# -- EDN --------------------------------------------------------------------------------------


def test_edn_is_read_as_json_is(tmp_path: Path) -> None:
    written(tmp_path, good())
    as_json = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text("utf-8").splitlines()]
    as_edn = [parse_edn(line) for line in (tmp_path / "history.edn").read_text("utf-8").splitlines()]
    assert as_edn == as_json


@pytest.mark.parametrize("text", ["{:a}", "[1 2", '"open', "1 2", "", "{:a 1", ":", "word"])
def test_what_is_no_edn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_edn(text)


# -- the history that is written --------------------------------------------------------------


@pytest.mark.parametrize("values", [[], [5], [1, 2, 3], [3, 2, 1], [1, "x", 2, 3], ["x"], [0, 1, 1, 2]])
def test_rows_are_packed_in_their_order(values: list[int | str]) -> None:
    assert list(unpacked(packed(values))) == values


@pytest.mark.parametrize(("torn_json", "torn_edn"), [(3, 0), (0, 3), (200, 900), (3, 3)])
def test_a_history_goes_on_after_a_kill_at_any_byte(tmp_path: Path, torn_json: int, torn_edn: int) -> None:
    operations = good()
    written(tmp_path, operations[:-1])
    # What is written second can only be behind.
    json_file, edn_file = tmp_path / FORMS[0], tmp_path / FORMS[1]
    json_file.write_bytes(json_file.read_bytes()[: -torn_json or None])
    edn_file.write_bytes(edn_file.read_bytes()[: -max(torn_edn, torn_json * 2) or None])
    with History(tmp_path) as history:
        kept = list(history.read())
    expected = operations[: len(kept)]
    assert [each["value"] for each in kept] == [each["value"] for each in expected]
    written(tmp_path, operations[len(kept) :])
    assert wrong(check(json_file)) == wrong(check(edn_file)) == {}
