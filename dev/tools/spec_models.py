"""What the specification is checked on: models that have to hold, and rules that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tools.tlc import LASTING, Model

__all__ = ["LONG", "MODELS", "QUICK", "RULES", "SAFEGUARDS", "without"]

_ONE = MappingProxyType({"Copies": "One", "Slots": "OneSlot"})
_TWO = MappingProxyType({"Copies": "OneQueue", "Slots": "OneSlot", "EpochMax": 1})
_THREE = MappingProxyType({"Copies": "Three", "Slots": "OneSlot", "EpochMax": 1})
_FIVE = MappingProxyType({"Copies": "Five", "Slots": "OneSlot", "EpochMax": 1, "Window": 5, "Room": 1})
_EACH = MappingProxyType({"Copies": "OneEach"})
_NOTHING = MappingProxyType({"RememberLeft": 0, "DedupWindow": 0})
#: Those that say what users are promised, and what it rests on.
_FEW = (
    "AcknowledgedIsCommitted", "NothingTwice", "SameBatch", "NamedIsCommitted", "NamedIsThere", "NothingIsLeftOver",
    "MayComeAgainIsKnown", "MemoryIsBounded",
)  # fmt: skip

#: Checked by the tests too: each kind of fault, each order of calls, each way that things come about.
QUICK = (
    Model("a queue with two connections", {"Copies": "OneQueue", "Slots": "TwoSlots", "EpochMax": 1},
          {"crash": 1, "silence": 1}),
    Model("given up", {**_TWO, "EpochMax": 2, "GivesUp": True}, {"crash": 2}),
    Model("released", _ONE, {"crash": 2, "away": 1, "release": 1}),
    Model("another consumer", _TWO, {"silence": 1, "away": 1}),
    Model("a broker that forgets", {**_TWO, **_NOTHING}, {"crash": 1, "broker": 1, "forget": 1}),
    Model("a process that stands still", _ONE, {"crash": 1, "silence": 1, "still": 1}),
    Model("delivery limit, a message that cannot be decoded", {**_TWO, "Odd": "OddFirst", "Limit": 1},
          {"crash": 1, "cut": 1}),
    Model("a message sent twice", {"Copies": "Repeated", "Slots": "OneSlot", "EpochMax": 1, "DedupWindow": 3},
          {"cut": 1, "silence": 1}),
    Model("a lower guarantee, and back", {**_TWO, **_NOTHING}, {"crash": 2, "lower": 1}),
    Model("the oldest are forgotten", {**_TWO, **_NOTHING}, {"crash": 1, "cut": 1}),
    Model("several crashes", _TWO, {"crash": 3}),
    Model("Trigger.Once", {**_EACH, "Mode": "once"}, {"crash": 1, "cut": 1}),
    Model("Trigger.AvailableNow", {**_EACH, "Mode": "available"}, {"crash": 1, "cut": 1}),
    Model("comes about", _TWO, {"crash": 1}, LASTING),
    Model("comes about: Trigger.Once", {**_ONE, "Mode": "once"}, {}, LASTING),
    Model("comes about: given up", {**_ONE, "GivesUp": True}, {"crash": 1, "away": 1}, LASTING),
)  # fmt: skip
#: What `make spec` adds.
MODELS = (
    *QUICK,
    Model("many ends, directed", {**_FIVE, "Copies": "Four"}, {"crash": 2}, _FEW, among="Untaken"),
    Model("four messages, directed", {**_FIVE, "Copies": "Four"}, {"crash": 1, "cut": 1}, _FEW, among="Untaken"),
    Model("two queues, a broker that forgets", {**_EACH, "EpochMax": 1}, {"crash": 1, "broker": 1, "forget": 1}, _FEW),
)  # fmt: skip
#: By hand.
LONG = (
    Model("two connections, longer", {"Copies": "OneQueue", "Slots": "TwoSlots"},
          {"crash": 1, "cut": 1, "silence": 1}, _FEW),
    Model("three messages, the oldest are forgotten", {**_THREE, **_NOTHING}, {"crash": 2, "cut": 1}, _FEW),
    Model("five messages, directed", _FIVE, {"crash": 2, "cut": 1}, _FEW, among="Untaken"),
    Model("two queues, all that ends sessions", {}, {"crash": 2, "cut": 1, "silence": 1, "broker": 1, "forget": 1},
          _FEW),
)  # fmt: skip

#: Each rule: the smallest model on which leaving it out shows, and the property that fails there.
RULES: Mapping[str, Model] = MappingProxyType(
    {
        "1": Model("acknowledged when planned", _ONE, {}, ["AcknowledgedIsCommitted"]),
        "2": Model("settled by `commit` alone", _ONE, {}, ["AllSettled"]),
        "3": Model("acknowledged up to what has arrived", _TWO, {}, ["AcknowledgedIsCommitted"]),
        "4": Model("dropped, not acknowledged", _ONE, {"crash": 1}, ["AllSettled"]),
        "5": Model("nothing named", _TWO, {"crash": 1}, ["NothingTwice"]),
        "6": Model("what comes again in a new session is taken for new", _TWO, {"cut": 1}, ["NothingTwice"]),
        "7": Model("a second message with an ID is another one", {**_TWO, "Copies": "Repeated", "EpochMax": 2}, {},
                   ["NothingTwice"]),
        "8": Model("dropped without a count", _ONE, {"crash": 1}, ["Counted"]),
        "9": Model("a replay does not wait", _ONE, {"crash": 1}, ["AcknowledgedIsCommitted"]),
        "10": Model("a handle of an ended session is used", {**_TWO, "EpochMax": 2}, {"cut": 1},
                    ["AcknowledgedIsCommitted"]),
        "11": Model("the receiver outlives its process", _ONE, {"crash": 1}, ["Emitted"]),
        "12": Model("what is held back is returned", {**_ONE, "Limit": 1}, {}, ["NothingCounted"]),
        "13": Model("a message that cannot be decoded ends the session", {**_TWO, "Odd": "OddFirst", "Limit": 1}, {},
                    ["NothingCounted"]),
        "14": Model("what was dropped takes room", {**_TWO, "Room": 1}, {}, ["Emitted"]),
        "15": Model("given up without a record", {**_ONE, "GivesUp": True}, {"crash": 2}, ["AcknowledgedIsCommitted"]),
        "16": Model("all that is planned is settled", _TWO, {}, ["AcknowledgedIsCommitted"]),
        "17": Model("a message is read as the one before", _TWO, {}, ["AcknowledgedIsCommitted"]),
        "18": Model("the time of a stopped process is a grace", {**_THREE, **_NOTHING},
                    {"still": 1, "broker": 1, "forget": 1}, ["NothingTwice"], among="Directed"),
    }
)  # fmt: skip
#: What is no rule by itself: parts of the journal, and faults that the code or its design once had.
SAFEGUARDS: Mapping[str, Model] = MappingProxyType(
    {
        "sign of life": Model("settled once it is confirmed", {**_THREE, **_NOTHING}, {"broker": 1, "forget": 1},
                              ["NothingTwice"], among="Directed"),
        "asked later": Model("settled by an answer that was on its way before", {**_THREE, **_NOTHING},
                              {"broker": 1, "forget": 1}, ["NothingTwice"], among="Directed"),
        "ends of sessions": Model("settled by the end of its session", {**_THREE, **_NOTHING}, {"cut": 1},
                                  ["NothingTwice"], among="Directed"),
        "no handle": Model("settled where it had no handle", {**_THREE, **_NOTHING, "Window": 1}, {"cut": 1},
                           ["MayComeAgainIsKnown"]),
        "own file": Model("the epoch of `start` is not taken for committed", _TWO, {"crash": 1}, ["NothingTwice"]),
        "end is open": Model("the open epoch is taken for committed", _ONE, {"crash": 1},
                             ["AcknowledgedIsCommitted"]),
        "file of the end": Model("the open epoch's file is not read", _TWO, {"crash": 1}, ["NothingIsLeftOver"]),
        "ends of processes": Model("settled by the end of a process", {**_THREE, **_NOTHING}, {"crash": 1},
                                   ["MayComeAgainIsKnown"], among="Directed"),
        "distinct": Model("what is left again counts again", {**_FIVE, "Copies": "Four"},
                          {"crash": 2, "cut": 1}, ["MayComeAgainIsKnown"], among="Untaken"),
        "at the bound": Model("forgotten at the bound", {**_TWO, **_NOTHING}, {"crash": 1}, ["MayComeAgainIsKnown"]),
        "the oldest go": Model("nothing is forgotten", {**_THREE, **_NOTHING}, {}, ["MemoryIsBounded"],
                               among="Directed"),
        "listed": Model("an epoch is settled after all those before it", _THREE, {}, ["SettledIsSettled"],
                        among="Directed"),
        "file first": Model("an offset is returned before its file is kept", _ONE, {"crash": 1}, ["NamedIsThere"]),
        "a plan later": Model("a file is removed by the plan that is the first not to name it", _TWO, {},
                              ["NamedIsThere"]),
        "strays": Model("what a crash has left is not removed", _ONE, {"crash": 1}, ["NothingIsLeftOver"]),
        "shown first": Model("before Spark 4.2: an epoch is asked for before the log's newest offset is shown", _TWO,
                             {"crash": 1}, ["NothingTwice"]),
        "given up": Model("given up, and committed with its epoch", {**_ONE, "GivesUp": True}, {"crash": 1},
                          ["AcknowledgedIsCommitted"]),
        "lower guarantee": Model("a lower guarantee runs an open epoch without a record", _ONE,
                                 {"crash": 1, "lower": 1}, ["AcknowledgedIsCommitted"]),
    }
)  # fmt: skip


def without(rule: str) -> Model:
    """The model that shows what a rule, or a safeguard, is for."""
    model = {**RULES, **SAFEGUARDS}[rule]
    return Model(model.name, model.sizes, model.faults, model.properties, [rule], model.among)
