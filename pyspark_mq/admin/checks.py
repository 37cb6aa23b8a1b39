"""Checks whether the settings of a queue fit a query, which acknowledges messages late: after Spark has committed them.

The checks turn facts about a queue into findings, and do no I/O. The command `doctor` shows all findings. A query logs
warnings and problems once when it starts, as far as they follow from facts that its own connection reports. Both use
the texts of this module. The remedies for a broker's operator are in
:attr:`pyspark_mq.brokers.base.Broker.remedies`. If a broker has no remedy for a check, the check does not apply to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

from pyspark_mq.brokers.base import AMQP_1_0
from pyspark_mq.brokers.facts import QueueFacts
from pyspark_mq.dedup import OnMissing
from pyspark_mq.sources.queues.watch import other_consumers
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["Finding", "Level", "Sample", "check_queue", "check_sample", "worth_a_line"]

#: Smallest delivery limit without a warning: RabbitMQ's default from 4.0 on. Each restart and each reconnect counts as
#: a delivery.
_AMPLE_DELIVERIES = 20
#: Default of RabbitMQ's `consumer_timeout`, seconds.
_USUAL_TIMEOUT_S = 1_800.0
_IDS_SHOWN = 3


class Level(IntEnum):
    """Severity of a finding.

    `OK` means that nothing has to be done. `UNKNOWN` means that the fact is not known. `WARNING` means that messages
    may be delayed, or lost under further conditions. `PROBLEM` means that the query fails, waits, or loses messages.
    """

    OK = 0
    UNKNOWN = 1
    WARNING = 2
    PROBLEM = 3

    @property
    def word(self) -> str:
        """The level's name in lower case, as it is printed."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the name of the check, as in docs/command-line.md.
        what: description of what was found.
        remedy: what to do about the finding, or how to learn an unknown fact; empty if nothing has to be done.
    """

    check: str
    level: Level
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy[:1].upper()}{self.remedy[1:]}" if self.remedy else self.what


@dataclass(frozen=True, slots=True)
class Sample:
    """What the command `doctor` found in some messages of a queue. The messages are still in the queue.

    Attributes:
        how: "browsed", or "returned" if the messages were received and then returned to the queue.
        ids: the ID of each message, as in column `messageId`; None for a message without an ID.
        sizes: size in bytes of each message.
        priorities: the priority of each message; None for a message without a priority.
        cut_short: the broker's reason for ending the session when the session's prefetch was raised; empty if the
            session did not end.
        unique: the values of option `messageIdFrom` with which all of these messages would have different IDs.
        repeated: number of messages that have the same body and properties as an earlier message.
    """

    how: str
    ids: Sequence[str | None]
    sizes: Sequence[int]
    priorities: Sequence[int | None] = ()
    cut_short: str = ""
    unique: Sequence[str] = ()
    repeated: int = 0


def worth_a_line(facts: QueueFacts, settings: Settings) -> list[str]:
    """Return the lines that a query logs when it starts: the warnings and problems that follow from these facts.

    The facts are those that the query's own connection reports.
    """
    found = check_queue(facts, settings, "")
    # Leave out other consumers, because the query itself warns about them.
    return [str(one) for one in found if one.level >= Level.WARNING and one.check != "other-consumers"]


def check_queue(facts: QueueFacts, settings: Settings, to_know: str) -> list[Finding]:
    """Run all checks that apply to the broker, with the facts of a queue and the settings of the query that reads it.

    Args:
        to_know: advice for users on how to learn unknown facts.
    """
    remedies = settings.endpoint.broker.remedies
    checks = (of(_Checks(check, facts, settings, to_know)) for check, of in _CHECKS.items() if check in remedies)
    return [*chain.from_iterable(checks)]


class _Checks:
    """Has a method for each check. An instance runs one check, and yields findings with the name of this check."""

    def __init__(self, check: str, facts: QueueFacts, settings: Settings, to_know: str) -> None:
        self.check, self.facts, self.settings, self.to_know = check, facts, settings, to_know
        self.broker = settings.endpoint.broker
        #: What the broker's operator can do if the check fails.
        self.remedy = self.broker.remedies[check]

    def _ok(self, what: str) -> Finding:
        return Finding(self.check, Level.OK, what)

    def _warn(self, what: str, advice: str = "") -> Finding:
        return Finding(self.check, Level.WARNING, what, advice or self.remedy)

    def _bad(self, what: str, advice: str = "") -> Finding:
        return Finding(self.check, Level.PROBLEM, what, advice or self.remedy)

    def _unknown(self, what: str = "not known", advice: str = "") -> Finding:
        return Finding(self.check, Level.UNKNOWN, what, advice or self.to_know)

    def queue(self) -> Iterator[Finding]:
        """Check whether the queue keeps its messages and delivers them."""
        kind = self.facts.kind or ""
        faults, hazards = self.facts.faults, self.facts.hazards
        for text in faults or ():
            yield self._bad(text)
        for text in hazards or ():
            yield self._warn(text)
        if faults is None or hazards is None:
            yield self._unknown("not known whether the queue drops messages on its own (expiry, length, auto-delete)")
        elif not faults and not hazards:
            yield self._ok(f"{kind} queue, keeps its messages" if kind else "keeps its messages")

    def delivery_limit(self) -> Iterator[Finding]:
        """Check the delivery limit. If the end of a session counts as a delivery, a low limit dead-letters messages."""
        limit = self.facts.delivery_limit
        if not self.broker.counts_session_ends:
            yield self._ok("the end of a session does not count as a delivery")
        elif limit is None:
            yield self._unknown(f"not known; {self.broker.delivery_limit_note}")
        elif math.isinf(limit):
            yield self._ok("none")
        elif limit < _AMPLE_DELIVERIES:
            text = f"a message is dropped or dead-lettered after {limit:g} deliveries; each crash and reconnect counts "
            yield self._warn(f"{text}as a delivery of every unacknowledged message")
        else:
            yield self._ok(f"{limit:g} deliveries")

    def dead_letters(self) -> Iterator[Finding]:
        """Check whether dead-lettered messages are kept."""
        facts = self.facts
        refuses = OnMissing.REJECT is self.settings.on_missing or OnUnreadable.REJECT is self.settings.on_unreadable
        limit, target = facts.delivery_limit, facts.dead_letters_to
        limited = limit is not None and math.isfinite(limit)
        why = f"over the delivery limit ({limit:g})" if limited else "that is refused"
        if target is None:
            yield self._unknown()
        elif not target and limited:
            yield self._bad(f"there is no dead-letter target: a message {why} is dropped, and lost")
        elif not target and (refuses or limit is None):
            yield self._warn(f"there is no dead-letter target: a message {why} is dropped")
        elif not target:
            yield self._ok("there is no dead-letter target, but no message is dead-lettered")
        elif facts.dead_letters_arrive is False:
            text = f"dead letters go to {target}, which does not exist or has no queue: a message {why} is lost"
            yield self._bad(text) if limited or refuses else self._warn(text)
        elif facts.dead_letters_arrive is None:
            yield self._unknown(f"dead letters go to {target}; whether a queue keeps them is not known")
        else:
            yield self._ok(f"dead letters go to {target}")

    def redelivery_delay(self) -> Iterator[Finding]:
        """Check whether a replay waits longer (`replayTimeout`) than the broker delays redeliveries."""
        delay_s, timeout_s = self.facts.redelivery_delay_s, self.settings.replay_timeout_s
        if delay_s is None:
            text = f"not known whether the broker delays redeliveries; a replay waits {timeout_s:g} s for them"
            yield self._unknown(text, "" if self.remedy.startswith("or ") else self.remedy)
        elif delay_s < timeout_s:
            yield self._ok(f"up to {delay_s:g} s, and a replay waits {timeout_s:g} s" if delay_s else "none")
        else:
            sure = "are" if self.broker.delays_session_returns else "may be"
            make = self._bad if self.broker.delays_session_returns else self._warn
            text = f"redeliveries {sure} delayed by up to {delay_s:g} s"
            advice = f"raise 'replayTimeout' above {math.ceil(delay_s)}s"
            also = f", {self.remedy}" if self.remedy.startswith("or ") else ""
            yield make(f"{text}, but a replay fails after {timeout_s:g} s", f"{advice}{also}")

    def consumer_timeout(self) -> Iterator[Finding]:
        """Check whether the broker requeues unacknowledged messages so early that a batch is still processing them."""
        timeout_s, settings = self.facts.consumer_timeout_s, self.settings
        if timeout_s is None:
            text = f"not known: {_USUAL_TIMEOUT_S / 60:.0f} min unless the broker is configured otherwise"
            advice = f"{self.to_know}; see `consumer_timeout` in rabbitmq.conf, which the broker does not report"
            yield self._unknown(text, advice)
        elif math.isinf(timeout_s):
            yield self._ok("none")
        elif settings.min_messages > 1 and timeout_s <= settings.max_delay_s:
            text = f"{timeout_s:g} s, but 'maxTriggerDelay' holds messages for {settings.max_delay_s:g} s: the broker "
            advice = f"lower 'maxTriggerDelay', or {self.remedy}"
            yield self._bad(f"{text}requeues all of them again and again", advice)
        elif timeout_s < _USUAL_TIMEOUT_S:
            text = f"{timeout_s:g} s: if a batch or trigger interval takes longer, the broker requeues all messages, "
            yield self._warn(f"{text}and quorum queues count that as a delivery")
        else:
            yield self._ok(f"{timeout_s:g} s; batches and trigger intervals must be shorter")

    def priorities(self) -> Iterator[Finding]:
        """Check whether the queue has priorities, by which it may deliver other messages before redeliveries."""
        known = self.facts.priorities
        if known is None:
            yield self._unknown()
        elif known:
            yield self._warn("messages are delivered by priority: a replay has to find its messages among others")
        else:
            yield self._ok("none")

    def single_active(self) -> Iterator[Finding]:
        """Check whether the queue delivers to one consumer at a time, and whether there is another consumer."""
        facts, count = self.facts, self.settings.consumers
        if facts.single_active is None:
            yield self._unknown()
        elif not facts.single_active:
            yield self._ok("no")
        elif facts.other_consumers:
            yield self._bad(
                f"one consumer at a time receives messages, and there is another consumer{_named(facts)}: this query "
                "receives nothing until that consumer is gone",
                "stop the other consumer (unless it is this query itself)",
            )
        else:
            idle = f"; {count - 1} of {count} 'consumers' receive nothing" if count > 1 else ""
            text = f"one consumer at a time receives messages{idle}; after a crash the next consumer waits until the "
            yield self._warn(f"{text}broker has noticed that the previous consumer is gone")

    def other_consumers(self) -> Iterator[Finding]:
        """Check whether the queue has other consumers, which would take messages away from this query."""
        others = self.facts.other_consumers
        if others is None:
            yield self._unknown()
        elif others:
            text, _, advice = other_consumers(others).rpartition(". ")
            yield self._warn(
                f"{text}{_named(self.facts)}", f"unless it is this query itself: {advice[:1].lower()}{advice[1:]}"
            )
        else:
            yield self._ok("none")

    def prefetch(self) -> Iterator[Finding]:
        """Check whether the broker accepts as many consumers as the query needs, and applies the query's prefetch."""
        settings, count = self.settings, self.facts.consumers_max
        over_amqp10 = settings.endpoint.protocol == AMQP_1_0
        confirms = self.broker.amqp10 is None or self.broker.amqp10.confirms
        needed = settings.consumers + (not over_amqp10)
        if count is not None and count < needed:
            why = ", and one more when the prefetch is raised after a restart" if needed > settings.consumers else ""
            text = f"the queue accepts {count:g} consumer(s), but this query needs {settings.consumers}{why}"
            yield self._bad(text)
        elif count is not None and count == needed and over_amqp10 and not confirms:
            text = f"the queue accepts {count:g} consumer(s), and this query uses all of them to receive: the link "
            yield self._warn(f"{text}that confirms acknowledgements is refused each time, which is logged")
        elif settings.prefetch == self.broker.replaced_prefetch:
            text = f"the broker mistakes the prefetch {settings.prefetch} for its default"
            yield self._warn(f"{text}, and replaces it by `queuePrefetch` of its policy")
        else:
            yield self._ok(f"{settings.prefetch:,} for each of {settings.consumers} connection(s)")

    def page_size(self) -> Iterator[Finding]:
        """Check whether ActiveMQ Classic's `maxPageSize` is below the prefetch.

        With so small a page, the queue stops delivering after a page of unacknowledged messages, and the source has to
        wake the queue for each further page.
        """
        size = self.facts.page_size
        if size is None:
            yield self._unknown()
        elif size < self.settings.prefetch:
            text = f"maxPageSize is {size:,}, prefetch {self.settings.prefetch:,}: the source wakes the queue for each "
            yield self._warn(f"{text}further page of unacknowledged messages")
        else:
            yield self._ok(f"maxPageSize is {size:,}")

    def write_timeout(self) -> Iterator[Finding]:
        """Check how soon the broker requeues the messages of a client that vanished without closing its connection."""
        timeout_s = self.facts.write_timeout_s
        if timeout_s is None:
            yield self._unknown()
        elif math.isinf(timeout_s):
            text = "for 15 minutes the broker may keep the messages of a client that has vanished"
            yield self._warn(f"the connector has no soWriteTimeout: {text}")
        else:
            yield self._ok(f"soWriteTimeout is {timeout_s:g} s")

    def slow_consumers(self) -> Iterator[Finding]:
        """Check whether the broker evicts slow consumers."""
        what = self.facts.slow_consumers
        if what is None:
            yield self._unknown()
        elif what:
            yield self._bad(f"{what}: a consumer that acknowledges late looks slow")
        else:
            yield self._ok("the broker does not evict slow consumers")


