"""What a soak knows of its run: the files of the sink as they come, and the same again after a restart."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.chaos.audit import Output, output_marks, verdict
from testbed.chaos.chaos import Publisher
from testbed.chaos.faults import FAULTS, PERIODIC, fault_of
from testbed.chaos.history import History
from testbed.chaos.queues import PrivateBroker
from testbed.chaos.record import Numbering, Record, RecordedPublisher
from testbed.process import NodeError, PublishError

RUN = "0123456789abcdef01234567"


class Sink:
    """Files as Spark's file sink writes them: its log has a file for each batch, every tenth with all before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "output"
        self.log = self.folder / "_spark_metadata"
        self.log.mkdir(parents=True)
        self.lines: list[str] = []
        self.batches = 0

    def file(self, part: int, rows: Sequence[str]) -> Path:
        path = self.folder / f"part-{part:05d}-{self.batches}-{len(list(self.folder.iterdir()))}.parquet"
        pq.write_table(pa.table({"body": [row.encode() + b" and more" for row in rows]}), path)
        return path

    def commit(self, *parts: Sequence[str]) -> None:
        files = [self.file(number, rows) for number, rows in enumerate(parts)]
        # In the order in which the tasks ended.
        new = [json.dumps({"path": file.as_uri(), "size": 1}) for file in reversed(files)]
        self.lines += new
        compact = self.batches % 10 == 9
        name = f"{self.batches}.compact" if compact else str(self.batches)
        (self.log / name).write_text("\n".join(["v1", *(self.lines if compact else new)]), "utf-8")
        (self.log / f".{name}.crc").write_bytes(b"x")
        self.batches += 1


def marks(first: int, count: int) -> list[str]:
    return Numbering(RUN).marks(first, count)


def record_in(folder: Path) -> tuple[History, Record]:
    history = History(folder)
    return history, Record(history, Numbering(RUN), folder)


# -- numbers ----------------------------------------------------------------------------------


def test_a_mark_is_its_number_and_others_are_not() -> None:
    numbering = Numbering(RUN)
    (mark,) = numbering.marks(1_234_567, 1)
    assert len(mark) == 36
    assert numbering.number(mark) == 1_234_567
    for strange in ("", "x" * 36, Numbering("f" * 24).marks(1, 1)[0], mark[:-1] + "x"):
        assert numbering.number(strange) == strange


def test_ids_are_those_of_their_messages_at_every_time() -> None:
    ids = Numbering(RUN).ids(marks(0, 1_000))
    assert len(set(ids)) == 1_000
    assert Numbering(RUN).ids(marks(500, 1)) == [ids[500]]
    assert Numbering("f" * 24).ids(Numbering("f" * 24).marks(500, 1)) != [ids[500]]


def test_a_name_that_leaves_no_room_for_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="characters"):
        Numbering("short")


# -- the sink ---------------------------------------------------------------------------------


def test_batches_are_read_once_and_in_order(tmp_path: Path) -> None:
    sink, read = Sink(tmp_path), []
    output = Output(sink.folder)
    assert list(output.new()) == []
    for number in range(25):
        sink.commit([f"{number} a"], [f"{number} b"])
        if number % 4 == 0:
            read += list(output.new())
    read += list(output.new())
    assert [(batch.since, batch.number) for batch in read] == [(number, number) for number in range(25)]
    assert [file.name.split("-")[1] for batch in read for file in batch.files] == ["00000", "00001"] * 25
    assert len(output_marks(sink.folder)) == 50


@pytest.mark.parametrize("read_before", [0, 3, 12])
def test_batches_whose_own_files_are_gone_are_read_as_one(tmp_path: Path, read_before: int) -> None:
    sink = Sink(tmp_path)
    output = Output(sink.folder)
    for number in range(23):
        sink.commit([f"{number}"])
        if number + 1 == read_before:
            assert len(list(output.new())) == read_before
    for number in range(19):
        (sink.log / str(number)).unlink(missing_ok=True)
    (sink.log / "9.compact").unlink()
    batches = list(output.new())
    assert [(batch.since, batch.number) for batch in batches] == [(read_before, 19), (20, 20), (21, 21), (22, 22)]
    assert sum(len(batch.files) for batch in batches) == 23 - read_before


