"""The pure parts of the benchmark: choice, figures, tables, plots, the page."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from benchmarks.bars import COLOURS, bars, stacked
from benchmarks.contenders import (
    BARE,
    CEILING,
    CONTENDERS,
    HAZELCAST,
    KINDS,
    OURS,
    PERF_TEST,
    RATE,
    Contender,
    Shape,
    choose,
    family,
    order_of,
)
from benchmarks.cpu import difference, tree_usage
from benchmarks.drains import OurDrain, interval_rates
from benchmarks.figures import Epoch, Figures, Turn, epoch_of, kept_ratios, ratios, steady_rate, summarise
from benchmarks.page import markers, replaced, said_of_others, write_page
from benchmarks.report import HEADINGS, Run, as_json, from_json, row, tables
from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP

README = Path(__file__).parents[3] / "README.md"
SHAPE = Shape(200, headers=False)
BEGIN, END = markers()
OURS_PIKA = Contender("rabbitmq", OURS, AMQP_0_9_1)
BARE_PIKA = Contender("rabbitmq", BARE, AMQP_0_9_1)


def figures_of(contender: Contender, rate: float, source_us: float = 10.0, steady: float | None = None) -> Figures:
    return Figures(contender, SHAPE, 1000, rate, rate, rate, steady, None, {"source": source_us, "broker": 20.0})


# -- the choice -------------------------------------------------------------------------------


def test_every_broker_and_protocol_there_is_has_ours_and_a_bare_client() -> None:
    spoken = {
        (name, protocol) for name, broker in BROKERS.items() for each in broker.protocols.values() for protocol in each
    }
    for kind in (OURS, BARE):
        assert {(one.broker, one.protocol) for one in CONTENDERS if one.kind == kind} == spoken


def test_names_are_unique_for_a_broker() -> None:
    for broker in BROKERS:
        names = [one.name for one in choose([broker], KINDS)[broker]]
        assert len(names) == len(set(names))


def test_only_what_is_asked_for_is_chosen() -> None:
    chosen = choose(["artemis", "rabbitmq"], [HAZELCAST, PERF_TEST])
    assert list(chosen) == ["artemis", "rabbitmq"]
    assert {one.kind for one in chosen["artemis"]} == {HAZELCAST}
    assert {one.kind for one in chosen["rabbitmq"]} == {HAZELCAST, PERF_TEST}
    assert [one.consumers for one in chosen["artemis"]] == [1, 2]


def test_a_guarantee_is_chosen_and_a_protocol_but_not_that_of_others() -> None:
    chosen = choose(["rabbitmq"], [OURS, BARE, HAZELCAST], [AMQP_0_9_1], ["exactly-once"])["rabbitmq"]
    assert [(one.kind, one.protocol, one.guarantee) for one in chosen] == [
        (OURS, AMQP_0_9_1, "exactly-once"),
        (BARE, AMQP_0_9_1, "exactly-once"),
        (HAZELCAST, "JMS", "exactly-once"),
        (HAZELCAST, "JMS", "exactly-once"),
    ]
    guarantees = [one.guarantee for one in choose(["rabbitmq"], [OURS], [AMQP_0_9_1])["rabbitmq"]]
    assert guarantees == ["exactly-once", "at-least-once", "none"]


def test_the_first_of_the_first_table_has_the_lines_of_the_readme() -> None:
    first = next(iter(choose(["rabbitmq"], KINDS)["rabbitmq"]))
    asked: dict[str, str] = {}

    class Spark:
        sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=SimpleNamespace(pid=1)))  # noqa: N815

        @property
        def readStream(self) -> Spark:
            return self

        def format(self, name: str) -> Spark:
            assert name == "mq"
            return self

        def options(self, **options: str) -> Spark:
            asked.update(options)
            return self

        def load(self) -> Spark:
            return self

    OurDrain(Spark(), first, "amqp://localhost", "orders", 1, {})._stream("/checkpoint")
    block = README.read_text("utf-8").partition('spark.readStream.format("mq")')[2].partition(".load()")[0]
    assert set(asked) == set(re.findall(r'\.option\("(\w+)"', block))
    assert (asked["broker"], asked["checkpointLocation"]) == ("rabbitmq", "/checkpoint")


def test_a_broker_may_have_a_version_and_a_kind_of_queue() -> None:
    (ours, *_) = choose(["rabbitmq-4.3-quorum"], [OURS])["rabbitmq-4.3-quorum"]
    assert (family(ours.broker), ours.kind) == ("rabbitmq", OURS)


def test_ours_is_held_against_what_the_broker_hands_out_at_all() -> None:
    chosen = choose(["rabbitmq-4.3"], [OURS, CEILING, PERF_TEST], [AMQP_0_9_1], ["exactly-once"])["rabbitmq-4.3"]
    rates = {OURS: 20_000, CEILING: 25_000, PERF_TEST: 40_000}
    found = dict(ratios([figures_of(one, rates[one.kind]) for one in chosen]))
    name = "rabbitmq-4.3 amqp-0-9-1"
    assert found == {
        f"{name}: ours / ceiling, 10,000 unacknowledged": 0.8,
        f"{name}: ours / ceiling, 65,535 unacknowledged": 0.8,
        f"{name}: ours / RabbitMQ PerfTest": 0.5,
    }


def test_the_floor_is_measured_once() -> None:
    chosen = choose(["activemq", "rabbitmq"], [RATE])
    assert {broker: [one.kind for one in found] for broker, found in chosen.items()} == {"activemq": [RATE]}


@pytest.mark.parametrize(("wanted", "share", "messages"), [(200_000, 0.15, 30_000), (1, 1.0, 1000), (2600, 0.5, 1000)])
def test_a_turn_has_whole_thousands(wanted: int, share: float, messages: int) -> None:
    # PerfTest acknowledges by the thousand: a rest would stay in the queue.
    assert Contender("rabbitmq", OURS, STOMP, share=share).messages(wanted) == messages


def test_rounds_have_different_orders_and_neighbours() -> None:
    assert order_of(0, "abcd") == ["a", "b", "c", "d"]
    assert order_of(1, "abcd") == ["a", "d", "c", "b"]
    assert order_of(2, "abcd") == ["c", "d", "a", "b"]


# -- figures ----------------------------------------------------------------------------------


def test_an_epoch_ends_when_its_trigger_does() -> None:
    progress = {"timestamp": "2026-11-22T04:05:06.250Z", "numInputRows": 7, "durationMs": {"triggerExecution": 1500}}
    epoch = epoch_of(progress)
    assert epoch.rows == 7
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(epoch.end_s)) == "2026-11-22 04:05:07"
    assert epoch.end_s % 1 == pytest.approx(0.75)


def test_the_steady_state_begins_behind_the_second_epoch() -> None:
    epochs = [Epoch(1000, 10.0), Epoch(1000, 11.0), Epoch(3000, 12.0), Epoch(1000, 13.0)]
    assert steady_rate(epochs) == pytest.approx(2000)
    assert steady_rate(epochs[:2]) is None
    assert steady_rate([Epoch(1, 1.0), Epoch(1, 2.0), Epoch(2, 2.0)]) is None
    # A last epoch of what was left over is no steady state.
    assert steady_rate([Epoch(50, 1.0), Epoch(40, 2.0), Epoch(10, 3.0)]) is None
    assert steady_rate([]) is None


def test_figures_are_medians() -> None:
    turns = [
        Turn(1000, 2.0, {"source": 0.010, "broker": 0.5}, 4, 600.0),
        Turn(1000, 1.0, {"source": 0.030, "broker": 0.1}, 5, None),
        Turn(1000, 4.0, {"source": 0.011, "broker": 0.3}, 9, 800.0),
    ]
    found = summarise(OURS_PIKA, SHAPE, turns)
    assert (found.rate, found.lowest, found.highest) == (500.0, 250.0, 1000.0)
    assert (found.steady, found.epochs) == (700.0, 5)
    assert found.cpu_us == pytest.approx({"source": 11.0, "broker": 300.0})


def test_ratios_are_of_the_steady_state_where_there_is_one() -> None:
    found = dict(
        ratios(
            [
                figures_of(OURS_PIKA, 10_000, source_us=5, steady=30_000),
                figures_of(BARE_PIKA, 20_000, source_us=20),
                figures_of(Contender("rabbitmq", OURS, AMQP_0_9_1, guarantee="none"), 40_000),
                figures_of(Contender("rabbitmq", OURS, STOMP), 25_000),
                figures_of(Contender("rabbitmq", OURS, AMQP_1_0), 5_000),
                figures_of(Contender("rabbitmq", HAZELCAST, "JMS", consumers=1), 5_000),
                figures_of(Contender("rabbitmq", HAZELCAST, "JMS", consumers=2), 3_000, steady=6_000),
                Figures(Contender("rabbitmq", BARE, STOMP), SHAPE, problem="not there"),
            ]
        )
    )
    assert found == {
        "rabbitmq amqp-0-9-1: ours / bare client": 1.5,
        "rabbitmq amqp-0-9-1: CPU of our source / bare client": 0.25,
        "rabbitmq: ours, best protocol (amqp-0-9-1) / Hazelcast, its best": 5.0,
        "rabbitmq: ours over AMQP 1.0 / ours over STOMP": 0.2,
        "rabbitmq amqp-0-9-1: exactly-once / none": 0.75,
    }


def test_what_is_kept_beside_a_busy_process_is_a_ratio_of_two_ratios() -> None:
    busy = Shape(200, headers=False, busy=1)
    found = kept_ratios(
        [
            figures_of(OURS_PIKA, 30_000),
            figures_of(BARE_PIKA, 40_000),
            replace(figures_of(OURS_PIKA, 12_000), shape=busy),
            replace(figures_of(BARE_PIKA, 20_000), shape=busy),
            replace(figures_of(BARE_PIKA, 20_000), shape=replace(busy, headers=True)),
        ]
    )
    name = "rabbitmq amqp-0-9-1: ours / bare client, 200-byte bodies, without headers, beside 1 busy process / without"
    assert found == [(name, pytest.approx((12 / 20) / (30 / 40)))]


def test_megabytes_are_those_of_the_bodies() -> None:
    assert replace(figures_of(OURS_PIKA, 10_000, steady=20_000), shape=Shape(4096, headers=True)).megabytes == 81.92


def test_cpu_is_of_the_processes_that_are_there_at_the_second_look() -> None:
    before = {"source": {1: 5.0}, "workers": {2: 3.0, 3: 1.0}}
    after = {"source": {1: 7.5}, "workers": {3: 1.5, 4: 0.25}}
    assert difference(after, before) == {"source": 2.5, "workers": 0.75}


def test_the_cpu_of_a_process_has_that_of_those_it_has_started() -> None:
    # Ten million turns of a loop, in a child of the process that is asked for.
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7)); print(1); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        usage = tree_usage("source", process.pid)["source"]
        process.communicate(b"\n")
    assert len(usage) == 2
    assert sum(usage.values()) - usage[process.pid] > 0.02
    assert tree_usage("source", process.pid) == {"source": {}}


def test_the_rates_that_perf_test_prints() -> None:
    said = (  # of 2.22.1, shortened
        "id: test-042050-604, starting consumer #0, channel #0\n"
        "id: test-042050-604, time 1.001 s, received: 8700 msg/s, min/median/75th consumer latency: 0/0/0 µs\n"
        "id: test-042050-604, time 2.002 s, received: 13476 msg/s, min/median/75th consumer latency: 0/0/0 µs\n"
        "id: test-042050-604, time 3.001 s, received: 0 msg/s, min/median/75th consumer latency: 0/0/0 µs\n"
        "test stopped\n"
        "id: test-042050-604, sending rate avg: 0 msg/s\n"
        "id: test-042050-604, receiving rate avg: 10200 msg/s\n"
    )  # fmt: skip
    assert interval_rates(said) == [8700.0, 13476.0]


# -- what is shown ----------------------------------------------------------------------------


def a_run() -> Run:
    figures = [
        figures_of(OURS_PIKA, 10_000, steady=30_000),
        figures_of(BARE_PIKA, 20_000),
        Figures(Contender("rabbitmq", PERF_TEST, AMQP_0_9_1), SHAPE, problem="Maven is not installed\nand more"),
    ]
    return Run(figures, {"rabbitmq": "RabbitMQ 3.10.8"}, "Python 3.11, 2 cores", 1000, 3, 17)


def test_a_run_comes_back_from_its_json() -> None:
    assert from_json(as_json(a_run())) == a_run()


def test_a_row_has_a_text_for_each_heading() -> None:
    figures = list(a_run().figures)
    assert row(figures[0], figures) == [
        "pyspark-mq amqp-0-9-1", "1,000", "10,000", "10,000-10,000", "30,000", "6.0", "", "1.50",
        "10.0", "", "", "20.0", "30.0",
    ]  # fmt: skip
    assert len(row(figures[0], figures)) == len(HEADINGS)
    assert row(figures[2], figures) == ["RabbitMQ PerfTest", "Maven is not installed"]


def test_the_terminal_is_told_what_could_not_be_measured() -> None:
    of_contenders, of_ratios = tables(a_run())
    assert of_contenders.row_count == 3
    assert of_contenders.caption == "could not be measured: RabbitMQ PerfTest: Maven is not installed"
    assert of_ratios.row_count == 2


def test_bars_are_as_long_as_their_values() -> None:
    drawn = ElementTree.fromstring(bars("of <all>", [("ours", 100.0, True), ("theirs & others", 25.0, False)]))
    widths = {
        one.get("fill"): float(one.get("width", "0"))
        for one in drawn.findall(".//{*}rect")
        if "%" not in one.get("width", "")
    }
    assert widths[COLOURS[0]] == pytest.approx(4 * widths[COLOURS[3]], abs=0.2)
    assert [text.text for text in drawn.findall(".//{*}text")] == ["of <all>", "ours", "100", "theirs & others", "25"]


def test_stacked_bars_have_their_parts_side_by_side() -> None:
    drawn = ElementTree.fromstring(stacked("CPU", ["source", "broker"], [("ours", [10.0, 30.0])]))
    first, second = [one for one in drawn.findall(".//{*}rect") if one.get("height") == "15"]
    assert float(second.get("x", "")) == pytest.approx(
        float(first.get("x", "")) + float(first.get("width", "")), abs=0.1
    )
    assert float(second.get("width", "")) == pytest.approx(3 * float(first.get("width", "")), abs=0.2)
    assert [text.text for text in drawn.findall(".//{*}text")][-1] == "40"


def test_no_values_are_no_bars() -> None:
    assert ElementTree.fromstring(bars("none", [("ours", 0.0, True)])) is not None


def test_a_page_keeps_what_is_around_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"# Before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    write_page(page, [a_run()])
    text = page.read_text("utf-8")
    assert text.startswith(f"# Before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| pyspark-mq amqp-0-9-1 | 1,000 | 10,000 |" in text
    assert "RabbitMQ PerfTest could not be measured: Maven is not installed" in text
    shown = re.findall(r"\((performance/[^)]*\.svg)\)", text)
    assert len(shown) == 2
    for file in shown:
        ElementTree.fromstring((tmp_path / file).read_text("utf-8"))


def test_a_part_rewrites_its_own_section_only(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    begin, end = markers("busy")
    page.write_text(f"{BEGIN}\nall\n{END}\n{begin}\nold\n{end}\nafter\n", "utf-8")
    write_page(page, [a_run()], "busy")
    text = page.read_text("utf-8")
    assert text.startswith(f"{BEGIN}\nall\n{END}\n{begin}\n\nPython")
    assert text.endswith(f"{end}\nafter\n")
    assert "old" not in text
    assert "performance/rabbitmq-200-busy-rate.svg" in text


def test_a_run_beside_other_programs_says_so() -> None:
    assert said_of_others(None) == said_of_others(0.1) == ""
    assert said_of_others(0.7) == " Other programs used 0.7 of the cores, so compare only the ratios of this run."


def test_a_page_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        replaced("# A page", "figures")
