"""Waits of the source: every wait of a call of Spark that no option sets, on one page."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, and the two counts that decide with them.

    What an option sets is not here: `connectTimeout` and `reconnectTimeout` bound the wait for connections,
    `maxTriggerDelay` that for `minMessagesPerTrigger`, `settleGrace` when an answer settles.
    """

    #: An idle call waits for the first message. Spark asks again at once, some ninety times a second otherwise, and
    #: each time passes the whole offset back and forth.
    idle_s: float = 0.1
    #: It is asked so often how many messages wait.
    depth_s: float = 5.0
    #: A bounded run that finds an empty queue makes sure of it: one without a leader says that it is empty.
    leader_s: float = 1.0
    #: The first messages of a queue that is not empty are waited for.
    first_s: float = 2.0
    #: How long after the last one an epoch is filled, while a backlog flows in: five times what a trigger without
    #: rows takes on a machine with cores to spare. Where one takes longer, it is filled meanwhile.
    fill_s: float = 1.25
    #: How long the first one is filled: the processes that run it are not there yet.
    first_fill_s: float = 3.0
    #: It is looked at so often: each look takes the interpreter away from the receiving thread.
    fill_step_s: float = 0.05
    #: Messages of a look from which on a backlog flows in.
    fill_step_messages: int = 100
    #: With nothing else to do, confirmations are waited for, and looked for so often.
    confirm_s: float = 5.0
    confirm_step_s: float = 0.005

    #: A bounded run: an emptied queue has to stay so for this long before it counts as read to its end ...
    empty_s: float = 0.3
    #: ... and where the broker does not report how many messages it has: nothing may come for this long.
    quiet_s: float = 3.0
    #: A run of one epoch waits for more no longer.
    once_s: float = 10.0
    #: A queue that is read to its end is not read on while a confirmation may come, for so long.
    bounded_confirm_s: float = 1.0
    #: It gives up what the broker reports and does not hand out: a paused queue, another active consumer.
    withheld_s: float = 60.0
    #: Messages of unknown age come from a backlog no longer once fewer than this came in a second, for so long, though
    #: there was room. A broker hands out what waits faster.
    backlog_per_s: int = 100
    trickle_s: float = 30.0
    #: No more of them are taken when a run has gone on for so long, however fast they come.
    unknown_age_s: float = 600.0

    #: A replay whose windows are full of other messages for so long has them doubled; the next time after twice as
    #: long, and so on. What it waits for may be behind any number of messages (priorities), or may not be there yet
    #: (delayed): so the number asked for grows with the time waited, and no faster.
    gap_s: float = 1.0
    #: The confirmation of a replayed epoch is waited for this long before its session may be ended.
    take_back_s: float = 5.0
    #: A replay that waits says so, so often.
    replay_log_s: float = 10.0
    #: Queues that match a pattern are asked for again, where the first attempt failed.
    pattern_retry_s: float = 1.0

    #: A broker that has messages and room for them hands them out within this time, or its session is renewed.
    silence_s: float = 30.0
    #: A confirmation comes within this time: a window of some ten thousand messages takes seconds on a slow link.
    confirmation_s: float = 60.0
    #: A depth that could not be renewed for so long says nothing of now.
    old_depth_s: float = 60.0
