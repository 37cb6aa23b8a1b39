"""Failure matrix, the connection's rows: cut, cut in mid-frame, half-open, stalled.

The reader is never restarted here: it has to notice, connect again and go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from testbed.chaos.proxy import Direction, FaultProxy
from testbed.process import poll
from tests.support.checks import assert_exactly_once
from tests.support.engine import Engine
from tests.support.entries import LiveEntry

MESSAGES = 60
EPOCH = 20


#: The last one has the traces of all checked behind it.
pytestmark = [pytest.mark.contract("connection cut, cut in mid-frame, silent, stalled"), pytest.mark.timeout(900)]


@pytest.fixture
def proxy(entry: LiveEntry) -> Iterator[FaultProxy]:
    with entry.proxy() as between:
        yield between


def engine(entry: LiveEntry, proxy: FaultProxy, **options: object) -> Engine:
    return entry.engine(proxy, **{"maxMessagesPerTrigger": EPOCH, "prefetch": 50, **options})


def test_a_cut_while_messages_are_only_buffered(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, proxy) as run:
        assert run.batch() == EPOCH
        assert proxy.cut() == 1
        run.drain(MESSAGES)
        assert run.counters()["reconnects"] >= 1
        assert_exactly_once(entry, run, sent, ordered=False)


def test_a_cut_between_plan_and_commit(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, proxy) as run:
        run.between = lambda: proxy.cut() and None
        assert run.batch() == EPOCH
        run.between = lambda: None
        run.drain(MESSAGES)
        assert run.counters()["duplicatesDropped"] >= EPOCH
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.network
def test_a_cut_while_the_acknowledgement_is_under_way(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, proxy) as run:
        assert run.batch() == EPOCH
        cut = proxy.cut_after(10, Direction.TO_BROKER)  # a basic.ack frame has 21 bytes
        run.drain(MESSAGES)
        assert cut.is_set()
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.network
def test_a_cut_while_the_confirmation_is_under_way(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(EPOCH)
    with engine(entry, proxy) as run:
        assert run.batch() == EPOCH
        cut = proxy.cut_after(5, Direction.TO_CLIENT)
        while run.trigger():
            pass
        assert cut.wait(30)
        more = entry.publish(EPOCH)
        run.drain(2 * EPOCH)
        assert_exactly_once(entry, run, [*sent, *more])


@pytest.mark.network
@pytest.mark.thorough
@pytest.mark.parametrize("cut_bytes", [1, 8, 500, 700, 1_500, 4_096, 9_999])
def test_a_cut_anywhere_in_the_stream(entry: LiveEntry, proxy: FaultProxy, cut_bytes: int) -> None:
    # The first bytes are the handshake, the later ones deliveries, in the middle of any frame. None has under 50.
    count = max(MESSAGES, cut_bytes // 50)
    sent = entry.publish(count)
    with engine(entry, proxy) as run:
        cut = proxy.cut_after(cut_bytes, Direction.TO_CLIENT)
        run.drain(count)
        assert cut.is_set()
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.network
def test_a_slow_link_cut_in_mid_frame(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(10 * MESSAGES)
    with engine(entry, proxy, prefetch=200) as run:
        proxy.throttle(100_000)
        for cut_bytes in (9_999, 33_333):
            cut = proxy.cut_after(cut_bytes, Direction.TO_CLIENT)
            assert poll(lambda: run.trigger() >= 0 and cut.is_set(), 60)  # noqa: B023
        run.drain(10 * MESSAGES)
        assert run.counters()["reconnects"] >= 2
        proxy.throttle(None)
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.thorough
def test_many_cuts_in_a_row(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, proxy, maxMessagesPerTrigger=MESSAGES // 12) as run:
        for _ in range(8):
            run.between = lambda: proxy.cut() and None
            run.batch()
        run.between = lambda: None
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.thorough
@pytest.mark.parametrize("direction", [None, *Direction])
def test_a_silent_connection_is_noticed_and_left(
    entry: LiveEntry, proxy: FaultProxy, direction: Direction | None
) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, proxy, heartbeat="1s") as run:
        assert run.batch() == EPOCH
        proxy.mute(direction)
        run.drain(MESSAGES)
        assert run.counters()["reconnects"] >= 1
        # The broker notices later than we do and then brings back what the old session held.
        assert poll(lambda: not run.trigger() and entry.total() == 0, 90)
        assert_exactly_once(entry, run, sent, ordered=False)


def test_a_connection_that_goes_silent_between_plan_and_commit(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, proxy, heartbeat="1s") as run:
        run.between = proxy.mute
        assert run.batch() == EPOCH
        run.between = lambda: None
        run.drain(MESSAGES)
        assert poll(lambda: not run.trigger() and entry.total() == 0, 90)
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.thorough
def test_a_stalled_connection_goes_on_where_it_was(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, proxy, heartbeat="30s") as run:
        assert run.batch() == EPOCH
        proxy.stall()
        before = time.monotonic()
        while time.monotonic() - before < 1:
            run.trigger()
        proxy.resume()
        run.drain(MESSAGES)
        assert run.counters()["reconnects"] == 0
        assert_exactly_once(entry, run, sent)


@pytest.mark.thorough
def test_two_connections_survive_the_loss_of_both(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, proxy, consumers=2) as run:
        run.batch()
        proxy.cut()
        run.batch()
        run.between = lambda: proxy.cut() and None
        run.batch()
        run.between = lambda: None
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.network
def test_the_second_url_is_used_when_the_first_is_away(entry: LiveEntry, proxy: FaultProxy) -> None:
    sent = entry.publish(MESSAGES)
    with entry.engine(url=f"{entry.url(proxy)},{entry.url()}", maxMessagesPerTrigger=EPOCH) as run:
        assert run.batch() == EPOCH
        proxy.refuse()
        proxy.cut()
        run.drain(MESSAGES)
        assert proxy.connections == 0
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.network
def test_a_kill_on_a_slow_link_that_a_whole_window_is_on(entry: LiveEntry, proxy: FaultProxy) -> None:
    # A second of the link is a quarter of the window, so answers come behind what was handed out long before.
    # Half a window more than one, so that not all is settled by then, however late one looks.
    sent = entry.publish(6_000, headers={"filling": "x" * 1_000})
    with entry.engine(url=entry.url(proxy), maxMessagesPerTrigger=250, prefetch=4_000, settleGrace="1s") as run:
        proxy.throttle(1_000_000, Direction.TO_CLIENT)
        assert poll(lambda: run.trigger() >= 0 and run.counters()["settled"] > 0, 60)
        assert run.counters()["settled"] < len(sent)
        run.crash()
        assert poll(lambda: run.trigger() >= 0 and run.counters()["settled"] > 0, 60)
        proxy.throttle(None)
        run.drain(len(sent))
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.network
@pytest.mark.parametrize("bounded", [False, True])
def test_a_run_waits_for_a_message_that_is_on_its_way(entry: LiveEntry, proxy: FaultProxy, bounded: bool) -> None:
    """Before Spark 4.2 a run of `Trigger.AvailableNow` ends with its first epoch, and is not told that it is one."""
    entry.node.publish(entry.queue, [bytes(2_000_000)], protocol=entry.entry.protocol)
    with engine(entry, proxy) as run:
        proxy.throttle(400_000, Direction.TO_CLIENT)
        if bounded:
            run.reader.call("prepareForTriggerAvailableNow")
        start = run.reader.call("initialOffset")
        assert run.reader.call("latestOffset", start if bounded else None, None) != start
