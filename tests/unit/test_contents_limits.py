"""Histories of messages without IDs at the limits of what can be known; docs/message-ids.md names those marked."""

from __future__ import annotations

import pytest

from pyspark_mq.ack import Acknowledgements, InFlightTable
from pyspark_mq.dedup import IdSource, Memory, QueueMemory, content_digest
from tests.support.decoding import Asked
from tests.support.engine import At
from tests.unit.test_contents import Contents

#: It is lost, or comes twice, as the page says.
LIMIT = pytest.mark.xfail(strict=True, raises=AssertionError)


def test_equal_messages_of_scheduled_runs_are_not_all_lost() -> None:
    """Each run reads one equal message. Only the first that follows may be taken for one that was left open."""
    one = Contents(proves=False)
    for _ in range(10):
        one.publish("21 degrees")
        one.scene.query.run_available()
        one.scene.world.let_pass(60.0)
    lost, _ = one.lost_and_twice
    assert lost <= 1


@LIMIT
def test_equal_messages_between_kills_are_not_all_lost() -> None:
    one = Contents(proves=False)
    for _ in range(10):
        one.publish("21 degrees")
        one.trigger()
        one.trigger()
        one.scene.query.crash()
        one.scene.world.let_pass(60.0)
    lost, _ = one.lost_and_twice
    assert lost <= 1


@LIMIT
def test_a_cut_connection_loses_no_equal_message() -> None:
    """No process is killed here."""
    one = Contents(proves=False)
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    one.scene.broker.cut(lose_acks=False)
    one.scene.world.let_pass(5.0)
    one.publish("21 degrees")
    assert one.lost_and_twice[0] == 0


def test_a_content_that_was_seen_before_is_not_lost() -> None:
    """Three equal ones were seen; only of a content that was never seen before one may be lost."""
    one = Contents(proves=False)
    for _ in range(3):
        one.publish("21 degrees")
        one.trigger()
        one.trigger()
        one.scene.world.let_pass(60.0)
        one.publish("else")
        one.trigger()
        one.trigger()
        one.scene.world.let_pass(60.0)
    one.publish("else")
    one.trigger()
    one.scene.query.crash()  # all is settled
    one.trigger()
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    one.scene.query.crash()
    one.publish("21 degrees")
    one.trigger()
    lost, _ = one.lost_and_twice
    assert lost == 0


def test_a_settled_redelivery_is_not_waited_for_by_the_next_process() -> None:
    """What was left open came again, and that is settled. No kill after that may cost another equal message."""
    one = Contents(proves=False)
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    for number in range(6):
        one.scene.query.crash()
        one.publish("21 degrees")
        one.trigger()
        for _ in range(4):
            one.publish(f"else {number} {_}")
            one.trigger()
            one.trigger()
            one.scene.world.let_pass(30.0)
    lost, _ = one.lost_and_twice
    assert lost <= 1


@LIMIT
@pytest.mark.parametrize("shows_start", [True, False])
def test_flagged_contents_come_once_though_a_session_is_half_open(*, shows_start: bool) -> None:
    """The broker gives up one of two connections before the source does."""
    one = Contents(proves=True, consumers=2, shows_start=shows_start)
    one.publish(*(f"own {number}" for number in range(60)))
    one.trigger(At.BEFORE_OFFSET_LOG)  # what was handed out is flagged from now on
    silenced = []

    def silence() -> None:
        if not silenced:
            silenced.append(1)
            one.scene.queue.silence(one.scene.queue.sessions[0], 1.0)
            one.scene.world.let_pass(3.0)

    one.scene.query.running = silence
    assert one.lost_and_twice == (0, 0)


@pytest.mark.parametrize("proves", [True, False])
def test_runs_with_trigger_once_get_on(*, proves: bool) -> None:
    """Equal messages come again and again, in each run the same ones, and what is behind them never."""
    one = Contents(proves=proves)
    one.publish(*["21 degrees"] * 200, "own")
    one.scene.query.running = lambda: one.scene.world.let_pass(0.1)  # no batch of Spark's is shorter
    for _ in range(30):
        one.scene.query.trigger_once()
        one.scene.world.let_pass(60.0)
    emitted = one.scene.query.emitted
    assert "own" in emitted, f"{len(emitted)} rows of 201 messages, {one.scene.query.left} left"


