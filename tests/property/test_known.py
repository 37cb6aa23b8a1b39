"""Known IDs against plain sets, of numbers that share their hashes.

Segments that become one have no ID in common: an ID is in one segment of a list, and only those of a list become one.
"""

from __future__ import annotations

from itertools import product

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_mq.ack.known import Known
from tests.support.effort import part_of

#: Integers that are so far apart have the same hash.
PERIOD = 2**61 - 1
FIRSTS = (-5, 0, 1, 2, 3, 64, 2**31, 2**31 + 1, 3 * 2**40)
KEYS = tuple(first + second * PERIOD for first, second in product(FIRSTS, range(3)))
SEGMENTS = range(1, 6)

keys = st.lists(st.sampled_from(KEYS), unique=True, max_size=12)
segments = st.sets(st.sampled_from(SEGMENTS))


class KnownMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.known: Known[int] = Known(second=lambda key: key // PERIOD)
        self.model: dict[int, set[int]] = {segment: set() for segment in SEGMENTS}

    @rule(segment=st.sampled_from(SEGMENTS), some=keys)
    def put(self, segment: int, some: list[int]) -> None:
        if not self.model[segment]:
            self.known.put(segment, some)
            self.model[segment] = set(some)

    @rule(some=keys, of=segments)
    def take(self, some: list[int], of: set[int]) -> None:
        left = {segment: count for segment in of if (count := len(self.model[segment].intersection(some)))}
        assert self.known.take(some, of) == left
        for segment in of:
            self.model[segment].difference_update(some)

    @rule(segment=st.sampled_from(SEGMENTS))
    def forget(self, segment: int) -> None:
        self.known.segments.forget(segment)
        self.model[segment] = set()

    @rule(some=segments, into=st.sampled_from(SEGMENTS))
    def merge(self, some: set[int], into: int) -> None:
        merged = [key for segment in some for key in self.model[segment]]
        if len(merged) > len(set(merged)) or (self.model[into] and into not in some):
            return
        self.known.segments.merge(sorted(some), into)
        self.model |= {segment: set() for segment in some} | {into: set(merged)}

    @rule(some=keys)
    def look(self, some: list[int]) -> None:
        assert self.known.among(some) == set().union(*self.model.values()).intersection(some)
        assert self.known.knows_none_of(some) is not bool(self.known.among(some))

    @invariant()
    def each_segment_has_its_own(self) -> None:
        for segment, there in self.model.items():
            assert self.known.among(KEYS, [segment]) == there
            assert self.known.segments.size(segment) == len(there)
        assert len(self.known.segments) == sum(map(len, self.model.values()))


KnownMachine.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=part_of(150), stateful_step_count=30
)
TestKnown = KnownMachine.TestCase
