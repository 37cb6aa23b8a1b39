"""Decides which messages are acknowledged, and when.

:mod:`.table` has the life of a message as a table of states and events. :mod:`.in_flight` applies this table to the
messages that a process holds. The modules of this folder are pure: they do no I/O, and do not read a clock.
"""

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