_CHECKS = {
    "queue": _Checks.queue,
    "delivery-limit": _Checks.delivery_limit,
    "dead-letters": _Checks.dead_letters,
    "redelivery-delay": _Checks.redelivery_delay,
    "consumer-timeout": _Checks.consumer_timeout,
    "priorities": _Checks.priorities,
    "single-active-consumer": _Checks.single_active,
    "other-consumers": _Checks.other_consumers,
    "prefetch": _Checks.prefetch,
    "page-size": _Checks.page_size,
    "write-timeout": _Checks.write_timeout,
    "slow-consumers": _Checks.slow_consumers,
}


def _named(facts: QueueFacts) -> str:
    return f" ({', '.join(facts.consumer_names)})" if facts.consumer_names else ""


# -- messages ----------------------------------------------------------------------------------


def check_sample(sample: Sample, settings: Settings) -> list[Finding]:
    """Check the IDs and sizes of some messages of a queue."""
    found = [] if not sample.cut_short else [_cut_short(sample, settings)]
    if not sample.sizes:
        unknown = Level.UNKNOWN, "the queue has no message to look at", "run doctor again when the queue has messages"
        return [*found, Finding("message-ids", *unknown), Finding("message-sizes", *unknown)]
    return [*found, *_ids(sample, settings), _sizes(sample, settings)]