# -- what was seen ----------------------------------------------------------------------------


def test_a_record_goes_on_where_it_was(tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    history, record = record_in(tmp_path)
    record.enqueue("invoke", marks(0, 30))
    record.enqueue("ok", marks(0, 30))
    record.enqueue("invoke", marks(30, 10))  # and then it was killed
    sink.commit(marks(0, 10), marks(10, 5))
    record.poll(at_once=True)
    for kind, name in [("invoke", "cut"), ("ok", "cut"), ("invoke", "cut"), ("fail", "cut"), ("invoke", "kill")]:
        history.add(kind, "fault", name, "faults")
    history.close()

    history, record = record_in(tmp_path)
    assert (record.sent, record.turns, record.faults) == (30, 3, {"cut": 1})
    sink.commit(marks(15, 15))
    assert not record.all_read(31)
    assert record.all_read(30)
    record.sent = 30
    assert record.verdict(0).holds
    history.close()
    values = [each["value"] for each in History(tmp_path).read() if each["f"] == "dequeue"]
    assert values == [[[0, 14]], [[15, 29]]]


def test_a_verdict_counts_what_is_wrong(tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    _, record = record_in(tmp_path)
    record.enqueue("ok", marks(0, 10))
    record.sent = 10
    sink.commit(marks(0, 4), marks(3, 2))
    sink.commit(["x" * 36], marks(10, 1))
    record.poll(at_once=True)
    verdict = record.verdict(left=1)
    assert (verdict.lost, verdict.duplicated, verdict.unexpected, verdict.left) == (4, 1, 2, 1)
    assert verdict.examples["missing"] == ["5", "6", "7", "8", "9"]
    assert verdict.examples["duplicated"] == ["3"]
    assert not verdict.holds


def test_files_that_no_batch_names_are_written_down_once_as_attempts(tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    history, record = record_in(tmp_path)
    sink.commit(marks(0, 4))
    sink.file(0, marks(0, 2))
    (sink.folder / "part-00001-torn.parquet").write_bytes(b"PAR1 and no more")
    record.look_at_leftovers()
    record.look_at_leftovers()
    assert record_in(tmp_path)[1].attempts == 1
    assert [each["value"] for each in history.read() if each["f"] == "attempt"] == [[[0, 1]]]


def test_what_the_source_settled_is_written_down_once(tmp_path: Path) -> None:
    history, record = record_in(tmp_path)
    report = tmp_path / "counters.jsonl"
    lines = [json.dumps({"run": "a", "batch": n, "rows": 1, "settled": 10 * n}) + "\n" for n in range(3)]
    report.write_text("".join(lines[:1]) + lines[1][:5], "utf-8")
    record.poll(at_once=True)
    report.write_text("".join(lines) + '{"run": "a", "batch": 3, "rows": 0}\n', "utf-8")
    record_in(tmp_path)[1].poll(at_once=True)
    acks = [each["value"] for each in history.read() if each["f"] == "ack"]
    assert acks == [{"run": "a", "batch": n, "settled": 10 * n} for n in range(3)]


def test_a_publisher_goes_on_after_what_was_confirmed_and_sends_the_rest_again_alike(tmp_path: Path) -> None:
    sent: list[tuple[list[bytes], list[str]]] = []

    def run() -> None:
        _, record = record_in(tmp_path)
        publisher = RecordedPublisher(record, lambda bodies, ids: sent.append((list(bodies), list(ids))), 450, 0, 1)
        publisher.start()
        publisher.join(30)
        assert record.sent == 450

    history, record = record_in(tmp_path)
    record.enqueue("ok", marks(0, 200))
    record.enqueue("invoke", marks(200, 100))
    history.close()
    run()
    assert [body[:36].decode() for body in sent[0][0]] == marks(200, 250)
    assert sent[0][1] == Numbering(RUN).ids(marks(200, 250))
    sent.clear()
    run()
    assert sent == []


def test_a_publisher_that_ends_of_itself_is_no_publisher_that_has_sent_all(tmp_path: Path) -> None:
    def send(_: Sequence[bytes], ids: Sequence[str]) -> None:
        if Numbering(RUN).ids(marks(300, 1))[0] in ids:
            raise RuntimeError("struct.error")

    _, record = record_in(tmp_path)
    publisher = RecordedPublisher(record, send, 450, 0, 9)
    publisher.start()
    publisher.join(30)
    assert record.sent == 300
    with pytest.raises(NodeError, match=r"ended after 300 of 450 messages.*struct\.error"):
        publisher.check()


def test_a_chunk_that_was_abandoned_unconfirmed_may_be_in_the_output_once_or_not_at_all() -> None:
    failing = threading.Event()
    arrived: list[str] = []

    def send(bodies: Sequence[bytes], _: Sequence[str]) -> None:
        arrived.extend(body[:36].decode() for body in bodies[:33])
        failing.set()
        raise PublishError("queue", 0, "connection lost")

    publisher = Publisher(send, 450, 0)
    publisher.start()
    assert failing.wait(30)
    publisher.stop()
    one = arrived[:33]
    assert publisher.arrived([]) == publisher.sent == []
    assert sorted(publisher.arrived([*one, "strange"])) == sorted(one)
    twice = verdict(publisher.arrived([*one, one[0]]), [*one, one[0]], 0)
    assert (twice.lost, twice.duplicated, twice.unexpected) == (0, 1, 0)


def test_what_a_sink_was_handed_is_written_down_with_its_batch_once(tmp_path: Path) -> None:
    history, record = record_in(tmp_path)
    calls = [json.dumps({"batch": number, "marks": marks(number * 5, 5)}) + "\n" for number in (0, 1, 1)]
    (tmp_path / "calls.jsonl").write_text("".join(calls), "utf-8")
    record.look_at_leftovers()
    record_in(tmp_path)[1].look_at_leftovers()
    attempts = [(each["batch"], each["value"]) for each in history.read() if each["f"] == "attempt"]
    assert attempts == [(0, [[0, 4]]), (1, [[5, 9]]), (1, [[5, 9]])]


# -- the faults -------------------------------------------------------------------------------


def test_a_round_has_every_kind_first_and_the_quick_ones_more_often() -> None:
    size = sum(FAULTS.values())
    for number in range(3):
        turns = [fault_of(7, number * size + turn) for turn in range(size)]
        assert Counter(turns) == FAULTS
        assert set(turns[: len(FAULTS)]) == set(FAULTS)
    assert [fault_of(7, turn) for turn in range(size)] != [fault_of(8, turn) for turn in range(size)]
    assert FAULTS["cut"] > FAULTS["kill -9 of the JVM"]


def test_of_a_third_of_the_periodic_runs_the_sink_fails() -> None:
    runs = Counter(fault_of(7, turn, PERIODIC) for turn in range(1_000))
    assert abs(sum(count for name, count in runs.items() if "fails" in name) - 333) <= len(PERIODIC)
    assert min(runs.values()) > 100


# -- the history ------------------------------------------------------------------------------


def test_the_time_between_a_run_and_its_resumption_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10, 12, 15, 100, 101.5])
    monkeypatch.setattr("testbed.chaos.history.time.time_ns", lambda: int(next(clock) * 1e9))
    with History(tmp_path) as history:
        for f in ("run", "enqueue", "dequeue", "run", "left"):
            history.add("info", f, 0, "test")
        assert history.seconds() == 6.5
        assert history.digest() == hashlib.sha256(history.json.read_bytes()).hexdigest()


# -- several queues ---------------------------------------------------------------------------


def test_of_several_queues_each_is_sent_more_than_the_next() -> None:
    broker = PrivateBroker("artemis", "a,b,c")
    try:
        ids = Numbering(RUN).ids(marks(0, 6_400))
        counts = Counter(map(broker.queue_of, ids))
        assert [round(counts[queue] / 400) for queue in "abc"] == [12, 3, 1]
        assert [broker.queue_of(one) for one in ids] == [broker.queue_of(one) for one in ids]
    finally:
        broker.node.close()
