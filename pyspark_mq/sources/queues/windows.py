"""How many messages a session may be handed before it has proved to get anywhere.

Each end of a session counts towards the delivery limit of everything that was handed out, so a job that crashes at
once, again and again, should not age its whole queue. All numbers but the result are of a queue's sessions together.
"""

from __future__ import annotations

import math

from pyspark_mq.sources.settings import Settings

__all__ = ["slow_start"]

#: Until the first epoch after a restart is committed, beside what is expected again.
_FEW = 2_000
#: Handed out to a replay beside its epoch, for what comes in between.
_REPLAY_SPARE = 100


def slow_start(settings: Settings, planned: int, expected: int, *, replays: bool) -> int:
    """The window of a new session, in messages.

    Args:
        settings: the queue's.
        planned: messages of open epochs.
        expected: the same, and those that are acknowledged and not settled.
        replays: is an epoch of a former process open? Until it is committed it is handed what it needs, or a few, and
            not both: what makes it fail again and again should age little else.
    """
    window, sessions = settings.prefetch, settings.consumers
    if settings.endpoint.broker.counts_drops:
        # No fewer for a small epoch: a quorum queue puts what comes back behind what has come back before, so that
        # epoch may be behind all that its former processes were handed (RabbitMQ 3.10).
        few = max(_FEW, planned + _REPLAY_SPARE) if replays else max(_FEW, settings.min_messages) + expected
        window = min(window, math.ceil(few / sessions))
    # An epoch comes again whole, whatever the prefetch is by now.
    return max(window, math.ceil(planned / sessions))