def _cut_short(sample: Sample, settings: Settings) -> Finding:
    text = f"the session ends when its prefetch is raised, as happens after a restart: {sample.cut_short}"
    return Finding("prefetch", Level.PROBLEM, text, settings.endpoint.broker.remedies.get("prefetch", ""))


_EMITTED = {
    OnMissing.CONTENT: "identified by their contents; messages with equal contents may be duplicated",
    OnMissing.ROW: "emitted at each delivery",
}


def _ids(sample: Sample, settings: Settings) -> Iterator[Finding]:
    check, count = "message-ids", len(sample.ids)
    seen = f"in {count} message(s) ({sample.how})"
    if not settings.guarantee.identifies:
        yield Finding(check, Level.OK, f"not needed with guarantee '{settings.guarantee.value}'")
        return
    missing = sample.ids.count(None)
    no_ids = f"{missing} of {count} message(s) ({sample.how}) have no ID under messageIdFrom='{settings.id_source}'"
    better = "have the producer set the ID, or choose another 'messageIdFrom'"
    if sample.unique:
        better += f": these messages all have different IDs under {', '.join(sample.unique[:_IDS_SHOWN])}"
    if missing and settings.on_missing not in _EMITTED:
        fails = settings.on_missing is OnMissing.FAIL
        yield Finding(
            check, Level.PROBLEM if fails else Level.WARNING,
            f"{no_ids}: " + ("the query fails at the first" if fails else "they are refused for good"),
            better + (". Or set 'onMissingMessageId' to 'content'" if fails else ""),
        )  # fmt: skip
    repeated = [one for one, times in Counter(one for one in sample.ids if one is not None).items() if times > 1]
    if repeated:
        shown = ", ".join(map(repr, repeated[:_IDS_SHOWN])) + (", ..." if len(repeated) > _IDS_SHOWN else "")
        yield Finding(
            check, Level.PROBLEM,
            f"{len(repeated)} ID(s) belong to more than one message {seen}: {shown}. The second message with each ID "
            "is dropped as a duplicate",
            "have the producer give each message its own ID, or choose another 'messageIdFrom'",
        )  # fmt: skip
    if missing and settings.on_missing in _EMITTED:
        equal = f"; {sample.repeated} with the same contents as an earlier message" if sample.repeated else ""
        worth_it = bool(sample.repeated or sample.unique)
        yield Finding(
            check, Level.WARNING if worth_it else Level.OK,
            f"{no_ids}: {_EMITTED[settings.on_missing]}{equal}",
            better if worth_it else "",
        )  # fmt: skip
    elif not missing and not repeated:
        yield Finding(check, Level.OK, f"no ID is repeated {seen}")