@pytest.mark.parametrize("proves", [True, False])
def test_restarts_of_an_idle_query_before_spark_42_do_not_emit_again_and_again(*, proves: bool) -> None:
    """Spark 4.0 and 4.1 acknowledge the last epoch when the next is planned."""
    one = Contents(proves=proves, shows_start=False)
    one.publish("21 degrees", "21 degrees")
    for _ in range(10):
        for _ in range(4):
            one.trigger()
        one.scene.query.crash()
        one.scene.world.let_pass(60.0)
    _, twice = one.lost_and_twice
    assert twice <= 2


@pytest.mark.parametrize("proves", [True, False])
def test_bounded_runs_before_spark_42_do_not_emit_again_and_again(*, proves: bool) -> None:
    one = Contents(proves=proves, shows_start=False)
    one.publish(*["21 degrees"] * 200, "own")
    for _ in range(30):
        one.scene.query.run_available()
        one.scene.world.let_pass(60.0)
    emitted = one.scene.query.emitted
    assert "own" in emitted, f"{len(emitted)} rows of 201 messages, {one.scene.query.left} left"


@pytest.mark.parametrize("proves", [True, False])
def test_a_replay_before_spark_42_has_the_same_messages(*, proves: bool) -> None:
    """A copy that was received and not planned says that a content repeats; the next process does not know of it."""
    one = Contents(proves=proves, shows_start=False, max_messages=1)
    one.publish("21 degrees")
    one.trigger()
    one.scene.query.crash()
    one.publish("21 degrees", "else", "21 degrees")
    one.trigger(At.AFTER_SINK)
    one.trigger(At.AFTER_SINK)
    assert one.lost_and_twice[0] == 0


@LIMIT
def test_a_cut_connection_loses_no_equal_message_where_flags_are_honest() -> None:
    """The second one was on its way when the connection ended. No process is killed, and nobody else reads."""
    one = Contents(proves=True)
    one.publish("21 degrees")
    one.trigger()
    one.scene.world.let_pass(1.0)
    one.scene.query.trigger()
    one.publish("21 degrees")
    one.scene.broker.step()
    one.scene.broker.cut(lose_acks=False)
    assert one.lost_and_twice[0] == 0


