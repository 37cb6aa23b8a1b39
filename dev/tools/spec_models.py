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
        "1": Model("a message is acknowledged when it is planned", _ONE, {}, ["AcknowledgedIsCommitted"]),
        "2": Model("only `commit` acknowledges", _ONE, {}, ["AllSettled"]),
        "3": Model("an acknowledgement covers all messages that have arrived", _TWO, {}, ["AcknowledgedIsCommitted"]),
        "4": Model("dropped messages are not acknowledged", _ONE, {"crash": 1}, ["AllSettled"]),
        "5": Model("files do not name remembered IDs", _TWO, {"crash": 1}, ["NothingTwice"]),
        "6": Model("redeliveries in a new session count as new messages", _TWO, {"cut": 1}, ["NothingTwice"]),
        "7": Model("a second message with the same ID is a new message",
                   {**_TWO, "Copies": "Repeated", "EpochMax": 2}, {}, ["NothingTwice"]),
        "8": Model("dropped messages are not counted", _ONE, {"crash": 1}, ["Counted"]),
        "9": Model("a replay does not wait", _ONE, {"crash": 1}, ["AcknowledgedIsCommitted"]),
        "10": Model("a handle of an ended session is used", {**_TWO, "EpochMax": 2}, {"cut": 1},
                    ["AcknowledgedIsCommitted"]),
        "11": Model("the receiver outlives its process", _ONE, {"crash": 1}, ["Emitted"]),
        "12": Model("messages that are held back are returned", {**_ONE, "Limit": 1}, {}, ["NothingCounted"]),
        "13": Model("a message that cannot be decoded ends the session", {**_TWO, "Odd": "OddFirst", "Limit": 1}, {},
                    ["NothingCounted"]),
        "14": Model("dropped messages take room", {**_TWO, "Room": 1}, {}, ["Emitted"]),
        "15": Model("messages are abandoned without a record", {**_ONE, "GivesUp": True}, {"crash": 2},
                    ["AcknowledgedIsCommitted"]),
        "16": Model("all planned messages are settled", _TWO, {}, ["AcknowledgedIsCommitted"]),
        "17": Model("a message is read as the previous message", _TWO, {}, ["AcknowledgedIsCommitted"]),
        "18": Model("the time of a stopped process counts as grace", {**_THREE, **_NOTHING},
                    {"still": 1, "broker": 1, "forget": 1}, ["NothingTwice"], among="Directed"),
    }
)  # fmt: skip
#: What is no rule by itself: parts of the journal, and faults that the code or its design once had.
SAFEGUARDS: Mapping[str, Model] = MappingProxyType(
    {
        "sign of life": Model("an acknowledgement is settled once it is confirmed", {**_THREE, **_NOTHING},
                              {"broker": 1, "forget": 1}, ["NothingTwice"], among="Directed"),
        "asked later": Model("an answer that was sent earlier settles", {**_THREE, **_NOTHING},
                              {"broker": 1, "forget": 1}, ["NothingTwice"], among="Directed"),
        "ends of sessions": Model("the end of a session settles", {**_THREE, **_NOTHING}, {"cut": 1},
                                  ["NothingTwice"], among="Directed"),
        "no handle": Model("a message without a handle is settled", {**_THREE, **_NOTHING, "Window": 1}, {"cut": 1},
                           ["MayComeAgainIsKnown"]),
        "own file": Model("the epoch of `start` does not count as committed", _TWO, {"crash": 1}, ["NothingTwice"]),
        "end is open": Model("the open epoch counts as committed", _ONE, {"crash": 1},
                             ["AcknowledgedIsCommitted"]),
        "file of the end": Model("the open epoch's file is not read", _TWO, {"crash": 1}, ["NothingIsLeftOver"]),
        "ends of processes": Model("the end of a process settles", {**_THREE, **_NOTHING}, {"crash": 1},
                                   ["MayComeAgainIsKnown"], among="Directed"),
        "distinct": Model("an ID that is left again counts again", {**_FIVE, "Copies": "Four"},
                          {"crash": 2, "cut": 1}, ["MayComeAgainIsKnown"], among="Untaken"),
        "at the bound": Model("IDs are forgotten at the bound", {**_TWO, **_NOTHING}, {"crash": 1},
                              ["MayComeAgainIsKnown"]),
        "the oldest go": Model("no ID is forgotten", {**_THREE, **_NOTHING}, {}, ["MemoryIsBounded"],
                               among="Directed"),
        "listed": Model("an epoch is settled only after all earlier epochs", _THREE, {}, ["SettledIsSettled"],
                        among="Directed"),
        "file first": Model("an offset is returned before its file is durable", _ONE, {"crash": 1}, ["NamedIsThere"]),
        "a plan later": Model("the first plan that does not name a file removes it", _TWO, {},
                              ["NamedIsThere"]),
        "strays": Model("files that a crash left behind are not removed", _ONE, {"crash": 1}, ["NothingIsLeftOver"]),
        "shown first": Model("before Spark 4.2: an epoch is requested before the log's newest offset is shown", _TWO,
                             {"crash": 1}, ["NothingTwice"]),
        "given up": Model("an abandoned message is committed with its epoch", {**_ONE, "GivesUp": True}, {"crash": 1},
                          ["AcknowledgedIsCommitted"]),
        "lower guarantee": Model("a lower guarantee runs an open epoch without a record", _ONE,
                                 {"crash": 1, "lower": 1}, ["AcknowledgedIsCommitted"]),
    }
)  # fmt: skip


def without(rule: str) -> Model:
    """The model that shows what a rule, or a safeguard, is for."""
    model = {**RULES, **SAFEGUARDS}[rule]
    return Model(model.name, model.sizes, model.faults, model.properties, [rule], model.among)
