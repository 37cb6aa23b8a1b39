"""Producers of a chaos test, one for each partition, in a process that may be killed.

The message with number n has the publishing ID n + 1, and goes to the leader under the name of its producer. Whoever
comes later sends again from the last that was confirmed, and the broker drops what it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections import deque
from pathlib import Path

from rstream import schema

from testbed.chaos.streams.messages import encoded
from testbed.publishers.streams import Place, leader_client

_NAME = "chaos"
#: Unconfirmed messages of a producer.
_WINDOW = 5_000
_CONFIRM_TIMEOUT_S = 15.0
_RETRY_S, _REPORT_S = 0.5, 0.2


class _Producer:
    """The producer of one partition.

    Attributes:
        confirmed: messages from the first on that the broker has confirmed.
    """

    def __init__(self, places: list[Place], stream: str, messages: int, rate: float, confirmed: int) -> None:
        self._places, self._stream, self._messages, self._rate = places, stream, messages, rate
        self.confirmed = confirmed
        self._open: set[int] = set()
        self._order: deque[int] = deque()
        self._confirmed_s = 0.0
        self._refused = ""

    async def run(self) -> None:
        """Publish all, over as many connections as it takes."""
        while self.confirmed < self._messages:
            try:
                await self._session()
            except Exception as failed:  # noqa: BLE001 - of `rstream`, which has many
                print(f"{self._stream} at {self.confirmed}: {failed!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(_RETRY_S)

    async def _session(self) -> None:
        async with leader_client(self._places, self._stream) as client:
            self._open.clear()
            self._order.clear()
            self._refused = ""
            client.add_handler(schema.PublishConfirm, self._note, name="confirms")
            client.add_handler(schema.PublishError, self._note_error, name="errors")
            await client.declare_publisher(self._stream, _NAME, 1)
            batch = max(10, min(500, int(self._rate / 5)))
            begun, first, at = time.monotonic(), self.confirmed, self.confirmed
            self._confirmed_s = time.monotonic()
            while self.confirmed < self._messages:
                if self._refused or not client.is_connection_alive():
                    raise ConnectionError(self._refused or "the connection ended")
                if self._open and time.monotonic() - self._confirmed_s > _CONFIRM_TIMEOUT_S:
                    raise TimeoutError("nothing is confirmed")
                early_s = begun + (at - first) / self._rate - time.monotonic()
                if at == self._messages or len(self._open) >= _WINDOW or early_s > 0:
                    await asyncio.sleep(0.02)
                    continue
                until = min(at + batch, self._messages)
                numbers = range(at, until)
                self._open.update(numbers)
                self._order.extend(numbers)
                frame = schema.Publish(1, [schema.Message(number + 1, None, encoded(number)) for number in numbers])
                await client.send_publish_frame(frame)
                at = until
                await asyncio.sleep(0)

    def _note(self, confirm: schema.PublishConfirm) -> None:
        self._confirmed_s = time.monotonic()
        for publishing_id in confirm.publishing_ids:
            self._open.discard(publishing_id - 1)
        while self._order and self._order[0] not in self._open:
            self.confirmed = self._order.popleft() + 1

    def _note_error(self, refused: schema.PublishError) -> None:
        self._refused = str(refused.errors[0])


async def _produce(arguments: argparse.Namespace) -> None:
    places = [(host, int(port)) for host, _, port in (place.partition(":") for place in arguments.place)]
    known = json.loads(arguments.progress.read_text()) if arguments.progress.exists() else {}
    share = arguments.rate / len(arguments.stream)
    producers = {
        stream: _Producer(places, stream, arguments.messages, share, known.get(stream, 0))
        for stream in arguments.stream
    }

    def report() -> None:
        new = arguments.progress.with_suffix(".new")
        new.write_text(json.dumps({stream: producer.confirmed for stream, producer in producers.items()}))
        new.replace(arguments.progress)

    running = asyncio.gather(*(producer.run() for producer in producers.values()))
    while not running.done():
        report()
        await asyncio.wait([running], timeout=_REPORT_S)
    await running
    report()


def main() -> int:
    """Publish what is missing; 0 when all is confirmed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", action="append", required=True, help="host:port of a node")
    parser.add_argument("--stream", action="append", required=True, help="a partition")
    parser.add_argument("--messages", type=int, required=True, help="of each partition")
    parser.add_argument("--rate", type=float, required=True, help="messages a second over all")
    parser.add_argument("--progress", type=Path, required=True, help="file with what was confirmed")
    logging.disable(logging.CRITICAL)  # `rstream` logs the traceback of each end
    asyncio.run(_produce(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