@LIMIT
@pytest.mark.parametrize("bound", [5])
def test_a_content_stays_known_to_repeat(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    """More contents repeat than are noted: what was left open of the oldest is dropped once more."""
    monkeypatch.setattr("pyspark_mq.dedup.memory._REPEATS_MAX", bound)
    one = Contents(proves=False, max_messages=100)
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    one.scene.query.crash()  # it is left open, and acknowledged
    one.publish("21 degrees", "21 degrees")  # the first may be taken for it
    one.trigger()
    one.trigger()
    one.scene.query.crash()
    others = [f"other {number}" for number in range(2 * bound)]
    one.publish(*others, *others)
    one.trigger()
    one.trigger()
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    lost, _ = one.lost_and_twice
    assert lost <= 1


def test_an_unreadable_message_of_amqp_1_0_is_the_same_at_each_delivery_and_no_proof_says_that_it_is_new() -> None:
    """With `onUnreadableMessage=row` a replay waits for the digest that it had at first."""
    from pyspark_mq.decode.amqp10 import Amqp10Batch
    from pyspark_mq.decode.amqp10_sections import SectionReader
    from tests.support.amqp10_messages import Message, V

    def delivery(count: int) -> bytes:
        header = [V("boolean", True), V("ubyte", 4), V("null"), V("boolean", count == 0), V("uint", count)]
        twice = [(V("string", "a"), V("int", 1)), (V("string", "a"), V("int", 2))]
        return Message(header, application=twice, body="data", contents=[V("binary", b"x")]).encode()

    reader, decoder = SectionReader(counts_acquirers=True), Asked(Amqp10Batch)
    first, again = (reader.read(1, delivery(count)) for count in (0, 1))
    assert decoder.digests([first]) == decoder.digests([again])
    assert decoder.not_redelivered([again]) == [False]


def test_what_another_client_looked_at_is_not_taken_for_a_message_of_the_same_session() -> None:
    """Somebody gets a message and requeues it, as the management page does. A session is handed no message twice."""
    one = Contents(proves=True)
    one.publish("else")
    one.trigger()
    held = []

    def meanwhile() -> None:
        if not held:
            held.append(1)
            one.publish("21 degrees")
            one.scene.world.let_pass(1.0)  # it is handed out to the query
            one.scene.queue.faults.flags = True
            one.publish("21 degrees")
            one.scene.world.let_pass(1.0)

    one.scene.query.running = meanwhile
    one.publish("else 2")
    one.trigger()
    assert one.lost_and_twice[0] == 0


@LIMIT
def test_a_message_that_expires_costs_no_equal_one() -> None:
    """It was emitted, its session ended, and it expired in the queue: nothing of it will come again."""
    one = Contents(proves=False)
    one.scene.queue.publish(b"21 degrees", None, expires_s=3.0)
    one.published.update(["21 degrees"])
    done = []

    def cut() -> None:
        if not done:
            done.append(1)
            one.scene.broker.stopped = False
            one.scene.broker.cut()
            one.scene.broker.up = False
            one.scene.world.let_pass(5.0)

    one.scene.query.running = cut
    one.trigger()
    one.scene.broker.start()
    for number in range(5):
        one.publish(f"else {number}")
        one.trigger()
        one.scene.world.let_pass(30.0)
    one.publish("21 degrees")
    assert one.lost_and_twice[0] == 0


def test_forgotten_contents_are_not_recalled_by_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that takes in those before it has what is still remembered."""
    monkeypatch.setattr("pyspark_mq.dedup.memory.FOLLOWING_MAX", 1)
    one = Contents(proves=False, dedup_window=10)
    queue, query = one.scene.queue, one.scene.query
    one.publish("21 degrees")
    for number in range(3):
        queue.publish(b"with an ID", f"id {number}")
    one.trigger()
    one.trigger()
    query.crash()

    def epochs(name: str, crash: bool = True) -> None:
        for number in range(3):
            queue.publish(b"with an ID", f"{name} {number}")
        one.trigger()
        one.trigger()
        if crash:
            query.crash()

    epochs("a", crash=False)
    query.source._memory.memory.connected_s += 4000.0  # over an hour
    epochs("b")
    epochs("c")
    epochs("d")
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    assert query.emitted.count("21 degrees") == 2


def _left_unacknowledged(one: Contents) -> None:
    """An epoch of five equal messages is committed, and its process ends before it acknowledges any."""
    one.publish("21 degrees", "21 degrees")
    one.trigger()
    one.trigger()
    one.publish(*["21 degrees"] * 5)
    one.trigger(At.AFTER_COMMIT_LOG)


def test_what_was_never_acknowledged_is_not_expected_by_every_process() -> None:
    """The first process behind it drops and acknowledges it, and nothing says so: each further one expects it again."""
    one = Contents(proves=False)
    _left_unacknowledged(one)
    one.trigger()
    one.scene.world.let_pass(10.0)
    for _ in range(5):
        one.scene.query.crash()
        one.publish(*["21 degrees"] * 5)
        one.trigger()
        one.trigger()
        one.scene.world.let_pass(10.0)
    assert one.lost_and_twice[0] == 0


def test_what_was_never_acknowledged_is_not_expected_again_where_flags_are_honest() -> None:
    """The content is known to repeat, and one process ends between receiving and planning: its messages are lost."""
    one = Contents(proves=True)
    _left_unacknowledged(one)
    one.trigger()
    one.scene.world.let_pass(10.0)
    one.publish(*["21 degrees"] * 5)
    one.trigger(At.BEFORE_OFFSET_LOG)
    assert one.lost_and_twice[0] == 0


@pytest.mark.parametrize("proves", [True, False])
def test_what_was_acknowledged_is_not_expected_where_a_replay_has_shown_that_it_repeats(*, proves: bool) -> None:
    """Spark 4.0 had the epoch planned blindly: what is written next to its file says that the content repeats."""
    one = Contents(proves=proves, shows_start=False)
    one.publish("else")
    one.trigger()
    one.scene.query.crash()
    one.publish("21 degrees")
    one.trigger(At.AFTER_OFFSET_LOG)
    one.publish("21 degrees")
    one.trigger()  # the replay meets both
    one.scene.query.running = lambda: one.scene.world.let_pass(10.0)  # the first is acknowledged and settled
    one.trigger(At.AFTER_SINK)
    one.scene.query.running = lambda: None
    one.publish("21 degrees")
    one.scene.queue.take_away(2)  # somebody looks at them: they are flagged
    one.scene.queue.bring_back()
    one.trigger()
    assert one.lost_and_twice[0] == 0


def test_an_idle_query_loses_no_equal_message_though_no_connection_ends() -> None:
    """The first one was settled an hour ago. Somebody has looked at the second, and requeued it."""
    one = Contents(proves=True)
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    one.scene.world.let_pass(3_600.0)
    one.trigger()
    one.scene.queue.faults.flags = True
    one.publish("21 degrees")
    lost, _ = one.lost_and_twice
    assert one.scene.counters.reconnects == 0
    assert lost == 0


@LIMIT
def test_flagged_contents_come_once_in_a_half_open_session_of_a_process_that_had_them_proved() -> None:
    """The page excepts what had been handed out to a former process; there is none here."""
    one = Contents(proves=True, consumers=2)
    one.publish(*(f"own {number}" for number in range(60)))
    one.trigger()
    one.scene.world.let_pass(1.0)
    one.scene.broker.cut(lose_acks=False)
    one.scene.world.let_pass(2.0)
    one.trigger()
    one.scene.queue.silence(one.scene.queue.sessions[0], 1.0)
    one.trigger()
    one.scene.world.let_pass(3.0)
    assert one.lost_and_twice == (0, 0)


def test_half_a_surrogate_pair_in_json_stops_no_query() -> None:
    """JSON may have one (RFC 8259, section 8.2), and column `messageId` has no place for it."""
    one = Contents(proves=True, id_source=IdSource("json", "order.id"))
    body = b'{"order": {"id": "\\ud800"}}'
    one.scene.queue.publish(body, None)
    one.publish("else")
    one.trigger()
    assert "else" in one.scene.query.emitted


# -- what is noted of contents is bounded -------------------------------------------------------


class _Noted:
    """An in-flight table of messages without IDs, 100 at a time; and the notes that it keeps of them."""

    def __init__(self) -> None:
        self.memory = Memory(1_000, 1_000, b"secret")
        queue = QueueMemory(self.memory, "orders")
        self.in_flight: InFlightTable[bytes] = InFlightTable(grace_s=0.0, memory=queue, proves=True)
        self.copies = self.in_flight.matcher
        self.now_s = 0.0
        self._tags = dict[int, int]()

    def deliver(self, session: int, turn: int, *, flagged: bool) -> Acknowledgements | None:
        if session not in self.in_flight.sessions:
            self.in_flight.open_session(session)
        digests = [content_digest(b"", b"%d of %d" % (number, turn)) for number in range(100)]
        keys = self.copies.name(session, digests, [not flagged] * 100, self.in_flight)
        first = self._tags.get(session, 0) + 1
        self._tags[session] = first + 99
        return self.in_flight.deliver(session, range(first, first + 100), keys, [b""] * 100)

    def settle(self, due: Acknowledgements | None) -> None:
        assert due is not None
        for number in (due.number, -due.number):
            self.now_s += 1
            for part in due.parts:
                self.in_flight.settling.asked(number, [part.session], self.now_s)
                self.in_flight.confirm(number, part.session, self.now_s)

    def compose(self, epoch: int) -> None:
        file = self.memory.compose(epoch, ["orders"], {}, self.in_flight.settling.epochs)
        self.memory.written(f"file-{epoch}", file)

    @property
    def count(self) -> int:
        copies = self.copies
        return sum(map(len, (copies._waiting, copies._coming, copies._again, copies._unproved)))


def test_nothing_is_noted_of_what_was_committed_before_it_came_again() -> None:
    noted = _Noted()
    for turn in range(1, 101):
        noted.deliver(2 * turn, turn, flagged=False)
        noted.in_flight.plan(turn, 100)
        noted.in_flight.lose(2 * turn)  # the connection ends while Spark runs the epoch
        assert noted.in_flight.commit(turn) is None
        assert noted.deliver(2 * turn + 1, turn, flagged=True) is None
        noted.in_flight.plan(1_000 + turn, 100)
        noted.settle(noted.in_flight.begin(1_000 + turn))
        assert noted.in_flight.commit(1_000 + turn) is None
        noted.compose(turn)
        noted.in_flight.lose(2 * turn + 1)
    assert noted.count == 0


def test_what_came_again_in_a_session_that_lives_is_noted_within_a_bound() -> None:
    noted = _Noted()
    for turn in range(1, 151):
        noted.deliver(1 + turn, turn, flagged=False)
        noted.deliver(1, turn, flagged=True)  # the other session is half open: its messages go to this one
        noted.in_flight.lose(1 + turn)
        assert len(noted.in_flight.plan(turn, 100)) == 100
        noted.settle(noted.in_flight.commit(turn))
        noted.compose(turn)
    assert noted.count < 9_000


def test_what_never_comes_again_is_noted_within_a_bound() -> None:
    noted = _Noted()
    for turn in range(1, 151):
        noted.deliver(turn, turn, flagged=False)
        noted.in_flight.plan(turn, 100)
        noted.in_flight.lose(turn)
        noted.in_flight.commit(turn)
        noted.compose(turn)
        noted.memory.connected_s += 7_200  # nothing came for two hours
        noted.memory.forget_contents()
    assert noted.count < 9_000
