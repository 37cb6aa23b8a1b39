"""What ``dev/spec/Contents.tla`` is checked on: messages without IDs, and each row of the matching left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tools.tlc import Outcome, outcome_of, run_tlc

__all__ = ["LARGER", "MODELS", "ROWS", "Contents", "check_contents", "without_row"]

_PROPERTIES = (
    "AcknowledgedIsEmitted", "OwnComesOnce", "EqualAreKept", "TwiceWasExposed", "NothingAwaitedInVain",
)  # fmt: skip
_FAULTS = ("Cuts", "Crashes", "Kills", "Silences")


@dataclass(frozen=True)
class Contents:
    """What the checker looks at.

    Attributes:
        copies: messages, all with one content.
        proves: a missing flag proves that a delivery is new, as on RabbitMQ.
        flags: the broker flags messages that nobody had.
        faults: kind -> how often.
        broken: rows that are left out.
    """

    copies: int
    proves: bool
    flags: bool
    faults: Mapping[str, int] = field(default_factory=dict)
    broken: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What tables call it."""
        broker = "flags prove, and may be too many" if self.flags else "flags prove" if self.proves else "no proof"
        return f"{self.copies} equal, {broker}" if self.copies > 1 else f"a content of its own, {broker}"

    @property
    def row(self) -> str:
        """The beginning of its row in the table."""
        faults = ", ".join(f"{_NAMES[kind]}: {count}" for kind, count in self.faults.items())
        return f"| {self.name} | {faults} |"


_NAMES = {"Cuts": "end", "Crashes": "crash", "Kills": "kill of the broker", "Silences": "unnoticed end"}
_ALL = MappingProxyType({"Cuts": 1, "Crashes": 1, "Kills": 1})
_ENDS = MappingProxyType({"Cuts": 1, "Crashes": 1})
_CRASH = MappingProxyType({"Crashes": 1})
_CUT = MappingProxyType({"Cuts": 1})
_SILENCE = MappingProxyType({"Silences": 1})

#: Checked by the tests too.
MODELS = (
    Contents(1, proves=True, flags=True, faults={"Cuts": 2, "Crashes": 2, "Kills": 1}),
    Contents(1, proves=False, flags=False, faults={"Cuts": 2, "Crashes": 2, "Kills": 1}),
    Contents(1, proves=True, flags=False, faults=_SILENCE),
    Contents(2, proves=True, flags=True, faults=_ENDS),
    Contents(2, proves=False, flags=False, faults=_ENDS),
)
#: What `make spec` adds.
LARGER = (
    Contents(2, proves=True, flags=True, faults=_ALL),
    Contents(2, proves=False, flags=False, faults=_ALL),
    Contents(3, proves=False, flags=False, faults=_CRASH),
    Contents(3, proves=True, flags=True, faults=_CUT),
)
_OWN = Contents(1, proves=True, flags=True)
_EQUAL = Contents(2, proves=True, flags=True)
#: A row, or a note of the journal -> the smallest model on which leaving it out shows.
ROWS: Mapping[str, Contents] = MappingProxyType(
    {
        "waiting": replace(_OWN, faults=_ENDS),
        "proof": replace(_EQUAL, faults=_CRASH),
        "coming": replace(_EQUAL, faults=_CUT),
        "left": replace(_OWN, faults=_ENDS),
        "once": Contents(3, proves=True, flags=True, faults=_CUT),
        "repeats": replace(_EQUAL, faults=_CRASH),
        "held": replace(_OWN, faults=_SILENCE),
        "under way": replace(_OWN, faults=_SILENCE),
        "note": replace(_EQUAL, faults=_CRASH),
        "ordinals": replace(_EQUAL, faults=_CRASH),
    }
)


def without_row(row: str) -> Contents:
    """The model that shows what a row is for."""
    return replace(ROWS[row], broken=(row,))


def check_contents(model: Contents, *, workers: int = 1, heap: str = "2g") -> Outcome:
    """Look at every state of a model, up to the first that should not be.

    Raises:
        NodeError: the checker could not do it.
    """
    lines = ["CONSTANTS", f"  Copies = {{{', '.join(map(str, range(1, model.copies + 1)))}}}"]
    lines += [f"  Proves = {str(model.proves).upper()}", f"  Flags = {str(model.flags).upper()}"]
    lines += [f"  {kind} = {model.faults.get(kind, 0)}" for kind in _FAULTS]
    rows = ", ".join(f'"{row}"' for row in model.broken)
    lines += [f"  Broken = {{{rows}}}", "SPECIFICATION Spec"]
    lines += ["CHECK_DEADLOCK FALSE", *(f"INVARIANT {one}" for one in _PROPERTIES)]
    return outcome_of(model.name, run_tlc("Contents", "", lines, workers=workers, heap=heap))
