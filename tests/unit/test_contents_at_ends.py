"""What is lost of equal messages without IDs: at most the first repetition after an unclean end.

The first three lost every repetition, one with each start, and one that had been settled for hours.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from pyspark_mq.dedup import EpochFile, Memory
from pyspark_mq.errors import DataLossError
from tests.support.engine import At, Crashed
from tests.support.memory_broker import MEMORY, MemoryQueue
from tests.support.scene import Scene
from tests.unit.test_contents import Contents


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("shows_start", [True, False])
def test_a_run_that_ends_leaves_nothing_open(others: int, *, shows_start: bool) -> None:
    one = Contents(shows_start=shows_start)
    for number in range(6):
        one.publish(*(f"other {number} {more}" for more in range(others)))
        ticked: list[int] = []

        def tick(ticked: list[int] = ticked) -> None:
            if not ticked:
                ticked.append(1)
                one.publish("tick")
                one.scene.world.let_pass(0.3)

        one.scene.query.running = tick
        one.scene.query.run_available()
        one.scene.query.running = lambda: None
        one.scene.world.let_pass(60.0)
    assert one.lost_and_twice == (0, 0)


@pytest.mark.parametrize("kind", ["before 4.2", "once"])
def test_runs_of_one_epoch_lose_no_repetition(kind: str) -> None:
    one = Contents(shows_start=kind == "once", settle_grace_s=5.0)
    query = one.scene.query
    one.publish("equal")
    for number in range(6):
        query.trigger(once=kind == "once")
        query.running = lambda: None
        query.crash()
        one.scene.world.let_pass(60.0)
        one.publish(f"other {number}")
        query.running = lambda: (one.publish("equal"), one.scene.world.let_pass(0.5))
    query.running = lambda: None
    assert one.lost_and_twice == (0, 0)


@pytest.mark.parametrize("idle_s", [8, 12, 20])
def test_a_query_that_is_stopped_while_it_is_idle_leaves_nothing_open(idle_s: int) -> None:
    one = Contents(settle_grace_s=5.0)
    one.publish("equal")
    for _ in range(idle_s):
        one.trigger()
        one.scene.world.let_pass(1.0)
    one.publish("equal")
    one.scene.world.let_pass(0.3)
    one.scene.query.crash()
    assert one.lost_and_twice == (0, 0)


def test_an_echo_in_a_base_file_removes_its_content_when_it_is_settled() -> None:
    content, files = bytes(range(16)), {"first": Memory(10, 10, b"secret").compose(0, ["orders"], {}, held=())}
    memory = Memory(10, 10, b"")
    memory.load("first", files.__getitem__, committed=True)
    memory.leave({"orders": [content]})
    memory.commit(1, "orders", [content])  # its echo
    files["second"] = memory.compose(2, ["orders"], {}, held={1})
    assert files["second"].base == ""
    later = Memory(10, 10, b"")
    later.load("second", files.__getitem__, committed=True, notes=[EpochFile(settled=[1])])
    assert later.contents_left == 0


def test_an_echo_that_was_left_open_again_is_not_noted_as_settled() -> None:
    memory, contents = Memory(10, 10, b"secret"), {"orders": [bytes(range(16)), bytes(16)[:-1] + b"x"]}
    memory.commit(1, "orders", contents["orders"])
    assert memory.holds(1, contents)
    memory.leave({"orders": contents["orders"][:1]})  # its session has ended
    assert not memory.holds(1, contents)
    assert not memory.holds(2, contents)


def test_what_a_note_says_of_repetitions_is_in_the_next_file() -> None:
    first, content = Memory(10, 10, b"secret"), bytes(range(16))
    file = first.compose(1, ["orders"], {"orders": [content]}, held=())
    first.written("first", file)
    first.commit(1, "orders", [content])
    first.note_repeat("orders", content)
    note = first.note(held=())
    assert note is not None
    assert len(note.repeating) == 1
    assert first.note(held=()) is None
    second = Memory(10, 10, b"")
    second.load("first", {"first": file}.__getitem__, committed=True, notes=[note])
    assert second.note(held=()) is None
    assert len(second.compose(2, ["orders"], {}, held=()).repeating) == 1


def test_an_epoch_that_another_process_replays_settles_no_echo() -> None:
    one = Contents(settle_grace_s=5.0)
    query, queue = one.scene.query, one.scene.queue
    one.publish("own")
    one.trigger()
    query.crash()
    one.publish("other")
    one.trigger(At.AFTER_OFFSET_LOG)  # planned with an echo, and never begun
    queue.take_away(1, lambda message: message.body == b"own")
    for _ in range(20):
        one.trigger()
        one.scene.world.let_pass(1.0)
    query.crash()
    queue.bring_back()
    assert one.lost_and_twice == (0, 0)


def test_a_session_that_holds_a_message_is_not_handed_it_again() -> None:
    one = Contents(proves=True, consumers=2, min_messages=20, max_delay_s=60.0)
    queue = one.scene.queue
    one.trigger()
    for number in range(4):
        queue.sessions.append(queue.sessions.pop(0))  # in turn
        one.publish("equal")
        if number:  # it was another client's before
            queue.ready[-1].deliveries = 1
        one.scene.broker.step()
        one.scene.world.let_pass(0.3)
        one.trigger()
    one.scene.world.let_pass(60.0)
    lost, _ = one.lost_and_twice
    assert lost <= 1  # another consumer holds the first


@pytest.mark.parametrize("starts", [1, 6])
def test_a_start_that_fails_acknowledges_nothing(starts: int) -> None:
    one = Contents(replay_timeout_s=5.0)
    query = one.scene.query
    one.publish("equal")
    one.trigger()
    one.publish("gone")
    query.running = lambda: (one.publish(*["equal"] * 6), one.scene.world.let_pass(0.5))
    with contextlib.suppress(Crashed):
        query.trigger(At.AFTER_SINK)
    query.running = lambda: None
    one.scene.queue.take_away(1, lambda message: message.body == b"gone")
    there = query.left
    for _ in range(starts):
        with pytest.raises(DataLossError):
            query.trigger()
        one.scene.world.let_pass(1.0)
        query.crash()
        assert query.left == there


def test_what_was_settled_long_ago_is_not_taken_for_left_open() -> None:
    one = Contents()
    one.publish("equal")
    one.trigger()
    for _ in range(6):
        one.trigger()
        one.scene.world.let_pass(10.0)
    one.publish("equal")
    one.scene.world.let_pass(0.3)
    one.scene.query.crash()
    assert one.lost_and_twice == (0, 0)


def test_a_query_with_ids_writes_nothing_more_and_waits_for_nothing() -> None:
    scene = Scene()
    scene.publish(5)
    scene.query.trigger()
    files, began_s = len(scene.query.folder.files), scene.world.now_s
    for _ in range(20):
        scene.query.trigger()
        scene.world.let_pass(10.0)
    assert len(scene.query.folder.files) == files
    assert scene.world.now_s - began_s < 210


def test_what_is_committed_without_a_handle_stays_left_when_its_epoch_is_settled() -> None:
    """The session of one queue ends in a replay, which the other queue's messages complete."""
    scene = Scene(broker=MEMORY, queues=("first", "second"), max_messages=20, prefetch=60, dedup_window=0)
    queues = [scene.broker.declare(name) for name in ("first", "second")]
    for number in range(5):
        for queue in queues:
            queue.publish(b"%d" % number, None)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    first, second = queues
    second.take_away(5)

    def end_the_first() -> None:
        for session in list(first.sessions):
            first.end(session, "its node is away")
        first.take_away(100)
        second.bring_back()

    scene.world.at(3.0, end_the_first)
    for _ in range(40):
        scene.query.trigger()
        scene.world.let_pass(2.0)
    scene.query.crash()
    first.bring_back()
    scene.query.drain()
    assert len(scene.query.emitted) == 10


