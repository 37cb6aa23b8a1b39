"""The contract of equal blocks over AMQP 1.0: messages that are decoded together are the same as one by one.

A case is what a session takes in at a few times, of one producer or of several, with some bytes changed or none. It is
made into deliveries twice, in batches and without, and both make blocks: rows, IDs and sizes are equal.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

from pyspark_mq.decode.amqp10 import Amqp10Batch, WalkedBatch, find_batches
from pyspark_mq.decode.amqp10_message import UnreadableMessage
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.sources.connections.message_id import MessageIds
from tests.fuzz._blocks import block_rows, same_rows
from tests.fuzz.amqp10 import generated
from tests.support.decoding import Asked
from tests.support.stream_messages import FORMS, message, mutated

__all__ = ["run"]

_DECODER = Asked(Amqp10Batch)
_SOURCES = [("message-id",), ("correlation-id",), ("property", "key-0"), ("content",), ("json", "a")]
_SMALL = 500
#: What a broker writes before a message: nothing, or headers of a first and a second delivery.
_HEADERS = (
    b"",
    b"\x00\x53\x70\xc0\x07\x05\x41\x50\x04\x40\x41\x43",
    b"\x00\x53\x70\xc0\x08\x05\x41\x50\x04\x40\x42\x52\x02",
)


def _message(rng: random.Random, form: str) -> bytes:
    if form == "generated":
        return generated(rng).encode(rng)
    header = rng.choices(_HEADERS, (8, 8, 1))[0] if form != "header" else b""
    return header + message(rng, form)


def _case(rng: random.Random) -> Counter[str]:
    forms = [rng.choice((*FORMS, "generated")) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    share = rng.choice((0.0, 0.0, 0.02, 0.3))
    reader = SectionReader(counts_acquirers=rng.random() < 0.5)
    together: list[Any] = []
    alone: list[Any] = []
    for _ in range(rng.randrange(1, 4)):
        messages = [_message(rng, rng.choice(forms)) for _ in range(rng.choice((1, 63, 64, 100, 300)))]
        messages = [mutated(rng, one) if rng.random() < share else one for one in messages]
        together += find_batches(len(alone) + 1, messages, reader)
        alone += map(reader.read, range(len(alone) + 1, len(alone) + 1 + len(messages)), messages)
    missing = rng.choice((OnMissing.CONTENT, OnMissing.ROW))
    ids = MessageIds(IdSource(*rng.choice(_SOURCES)), missing, exact=True, unreadable_rows=True)
    bytes_max = rng.choice((_SMALL, 4 << 20))
    # What counts of a key depends on the whole block.
    parts = len(list(_DECODER.gather(together, bytes_max)))
    left_out = {"size"} if UnreadableMessage in map(type, alone) or parts > 1 or bytes_max == _SMALL else set()
    made = [block_rows(_DECODER, items, ids, bytes_max) for items in (together, alone)]
    same_rows(*made, left_out, f"{forms}, IDs by {ids.source}")
    batched = sum(len(item) for item in together if isinstance(item, WalkedBatch))
    return Counter({"changed" if share else "whole": len(alone), "together": batched})


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Compare until the deadline; count deliveries by kind, see :mod:`tests.fuzz.__main__`."""
    cases: Counter[str] = Counter()
    while True:
        cases += _case(rng)
        if time.monotonic() >= deadline and {"changed", "whole"} <= cases.keys():
            return cases
