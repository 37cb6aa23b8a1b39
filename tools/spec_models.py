"""What the specification is checked on: models that have to hold, and rules that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tools.tlc import LASTING, Model

__all__ = ["LONG", "MODELS", "QUICK", "RULES", "SAFEGUARDS", "without"]

_ONE = MappingProxyType({"Copies": "One", "Slots": "OneSlot"})
_TWO = MappingProxyType({"Copies": "OneQueue", "Slots": "OneSlot", "EpochMax": 1})
_EACH = MappingProxyType({"Copies": "OneEach"})
#: Those that say what users are promised, and what it rests on.
_FEW = ("AcknowledgedIsCommitted", "NothingTwice", "SameBatch", "CarriedIsCommitted", "MayComeAgainIsKnown")
_BEFORE_42 = MappingProxyType({"Shows": False})

#: Checked by the tests too: each kind of fault, each order of calls, each way that things come about.
QUICK = (
    Model("a queue with two connections", {"Copies": "OneQueue", "Slots": "TwoSlots"},
          {"crash": 1, "cut": 1, "silence": 1}),
    Model("given up", {**_EACH, "GivesUp": True}, {"crash": 2, "away": 1}),
    Model("released", _EACH, {"crash": 2, "away": 1, "release": 1}),
    Model("another consumer", _EACH, {"crash": 1, "silence": 1, "away": 1}),
    Model("a broker that forgets", {**_EACH, "EpochMax": 1}, {"crash": 1, "broker": 1, "forget": 1}),
    Model("a process that stands still", _EACH, {"crash": 1, "silence": 1, "still": 1}),
    Model("delivery limit, a message that cannot be decoded", {**_TWO, "Odd": "OddFirst", "Limit": 1},
          {"crash": 1, "cut": 1}),
    Model("a message sent twice", {"Copies": "Repeated", "Slots": "OneSlot"}, {"cut": 1, "silence": 1}),
    Model("Trigger.Once", {**_EACH, "Mode": "once"}, {"crash": 1, "cut": 1}),
    Model("Trigger.AvailableNow", {**_EACH, "Mode": "available"}, {"crash": 1, "cut": 1}),
    Model("Spark 4.0", {**_EACH, **_BEFORE_42, "EpochMax": 1}, {"crash": 2, "cut": 1}),
    Model("Spark 4.0, bounded runs", {**_EACH, **_BEFORE_42, "Mode": "available"}, {"crash": 2}),
    Model("Spark 4.0, a broker that forgets", {**_TWO, **_BEFORE_42}, {"crash": 2, "broker": 1, "forget": 1}),
    Model("comes about", _TWO, {"crash": 1, "cut": 1}, LASTING),
    Model("comes about: Trigger.Once", {**_ONE, "Mode": "once"}, {}, LASTING),
    Model("comes about: given up", {**_ONE, "GivesUp": True}, {"crash": 1, "away": 1}, LASTING),
    Model("comes about: Spark 4.0", {**_TWO, **_BEFORE_42}, {"crash": 1}, LASTING),
)  # fmt: skip
#: What `make spec` adds.
MODELS = (
    *QUICK,
    Model("two queues, all that ends sessions", {},
          {"crash": 2, "cut": 1, "silence": 1, "broker": 1, "forget": 1}, _FEW),
    Model("two queues, a broker that forgets", {}, {"crash": 2, "cut": 1, "broker": 1, "forget": 1}, _FEW),
    Model("given up, longer", {"GivesUp": True}, {"crash": 2, "away": 1}, _FEW),
    Model("Spark 4.0, longer", _BEFORE_42, {"crash": 2, "cut": 1}, _FEW),
)  # fmt: skip
#: By hand.
LONG = (
    Model("two connections, longer", {"Copies": "Three", "Slots": "TwoSlots"},
          {"crash": 1, "cut": 1, "silence": 1}, _FEW),
    Model("two queues, longer", {}, {"crash": 2, "cut": 2, "silence": 1, "broker": 1, "forget": 1}, _FEW),
)  # fmt: skip

#: Each rule: the smallest model on which leaving it out shows, and the property that fails there.
RULES: Mapping[str, Model] = MappingProxyType(
    {
        "1": Model("acknowledged when planned", _ONE, {}, ["AcknowledgedIsCommitted"]),
        "2": Model("settled by `commit` alone", _ONE, {}, ["AllSettled"]),
        "3": Model("acknowledged up to what has arrived", _TWO, {}, ["AcknowledgedIsCommitted"]),
        "4": Model("dropped, not acknowledged", _ONE, {"crash": 1}, ["AllSettled"]),
        "5": Model("nothing carried", _TWO, {"crash": 1}, ["NothingTwice"]),
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
        "16": Model("all that is planned is settled", {**_TWO, **_BEFORE_42}, {}, ["AcknowledgedIsCommitted"]),
        "17": Model("a message is read as the one before", _TWO, {}, ["AcknowledgedIsCommitted"]),
        "18": Model("the time of a stopped process counts", _TWO, {"crash": 2, "still": 1}, ["NothingTwice"]),
    }
)  # fmt: skip
#: Faults that the code once had, and what is no rule by itself.
SAFEGUARDS: Mapping[str, Model] = MappingProxyType(
    {
        "slow": Model("carried too briefly where the broker is slow to hand out again", _TWO, {"crash": 2},
                      ["NothingTwice"]),
        "given up": Model("given up, and committed with its epoch", {**_ONE, "GivesUp": True}, {"crash": 1},
                          ["AcknowledgedIsCommitted"]),
        "other clock": Model("the connected time of another queue counts", {**_EACH, "EpochMax": 1},
                             {"crash": 2}, ["NothingTwice"]),
        "grace": Model("not carried once it is confirmed", _TWO, {"crash": 1, "broker": 1, "forget": 1},
                       ["NothingTwice"]),
        "first answer": Model("Spark 4.0: an idle restart answers with the offset of the beginning",
                              {**_ONE, **_BEFORE_42}, {"crash": 2}, ["NothingTwice"]),
        "leftovers": Model("Spark 4.0: what a former process left is not waited for", {**_TWO, **_BEFORE_42},
                           {"crash": 2}, ["NothingTwice"]),
    }
)  # fmt: skip


def without(rule: str) -> Model:
    """The model that shows what a rule, or a safeguard, is for."""
    model = {**RULES, **SAFEGUARDS}[rule]
    return Model(model.name, model.sizes, model.faults, model.properties, [rule])
