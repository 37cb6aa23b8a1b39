"""The faults of a soak: how many of each are in a round, their order, and what is done.

Three kinds of runs, each with faults of its own: a job that runs on and a proxy before its broker, periodic jobs whose
sink fails, and a job on a cluster, whose faults the cluster knows (:meth:`.Cluster.faults`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from testbed.brokers.node import FROZEN_S
from testbed.chaos.chaos import Job
from testbed.chaos.periodic import Failure, PeriodicJob
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.chaos.queues import PrivateBroker

__all__ = ["FAULTS", "PERIODIC", "Fault", "fault_of", "periodic_faults", "streaming_faults"]

#: Does something; returns whether it could be done now.
Fault = Callable[[], bool]

#: A narrow link, and for how long it stays narrow after it was cut.
_SLOW_BYTES_PER_S = 100_000
_SLOW_S = 1.0
#: How long a cut at a given byte waits for that byte.
_CUT_TIMEOUT_S = 10.0

#: Every fault, and how many of each in a round. What only cuts takes a second; what kills a JVM takes a start of Spark.
FAULTS: Mapping[str, int] = MappingProxyType(
    {
        "cut": 13,
        "cut in mid-frame": 10,
        "link of 100 kB/s, cut in mid-frame": 3,
        "connection silent (half-open)": 3,
        "kill -9 of the Python worker": 4,
        "kill -9 of the broker, restart": 2,
        "kill -9 of the JVM": 1,
        "kill -9 of the driver and its JVM": 1,
        "SIGSTOP of the Python worker, SIGCONT": 1,
        "SIGSTOP of the broker, SIGCONT": 1,
    }
)
#: Runs of periodic jobs: of a third the sink fails.
PERIODIC: Mapping[str, int] = MappingProxyType(
    {
        "run to its end": 6,
        "run, its sink fails before it writes": 1,
        "run, its sink fails halfway": 1,
        "run, its sink fails behind its commit": 1,
    }
)


def fault_of(seed: int, turn: int, kinds: Mapping[str, int] = FAULTS) -> str:
    """The fault of a turn: rounds of all kinds, each round in an order of its own with one of every kind first."""
    number, place = divmod(turn, sum(kinds.values()))
    chance = random.Random(f"{seed}/{number}")
    first = list(kinds)
    rest = [name for name, count in kinds.items() for _ in range(count - 1)]
    chance.shuffle(first)
    chance.shuffle(rest)
    return [*first, *rest][place]


def streaming_faults(
    job: Job, broker: PrivateBroker, proxy: FaultProxy, chance: random.Random, link: int | None = None
) -> dict[str, Fault]:
    """What is done to a job that runs on, and to its broker behind a proxy.

    Args:
        link: bytes a second that the proxy passes on when nothing is done to it; None for no limit.
    """

    def cut() -> bool:
        return proxy.cut() > 0

    def cut_mid_frame() -> bool:
        # Towards the broker go acknowledgements and heartbeats only, some fifty bytes a trigger.
        direction, most = chance.choice([(Direction.TO_BROKER, 200), (Direction.TO_CLIENT, 20_000)])
        done = proxy.cut_after(chance.randrange(1, most), direction).wait(_CUT_TIMEOUT_S)
        proxy.disarm()
        return done

    def cut_slow() -> bool:
        proxy.throttle(_SLOW_BYTES_PER_S)
        try:
            done = proxy.cut_after(chance.randrange(1, 100_000), Direction.TO_CLIENT).wait(_CUT_TIMEOUT_S)
            proxy.disarm()
            time.sleep(_SLOW_S)
        finally:
            proxy.throttle(link)
        return done

    def silence() -> bool:
        if not proxy.connections:
            return False
        proxy.mute(chance.choice([None, *Direction]))
        return True

    return {
        "cut": cut,
        "cut in mid-frame": cut_mid_frame,
        "link of 100 kB/s, cut in mid-frame": cut_slow,
        "connection silent (half-open)": silence,
        "kill -9 of the Python worker": job.kill_worker,
        "kill -9 of the broker, restart": broker.kill_and_start,
        "kill -9 of the JVM": job.kill_jvm,
        "kill -9 of the driver and its JVM": job.kill_driver,
        "SIGSTOP of the Python worker, SIGCONT": lambda: job.freeze_worker(FROZEN_S),
        "SIGSTOP of the broker, SIGCONT": broker.freeze,
    }


def periodic_faults(job: PeriodicJob, chance: random.Random) -> dict[str, Fault]:
    """Runs of periodic jobs. A sink fails in the first batch of a run or in the second, if there is one."""

    def failing(failure: Failure) -> Fault:
        # What a busy machine has published by then may be one batch: then that of the next run fails.
        return lambda: job.run(failure, chance.choice((0, 1))) or job.run(failure)

    before, halfway, behind = map(failing, (Failure.BEFORE, Failure.HALFWAY, Failure.BEHIND))
    return dict(zip(PERIODIC, (lambda: job.run(None), before, halfway, behind), strict=True))
