"""The parts of the benchmark that have a name: their figures, tables, and sections of the page."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.drains import DrainError
from benchmarks.growth import CASES, Growth, flat, per_thousand, rate_of_last
from benchmarks.latency import Latency, committed_at, latencies_ms, percentile, rows_by_batch
from benchmarks.page import markers
from benchmarks.parts import Part, run_part, whole_numbers
from benchmarks.recovery import Recovery, medians, options_for
from benchmarks.sink import Sink
from benchmarks.streams import Streams
from pyspark_mq.spark_source.options import parse_options

MIB = 1 << 20


def one_epoch(at_s: float, rows: int, took_s: float = 0.01, rss: int = 100 * MIB) -> dict[str, float]:
    return {"at_s": at_s, "rows": rows, "took_s": took_s, "rss": rss, "offset_bytes": 300 + rows}


GROWTH: dict[str, Any] = {
    "broker": "RabbitMQ 3.10.8",
    "backlog": [
        {
            "messages": 10_000,
            "turns": [{"rate": 20_000.0, "source_us": 8.0, "bare_rate": 40_000.0, "bare_us": 16.0, "peak": 100 * MIB}],
        },
        {
            "messages": 1_000_000,
            "turns": [
                {"rate": 24_000.0, "source_us": 8.4, "bare_rate": 30_000.0, "bare_us": 17.0, "peak": 105 * MIB},
                {"rate": 26_000.0, "source_us": 8.4, "bare_rate": 30_000.0, "bare_us": 17.0, "peak": 105 * MIB},
                {"rate": 25_000.0, "source_us": 8.4, "bare_rate": 20_000.0, "bare_us": 17.0, "peak": 105 * MIB},
            ],
        },
        {
            "messages": 10_000_000,
            "turns": [{"rate": 22_000.0, "source_us": 8.2, "bare_rate": 22_000.0, "bare_us": 16.0, "peak": 103 * MIB}],
        },
    ],
    "window": [
        {
            "window": 10_000,
            "messages": 110_000,
            "rate": 30_000.0,
            "source_us": 10.0,
            "rss": 100 * MIB,
            "peak": 120 * MIB,
        },
        {
            "window": 1_010_000,
            "messages": 1_110_000,
            "rate": 29_000.0,
            "source_us": 10.5,
            "rss": 200 * MIB,
            "peak": 220 * MIB,
        },
    ],
    "epochs": {
        "size": 10,
        "thousands": [
            {"first": 1, "last": 1000, "ms": 2.5, "rss": 90 * MIB, "offset_bytes": 290},
            {"first": 1001, "last": 2000, "ms": 3.0, "rss": 100 * MIB, "offset_bytes": 291},
            {"first": 2001, "last": 3000, "ms": 3.3, "rss": 110 * MIB, "offset_bytes": 292},
        ],
    },
    "held": [{"protocol": "stomp", "body_bytes": 200, "messages": 50_000, "held": 915.4, "planned": 2136.0}],
    "bytes": [
        {"limit": 8, "messages": 4915, "rate": 5000.0, "source_us": 20.0, "peak": 150 * MIB},
        {"limit": 16, "messages": 9830, "rate": 6000.0, "source_us": 20.0, "peak": 190 * MIB},
    ],
}
LATENCY: dict[str, Any] = {
    "broker": "RabbitMQ 3.10.8",
    "seconds": 5.0,
    "turns": [
        {"contender": "Spark rate", "ours": False, "rate": 100, "p50_ms": [700.0, 710.0, 900.0], "p99_ms": [1200.0],
         "messages": [500, 500, 500]},
        {"contender": "pyspark-mq stomp", "ours": True, "rate": 100, "p50_ms": [400.0, 500.0, 420.0], "p99_ms": [600.0],
         "messages": [500, 499, 500]},
    ],
}  # fmt: skip
RECOVERY: dict[str, Any] = {
    "broker": "RabbitMQ 3.10.8",
    "protocol": "amqp-0-9-1",
    "turns": [
        {"source": source, "rows": 10_000, "turns": [
            {"session": 4.0, "query": 5.0, "committed": committed - 1, **cpu},
            {"session": 4.2, "query": 5.2, "committed": committed, **cpu},
            {"session": 4.4, "query": 5.4, "committed": committed + 1, **cpu},
        ]}
        for source, committed in (("rate-micro-batch", 8.0), ("counting", 9.0), ("mq", 10.0))
        for cpu in [{"cpu_driver": 1.0, "cpu_jvm": committed, "cpu_source": 0.5, "cpu_workers": 0.5}]
    ],
}  # fmt: skip
KEPT = {"date": "2026-11-22", "machine": "Python 3.11, 2 cores", "seconds": 77, "cores_taken_by_others": 0.5}


# -- figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"), [("10000,100k", [10_000, 100_000]), ("1m", [1_000_000]), ("0,7", [0, 7]), ("2K", [2_000])]
)
def test_numbers_may_be_short(text: str, numbers: list[int]) -> None:
    assert whole_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "k", "1,,2", "1.5k", "-3", "one"])
def test_what_is_no_number_is_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no whole number such as 10000, 10k, 1m"):
        whole_numbers(text)


def test_the_last_rate_is_that_of_the_epochs_that_have_so_many() -> None:
    said = [one_epoch(0.0, 1_000), one_epoch(10.0, 2_000), one_epoch(11.0, 3_000), one_epoch(12.0, 6_000)]
    assert rate_of_last(said, 3_000) == pytest.approx(3_000)
    assert rate_of_last(said, 4_000) == pytest.approx(2_000)
    assert rate_of_last(said, 10**6) == pytest.approx(5_000 / 12)
    assert rate_of_last([*said, {"at_s": 99.0, "rows": 6_000, "rss": 1, "peak": 1}], 3_000) == pytest.approx(3_000)


def test_epochs_are_told_in_tenths() -> None:
    epochs = [one_epoch(at, at, took_s=0.001 * (at % 3 + 1), rss=at) for at in range(1, 31)]
    tenths = per_thousand(epochs, 30)
    assert [(one["first"], one["last"]) for one in tenths[:2]] == [(1, 3), (4, 6)]
    assert len(tenths) == 10
    assert tenths[1] == {"first": 4, "last": 6, "ms": pytest.approx(2.0), "rss": 6, "offset_bytes": 306}


def test_flat_is_how_far_the_most_is_above_the_least() -> None:
    assert flat([110.0, 100.0, 105.0]) == pytest.approx(0.1)
    assert flat([]) == 0.0


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 50) == 50.0
    assert percentile(values, 99) == 99.0
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


def test_latency_is_from_the_row_to_the_commit_of_its_batch() -> None:
    made = {0: [0], 1: [1_000_000, 1_200_000], 2: [1_500_000, 9_000_000]}
    committed = {0: 1e6, 1: 1_300_000.0, 2: 2_000_000.0}
    assert latencies_ms(made, committed, 1e6, 2e6) == [300.0, 100.0, 500.0]


def test_a_row_that_was_not_committed_is_no_fast_one() -> None:
    with pytest.raises(DrainError, match="batch 1 was not committed"):
        latencies_ms({1: [1_000_000]}, {}, 0, 2e6)
    with pytest.raises(DrainError, match="no row was committed"):
        latencies_ms({1: [1_000_000]}, {1: 2e6}, 5e6, 6e6)


def test_rows_and_commits_are_read_from_what_spark_writes(tmp_path: Path) -> None:
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / ".0.crc").write_text("", "utf-8")
    for batch, rows in ((0, []), (1, [5, 6])):
        file = tmp_path / "out" / f"part {batch}.parquet"
        pq.write_table(pa.table({"made_us": pa.array(rows, pa.int64())}), file)
        entry = json.dumps({"path": file.as_uri(), "action": "add"})
        (log / str(batch)).write_text(f"v1\n{entry}\n" if rows else "v1\n", "utf-8")
    commits = tmp_path / "commits"
    commits.mkdir()
    for name in ("1", ".1.crc"):
        (commits / name).write_text("v1\n{}", "utf-8")
        os.utime(commits / name, ns=(0, 1_700_000_000_123_456_000))
    assert rows_by_batch(tmp_path / "out") == {0: [], 1: [5, 6]}
    assert committed_at(tmp_path) == {1: pytest.approx(1_700_000_000_123_456.0, abs=1)}


def test_medians_are_of_each_step() -> None:
    assert medians([{"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 8.0}, {"a": 2.0, "b": 7.0}]) == {"a": 2.0, "b": 8.0}


@pytest.mark.parametrize("protocol", ["amqp-0-9-1", "stomp"])
@pytest.mark.parametrize("rows", [1, 10_000, 65_536, 100_000])
def test_an_epoch_to_be_killed_in_has_all_rows(rows: int, protocol: str) -> None:
    scheme = "amqp" if protocol == "amqp-0-9-1" else "stomp"
    settings = parse_options({**options_for(rows, protocol), "url": f"{scheme}://localhost", "queue": "q"}).settings
    assert settings.max_messages == settings.min_messages == rows
    assert settings.prefetch * settings.consumers >= rows


# -- what is shown ----------------------------------------------------------------------------


def test_growth_is_told_by_case() -> None:
    backlog, window, epochs, held, limits = Growth().tables(GROWTH)
    assert backlog.rows == [
        ("10,000", "1", "20,000", "40,000", "0.50", "8.0", "16.0", "100"),
        ("1,000,000", "3", "25,000", "30,000", "0.83", "8.4", "17.0", "105"),
        ("10,000,000", "1", "22,000", "22,000", "1.00", "8.2", "16.0", "103"),
    ]
    assert "rate 25%, of bare 100%, CPU of the source 5%, memory 5%" in backlog.notes[0]
    assert window.rows[1] == ("1,010,000", "1,110,000", "29,000", "10.5", "200", "220")
    assert "rate 3%, CPU of the source 5%, memory at the end 100%, most memory 83%" in window.notes[0]
    assert epochs.rows[2] == ("2,001-3,000", "3.30", "110.0", "292")
    assert "time 10%, memory 10%" in epochs.notes[0]
    assert held.rows == [("stomp", "200", "915", "2,136")]
    assert limits.rows == [("8", "4,915", "5,000", "20.0", "150", ""), ("16", "9,830", "6,000", "20.0", "190", "5.0")]


@pytest.mark.parametrize("case", CASES)
def test_growth_shows_what_was_measured_only(case: str) -> None:
    (table,) = Growth().tables({"broker": "b", case: GROWTH[case]})
    assert table.rows


def test_latency_is_compared_with_spark_at_the_same_rate() -> None:
    (table,) = Latency().tables(LATENCY)
    assert table.rows == [
        ["Spark rate", "100", "1,500", "710", "1,200", "", "700, 710, 900"],
        ["pyspark-mq stomp", "100", "1,499", "420", "600", "-290", "400, 500, 420"],
    ]


def test_recovery_is_compared_with_a_plain_start() -> None:
    (table,) = Recovery().tables(RECOVERY)
    assert [row[6] for row in table.rows] == ["1.00", "1.12", "1.25"]
    assert table.rows[2][7:] == ("1.0", "10.0", "0.5", "0.5", "12.0", "1.20")
    assert table.rows[2][:6] == ("pyspark-mq", "10,000", "4.20", "5.20", "10.00", "9.00-11.00")


@pytest.mark.parametrize(
    ("part", "results"),
    [(Growth(), GROWTH), (Latency(), LATENCY), (Recovery(), RECOVERY)],
    ids=["growth", "latency", "recovery"],
)
def test_a_part_writes_its_section_its_plots_and_its_json(
    tmp_path: Path, part: Part, results: dict[str, object]
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**KEPT, "results": results}), "utf-8")
    page = tmp_path / "performance.md"
    begin, end = markers(part.name)
    other = "\n".join(markers("another"))
    page.write_text(f"{other}\n{begin}\nold\n{end}\nafter\n", "utf-8")
    run_part(part, ["--load", str(file), "--page", str(page)], Path("nowhere"))
    text = page.read_text("utf-8")
    assert text.startswith(f"{other}\n{begin}\n\nPython 3.11, 2 cores, 2026-11-22, 77 s in all")
    assert text.endswith(f"{end}\nafter\n")
    assert "Other programs used 0.5 of the cores" in text
    for table in part.tables(results):
        assert f"### {table.title}" in text
        assert f"| {' | '.join(table.rows[0])} |" in text
        for row in table.rows:
            assert len(row) == len(table.headings)
    shown = [line.partition("(")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(shown) == 1
    ElementTree.fromstring((tmp_path / shown[0]).read_text("utf-8"))
    assert json.loads((tmp_path / "performance" / f"{part.name}.json").read_text("utf-8"))["results"] == results


@pytest.mark.parametrize(
    ("part", "results"), [(Latency(), LATENCY), (Recovery(), RECOVERY)], ids=["latency", "recovery"]
)
def test_turns_of_two_runs_are_put_together(part: Part, results: dict[str, Any]) -> None:
    first, *rest = results["turns"]
    again = {**first, "again": True}
    found = part.merged({**results, "broker": "old", "turns": [first]}, {**results, "turns": [*rest, again]})
    assert found["turns"] == [again, *rest]
    assert found["broker"] == results["broker"]


def test_what_is_not_measured_now_may_be_of_an_earlier_run(tmp_path: Path) -> None:
    first, second, both = (tmp_path / name for name in ("first.json", "second.json", "both.json"))
    first.write_text(json.dumps({**KEPT, "results": {"broker": "old", "held": GROWTH["held"]}}), "utf-8")
    now = {**KEPT, "seconds": 7, "cores_taken_by_others": 0.0}
    second.write_text(json.dumps({**now, "results": {"broker": "new", "bytes": GROWTH["bytes"]}}), "utf-8")
    run_part(Growth(), ["--load", str(second), "--add-to", str(first), "--json", str(both)], Path("nowhere"))
    found = json.loads(both.read_text("utf-8"))
    assert (found["seconds"], found["cores_taken_by_others"]) == (84, 0.5)
    assert found["results"] == {"broker": "new", "held": GROWTH["held"], "bytes": GROWTH["bytes"]}


def test_streams_are_shown_beside_other_clients_and_queues() -> None:
    who = {"ours": 0.6, "java": 1.2, "rstream": 6.0, "queue": 9.0}
    turns = [
        {"where": "alone", "who": one, "form": "equal", "rate": 480_000 / us, "cpu_us": us} for one, us in who.items()
    ]
    turns.append({"where": "spark", "who": "2 tasks", "form": "equal", "rate": 400_000.0, "cpu_us": 2.0})
    turns.append({"where": "spark", "who": "queue", "form": "equal", "rate": 20_000.0, "cpu_us": 30.0})
    alone, spark = Streams().tables({"broker": "RabbitMQ 4.3.6", "messages": 1_000, "turns": turns})
    figures = ("800,000", "0.60", "400,000", "1.20", "80,000", "6.00")
    assert alone.rows == [("bodies of 200 bytes", *figures, "10.0", "0.50")]
    assert "15 times as fast" in alone.notes[1]
    assert [row[-1] for row in spark.rows] == ["20.0", "1.0"]


def test_writing_is_shown_beside_the_bare_client_by_medians() -> None:
    figures = {"bare": (1_000.0, 30.0), "ours": (900.0, 16.0), "conversion": (9_000.0, 9.0)}
    turns = [
        {
            "entry": "c", "body_bytes": 4096, "tasks": 2, "who": who,
            "turns": [{"rate": rate * factor, "cpu_us": us} for factor in (0.5, 1, 3)],
        }
        for who, (rate, us) in figures.items()
    ]  # fmt: skip
    (table,) = Sink().tables({"turns": turns})
    assert table.rows == [["c", "4,096", "2", "1,000", "900", "0.90", "30.0", "16.0", "9.0"]]


@pytest.mark.whole
def test_writing_is_measured_with_the_same_messages(tmp_path: Path) -> None:
    file = tmp_path / "sink.json"
    words = ["--messages", "300", "--rounds", "1", "--bodies", "200", "--tasks", "1,2", "--entries", "rabbitmq 0-9-1"]
    run_part(Sink(), [*words, "--json", str(file)], tmp_path / "page.md")
    turns = json.loads(file.read_text("utf-8"))["results"]["turns"]
    assert [(one["tasks"], one["who"]) for one in turns] == [
        (tasks, who) for tasks in (1, 2) for who in ("bare", "ours", "conversion")
    ]
