"""Publishers to streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rstream import AMQPMessage, CompressionType, Producer, RawMessage
from rstream.utils import OnClosedErrorInfo

__all__ = ["publish", "publish_raw"]


def publish(port: int, stream: str, messages: Sequence[AMQPMessage], *, batch: int = 100, packed: str = "") -> None:
    """Publish and wait for the confirmations.

    Args:
        batch: messages in a frame, or in a packed entry.
        packed: kind of compression, of messages put together by the producer.
    """

    async def run() -> None:
        async with Producer(
            "127.0.0.1", port, username="guest", password="guest", on_close_handler=_closed
        ) as producer:
            await producer.create_stream(stream, exists_ok=True)
            for begin in range(0, len(messages), batch):
                part = list(messages[begin : begin + batch])
                if packed:
                    kind = getattr(CompressionType, packed)
                    await producer.send_sub_entry(stream, part, compression_type=kind, publisher_name=None)
                else:
                    await producer.send_batch(stream, part)

    asyncio.run(run())


async def _closed(_: OnClosedErrorInfo) -> None:
    return None


def publish_raw(port: int, stream: str, bodies: Sequence[bytes], *, batch: int = 100) -> None:
    """Publish bytes that may be no message of AMQP 1.0."""

    async def run() -> None:
        async with Producer("127.0.0.1", port, username="guest", password="guest") as producer:
            await producer.create_stream(stream, exists_ok=True)
            for begin in range(0, len(bodies), batch):
                await producer.send_batch(stream, [RawMessage(body) for body in bodies[begin : begin + batch]])

    asyncio.run(run())
