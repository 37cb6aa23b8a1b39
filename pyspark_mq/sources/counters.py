"""The counters of a query, as its progress shows them (rule 8: nothing is dropped without a number).

The table for users is in docs/options.md#counters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Counters"]


@dataclass(frozen=True, slots=True)
class Counters:
    """What this process has counted since it started, and four readings of this moment.

    Attributes:
        received: deliveries taken in, first or again, without rejected ones.
        redelivered: deliveries that the broker flagged as redelivered.
        duplicates_dropped: deliveries not emitted because their ID was known.
        rebound: planned messages of a replay that came back and got their payload.
        planned: messages cut into epochs by this process.
        settled: deliveries whose acknowledgement was confirmed.
        returned: buffered deliveries that went back to the broker with the end of a session.
        rejected: messages refused for having no ID, or because they cannot be decoded.
        reconnects: sessions that ended.
        replays: epochs of a former process that were asked for again.
        lost: planned messages given up (`failOnDataLoss=false`).
        unacked: now: deliveries for which no acknowledgement was sent yet.
        buffered: now: messages received and not planned.
        carried: now: messages a new session may be handed again, planned ones and carried IDs.
        backlog: now: messages ready in the queue, by what the broker said last; 0 if it does not report it.
    """

    received: int
    redelivered: int
    duplicates_dropped: int
    rebound: int
    planned: int
    settled: int
    returned: int
    rejected: int
    reconnects: int
    replays: int
    lost: int
    unacked: int
    buffered: int
    carried: int
    backlog: int

    def report(self) -> dict[str, int]:
        """The counters under their documented names."""
        return {_documented(name): value for name, value in asdict(self).items()}


def _documented(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
