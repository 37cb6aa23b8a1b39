"""Acknowledging: the life of a delivery as a table, and the ledger that walks it. Pure."""

from pyspark_mq.ack.ledger import Ledger, SessionAcks, Settlement
from pyspark_mq.ack.table import TRANSITIONS, Action, Event, IllegalEventError, State, step

__all__ = [
    "TRANSITIONS",
    "Action",
    "Event",
    "IllegalEventError",
    "Ledger",
    "SessionAcks",
    "Settlement",
    "State",
    "step",
]
