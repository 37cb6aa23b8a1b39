"""Acknowledging: the life of a delivery as a table, and the ledger that walks it. Pure."""

from pyspark_mq.ack.ledger import Acknowledgements, Ledger, SessionAcks
from pyspark_mq.ack.table import TRANSITIONS, Action, Event, IllegalEventError, State, step

__all__ = [
    "TRANSITIONS",
    "Acknowledgements",
    "Action",
    "Event",
    "IllegalEventError",
    "Ledger",
    "SessionAcks",
    "State",
    "step",
]