@pytest.mark.parametrize("batch_s", [3.0, 12.0])
def test_jobs_of_two_queues_end_with_both_settled_however_long_their_batches_are(batch_s: float) -> None:
    scene = Scene(
        broker=replace(MEMORY, proves_new=False),
        queues=("first", "second"),
        max_messages=5,
        prefetch=60,
        dedup_window=0,
    )
    first, second = (scene.broker.declare(name) for name in ("first", "second"))
    first.faults.flags = second.faults.flags = False
    published = Counter[str]()

    def publish(queue: MemoryQueue, content: str) -> None:
        queue.publish(content.encode(), None)
        published[f"{content} of {queue.name}"] += 1

    for job in range(4):
        later = [f"later {job}"]

        def batch(later: list[str] = later) -> None:
            if later:  # beyond the end of the run
                publish(first, later.pop())
            scene.world.let_pass(batch_s)

        scene.query.running = batch
        publish(first, "equal")
        for number in range(15):
            publish(second, f"{job}.{number}")
        scene.query.run_available()
        scene.world.let_pass(100.0)
    scene.query.running = lambda: None
    scene.query.run_available()
    assert Counter(scene.query.emitted) == published


@pytest.mark.parametrize("consumers", [1, 3])
def test_one_kill_costs_at_most_one_repetition_for_each_consumer(consumers: int) -> None:
    one = Contents(proves=False, consumers=consumers, settle_grace_s=60.0)
    one.publish("equal")
    one.trigger()
    one.trigger()
    one.scene.query.crash()
    one.trigger()
    one.scene.query.running = lambda: one.scene.world.let_pass(0.1)
    queue = one.scene.queue
    for _ in range(20):
        queue.sessions.append(queue.sessions.pop(0))  # in turn
        one.publish("equal")
        one.scene.broker.step()
        one.scene.world.let_pass(0.3)
        one.trigger()
    lost, _ = one.lost_and_twice
    assert lost <= consumers


