"""What a message costs that arrives alone: from the received bytes to the in-flight table, without a broker.

On many connections with a trickle each round of the worker finds a message or two on each of them. Deliveries of one
queue are converted and entered together; beside it stands what they would cost one by one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks.parts import Part, Say, Table
from pyspark_mq.ack import InFlightTable
from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import FLAGS
from pyspark_mq.dedup import CheckpointOnly, Memory, QueueMemory
from pyspark_mq.sources.connections.block import BlockRows, RowRange, make_block
from pyspark_mq.sources.connections.connections import LiveSession
from pyspark_mq.sources.connections.events import Delivered
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.queues.deliveries import Deliveries
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.schema import SCHEMA, BatchBuilder

__all__ = ["Trickle"]

_ROUNDS = (1, 4, 16, 64)
_BODY = b"x" * 200
_COLUMNS = BatchBuilder(SCHEMA).block_schema


class Trickle(Part):
    """The part `trickle`."""

    name = "trickle"
    help = "CPU for a message that arrives alone, by the connections that a round finds one on."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--messages", type=int, default=6_400, help="of each case, by default %(default)s")
        parser.add_argument(
            "--repeats", type=int, default=5, help="of which the fastest counts, by default %(default)s"
        )

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        found = []
        for count in _ROUNDS:
            say(f"{count} a round")
            alone, together = (
                min(_us_each(convert, count, args.messages) for _ in range(args.repeats))
                for convert in (_one_by_one, _together)
            )
            found.append({"a_round": count, "alone_us": alone, "together_us": together})
        return {"columns": len(_COLUMNS), "messages": args.messages, "rounds": found}

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        rows = [
            [f"{one['a_round']}", f"{one['alone_us']:.0f}", f"{one['together_us']:.0f}",
             f"{one['alone_us'] / one['together_us']:.1f}"]
            for one in results["rounds"]
        ]  # fmt: skip
        note = f"AMQP 0-9-1, {results['columns']} columns, {len(_BODY)}-byte bodies, a message on each connection."
        headings = ("connections with a message", "one by one", "together", "ratio")
        return [Table("CPU for a message that arrives alone, µs", headings, rows, (note,))]


def _raws(count: int) -> list[Any]:
    flags = FLAGS["message_id"].to_bytes(2, "big")
    keys = (f"id-{number}".encode() for number in range(count))
    return [(1 + at, False, flags + bytes([len(key)]) + key, _BODY, b"\x00\x01q") for at, key in enumerate(keys)]


def _one_by_one(raws: Sequence[Any], ids: MessageIds) -> list[Delivered]:
    made = (make_block(Amqp091Batch.of([raw]), ids, _COLUMNS) for raw in raws)
    return [Delivered(1, session, metadata, block.rows) for session, (metadata, block) in enumerate(made, 1)]


def _together(raws: Sequence[Any], ids: MessageIds) -> list[Delivered]:
    metadata, block = make_block(Amqp091Batch.of(raws), ids, _COLUMNS)
    return [
        Delivered(1, at + 1, metadata.part(slice(at, at + 1)), RowRange(block, range(at, at + 1)))
        for at in range(len(raws))
    ]


def _us_each(convert: Callable[[Sequence[Any], MessageIds], list[Delivered]], count: int, messages: int) -> float:
    """Microseconds of a message, if each round has `count` of them, on as many connections."""
    given = {"broker": "rabbitmq", "url": "amqp://localhost/", "queue": "q", "checkpointLocation": "/nowhere"}
    (settings,) = parse_options(given).settings.by_queue()
    ids, memory = MessageIds.of(settings), QueueMemory(Memory(100_000, 2_000_000, b"secret"), "q")
    table: InFlightTable[Any] = InFlightTable(
        grace_s=5.0, memory=memory, size_of=lambda rows: BlockRows.of(rows).size_bytes
    )
    connections: Any = SimpleNamespace(live={})  # nothing is refused
    deliveries = Deliveries(settings, table, connections, CheckpointOnly(), lambda _: None, 5.0)
    for session in range(1, count + 1):
        table.open_session(session)
        connections.live[session] = LiveSession(1, 0.0, messages)
    raws = _raws(messages)
    began_s = time.process_time()
    for at in range(0, messages, count):
        events = convert(raws[at : at + count], ids)
        if convert is _together:
            deliveries.enter_all(events)
        else:
            for event in events:
                deliveries.enter(event, over_limit=False)
    return (time.process_time() - began_s) / messages * 1e6