def _sizes(sample: Sample, settings: Settings) -> Finding:
    check, maximum, sizes = "message-sizes", settings.max_bytes, sample.sizes
    seen = f"{len(sizes)} message(s), {min(sizes):,} to {max(sizes):,} bytes ({sample.how})"
    if max(sizes) > settings.max_partition_bytes:
        return Finding(
            check, Level.PROBLEM,
            f"{seen}, but a task may carry {settings.max_partition_bytes:,} ('maxPartitionBytes'): on a cluster the "
            "query fails",
            "raise spark.rpc.message.maxSize above the largest message, and 'maxPartitionBytes' to just below "
            "spark.rpc.message.maxSize",
        )  # fmt: skip
    if max(sizes) > maximum:
        large = sum(1 for size in sizes if size > maximum)
        return Finding(
            check, Level.WARNING,
            f"{seen}; {large} message(s) above 'maxBytesPerTrigger' ({maximum:,}), each of which becomes an epoch "
            "of its own",
            f"raise 'maxBytesPerTrigger' to {max(sizes)} or more",
        )  # fmt: skip
    fits = int(maximum / max(1.0, sum(sizes) / len(sizes)))
    bound = f"about {fits:,} by 'maxBytesPerTrigger'" if fits < settings.max_messages else f"{settings.max_messages:,}"
    return Finding(check, Level.OK, f"{seen}; an epoch has up to {bound}")
