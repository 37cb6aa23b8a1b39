"""Every wait in Spark's calls that is not set by an option, in one place."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds, and two counts that go with them.

    Options set other waits: `connectTimeout` and `reconnectTimeout` bound the wait for connections, `maxTriggerDelay`
    bounds the wait for `minMessagesPerTrigger`, and `settleGrace` sets how soon after a confirmation an answer settles.
    """

    #: Wait of an idle call for the first message. Otherwise Spark asks again at once, some ninety times a second, and
    #: passes the whole offset each time.
    idle_s: float = 0.1
    #: Interval of requests for the depth.
    depth_s: float = 5.0
    #: A bounded run checks an empty queue for this long, because a queue without a leader reports itself empty.
    leader_s: float = 1.0
    #: Wait for the first messages of a queue that is not empty.
    first_s: float = 2.0
    #: While a backlog flows in, the next epoch is filled until this long after the last epoch. The value is five times
    #: the duration of an empty trigger on a machine with spare cores. A longer trigger fills the next epoch anyway.
    fill_s: float = 1.25
    #: How long the first epoch is filled. The processes that run this epoch are still starting.
    first_fill_s: float = 3.0
    #: Interval of polls while an epoch is filled. Each poll takes the interpreter from the receiving thread.
    fill_step_s: float = 0.05
    #: A backlog flows in if one poll finds at least this many messages.
    fill_step_messages: int = 100
    #: If there is nothing else to do: the longest wait for confirmations, and the interval of polls during this wait.
    confirm_s: float = 5.0
    confirm_step_s: float = 0.005

    #: In a bounded run, an emptied queue counts as read to its end once the queue has stayed empty for this long.
    empty_s: float = 0.3
    #: If the broker reports no depth, a queue counts as read to its end once nothing has arrived for this long.
    quiet_s: float = 3.0
    #: Longest wait for more messages in a run of one epoch.
    once_s: float = 10.0
    #: How long a queue at its end waits for confirmations without being read.
    bounded_confirm_s: float = 1.0
    #: After this long, the run gives up messages that the broker reports but does not deliver, because the queue is
    #: paused or another consumer is active.
    withheld_s: float = 60.0
    #: Messages of unknown age no longer count as a backlog once fewer messages and bytes than this per second arrived
    #: during `trickle_s` seconds, although there was room for more. A broker delivers a backlog faster.
    backlog_per_s: int = 100
    backlog_bytes_per_s: int = 1 << 20
    trickle_s: float = 30.0
    #: After this long a run takes no more messages of unknown age, however fast they arrive. Messages whose producers
    #: claim that they are older than the run usually are a backlog, so a run takes them for longer.
    unknown_age_s: float = 600.0
    claimed_age_s: float = 21_600.0

    #: A replay doubles its windows when they have been full of other messages for this long, the next time for twice as
    #: long, and so on. Planned messages may be delayed, or follow any number of others (priorities), so the windows
    #: grow in proportion to the time waited.
    gap_s: float = 1.0
    #: Wait for the confirmation of a replayed epoch before its session may be ended.
    take_back_s: float = 5.0
    #: Interval at which a waiting replay logs that it waits.
    replay_log_s: float = 10.0
    #: Interval of retries if the first look-up of queues by a pattern failed.
    pattern_retry_s: float = 1.0

    #: A broker that has messages and room in the window must deliver within this time, or its session is replaced.
    silence_s: float = 30.0
    #: If no confirmation arrives within this time, a warning is logged. Some ten thousand messages take seconds on a
    #: slow link.
    confirmation_s: float = 60.0
    #: Age after which a depth is outdated.
    old_depth_s: float = 60.0
