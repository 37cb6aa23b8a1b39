"""Acknowledging: the life of a delivery as a state table, and the in-flight table that executes this table. Pure."""

from pyspark_mq.ack.in_flight import Acknowledgements, InFlightTable, SessionAcks
from pyspark_mq.ack.table import TRANSITIONS, Action, Event, IllegalEventError, State, step

__all__ = [
    "TRANSITIONS",
    "Acknowledgements",
    "Action",
    "Event",
    "IllegalEventError",
    "InFlightTable",
    "SessionAcks",
    "State",
    "step",
]