def test_a_producer_of_pairs_does_not_keep_a_bounded_run_from_its_end() -> None:
    one = Contents()
    one.publish("first")
    number = count()

    def batch() -> None:
        one.publish(*[f"pair {next(number)}"] * 2)
        one.scene.world.let_pass(0.3)

    one.scene.query.running = batch
    one.scene.query.run_available()
    assert len(one.scene.query.sink) == 1


def _run_with_a_late_queue(confirms_s: float, size: int, max_bytes: int) -> Scene:
    """One queue is at its end and holds more; the other has messages that come late, or that there is no room for."""
    scene = Scene(
        broker=replace(MEMORY, proves_new=False), queues=("first", "second"), max_messages=20, prefetch=200,
        dedup_window=0, max_bytes=max_bytes,
    )  # fmt: skip
    first, second = (scene.broker.declare(name) for name in ("first", "second"))
    first.faults.flags = second.faults.flags = False
    first.faults.confirms_s = second.faults.confirms_s = confirms_s
    first.publish(b"equal", None)
    for number in range(100):
        second.publish(b"%d" % number + b" " * size, None)
    beyond = [200]

    def batch() -> None:
        for number in range(beyond.pop() if beyond else 0):
            first.publish(b"beyond %d" % number + b" " * size, None)
        scene.world.let_pass(0.1)

    scene.query.running = batch
    scene.query.run_available()
    scene.query.running = lambda: None
    return scene


def test_a_run_reads_all_of_a_queue_for_which_another_leaves_no_room() -> None:
    scene = _run_with_a_late_queue(0.0, 1_000, 10_000)
    emitted = [content for content in scene.query.emitted if content.endswith("of second")]
    assert len(emitted) == 100


@pytest.mark.parametrize("confirms_s", [1.5, 4.0])
def test_a_queue_at_its_end_is_left_when_its_contents_are_settled(confirms_s: float) -> None:
    scene = _run_with_a_late_queue(confirms_s, 1_000, 10_000)
    (first,) = [queue for queue in scene.broker.queues.values() if queue.name == "first"]
    first.publish(b"equal", None)
    scene.query.run_available()
    scene.query.drain()
    assert Counter(scene.query.emitted)["equal of first"] == 2
