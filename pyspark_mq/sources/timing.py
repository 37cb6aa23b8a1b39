"""Waiting times of the source that no option sets."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds, and counts and rates that belong to them.

    Other waits are set by options: `connectTimeout` and `reconnectTimeout` limit the wait for connections,
    `maxTriggerDelay` limits the wait for `minMessagesPerTrigger`, and `settleGrace` is the time after a confirmation
    until a further answer settles an acknowledgement.
    """

    #: How long a call waits for a message if there are none. Without this wait, Spark would ask again about ninety
    #: times a second.
    idle_s: float = 0.1
    #: Interval at which sessions ask how many messages wait in their queue.
    depth_s: float = 5.0
    #: How long a bounded run checks again a queue that is reported to be empty. The report may be wrong: a quorum queue
    #: without a leader is reported to be empty, too.
    leader_s: float = 1.0
    #: How long a new query waits for the first messages of a queue that is not empty.
    first_s: float = 2.0
    #: While a backlog arrives, the source waits for more messages until this time after the last epoch was planned. The
    #: value is five times the duration of an empty trigger on a machine with idle cores. If a trigger takes longer than
    #: this, the messages for the next epoch arrive during the trigger.
    fill_s: float = 1.25
    #: How long the source waits for more messages for the first epoch. Meanwhile Spark starts its worker processes.
    first_fill_s: float = 3.0
    #: Interval of polls while the source waits for more messages. Each poll interrupts the thread that receives.
    fill_step_s: float = 0.05
    #: If at least this number of messages arrives between two polls, a backlog is arriving.
    fill_step_messages: int = 100
    #: Longest wait for confirmations if there are no messages to read, and the interval of polls during this wait.
    confirm_s: float = 5.0
    confirm_step_s: float = 0.005

    #: In a bounded run, a queue counts as read to its end if the broker reports for this time that it is empty.
    empty_s: float = 0.3
    #: If the broker does not report how many messages wait, a queue counts as read to its end if no message arrives in
    #: this time.
    quiet_s: float = 3.0
    #: Longest wait for more messages in a run of one epoch.
    once_s: float = 10.0
    #: In a bounded run, how long a queue that is read to its end waits for confirmations.
    bounded_confirm_s: float = 1.0
    #: After this time a bounded run gives up messages that the broker reports but does not deliver, for example
    #: because the queue is paused or another consumer is active.
    withheld_s: float = 60.0
    #: In a bounded run, it may be unknown whether a message was in the queue when the run began. Such messages are
    #: taken as long as they arrive as fast as a backlog. They are too slow if fewer messages and fewer bytes than this
    #: arrived per second during `trickle_s` seconds, although the prefetch window had room for more.
    backlog_per_s: int = 100
    backlog_bytes_per_s: int = 1 << 20
    trickle_s: float = 30.0
    #: Time after which a bounded run takes no more messages of unknown age, however fast they arrive. `claimed_age_s`
    #: is for messages whose timestamp is before the start of the run, because these usually are a backlog.
    #: `unknown_age_s` is for all others.
    unknown_age_s: float = 600.0
    claimed_age_s: float = 21_600.0

    #: If the prefetch windows of a replay have been full of other messages for this time, the windows are doubled. They
    #: are doubled again after twice this time, and so on, so they grow in proportion to the time that the replay has
    #: waited. A replay may need wide windows, because any number of other messages may be delivered before the planned
    #: ones (priorities).
    gap_s: float = 1.0
    #: How long to wait for the confirmation of a replayed epoch before its session may be ended. The end of the session
    #: makes the broker redeliver messages that the replay skipped.
    take_back_s: float = 5.0
    #: Interval at which a replay logs that it is still waiting.
    replay_log_s: float = 10.0
    #: Interval of retries if the first look-up of queues that match a pattern has failed.
    pattern_retry_s: float = 1.0

    #: If a broker that may have other nodes reports waiting messages, but does not deliver any in this time to a
    #: session that holds none, the session is replaced.
    silence_s: float = 30.0
    #: If acknowledgements are not confirmed for this time, a warning is logged. On a slow network, confirmations may
    #: take seconds, because they arrive after the messages that the broker has sent before.
    confirmation_s: float = 60.0
    #: Age after which the last reported number of waiting messages is outdated.
    old_depth_s: float = 60.0
