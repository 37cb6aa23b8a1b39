"""Clients of the stream protocol for publishers and checks, by `rstream`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

from rstream import Producer
from rstream.client import Client

__all__ = ["Place", "leader_client", "make_super_stream", "with_client"]

#: Host and port of a node.
Place: TypeAlias = tuple[str, int]

_FRAME_BYTES = 1 << 20
_HEARTBEAT_S = 5
_TIMEOUT_S = 10.0


def with_client(port: int, use: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return what a function does with a client of `rstream`."""

    async def run() -> Any:
        async with Producer("127.0.0.1", port, username="guest", password="guest") as producer:
            return await use(await producer.default_client)

    return asyncio.run(run())


def make_super_stream(port: int, name: str, partitions: int) -> list[str]:
    """Create a super stream; the names of its partitions."""
    names = [f"{name}-{number}" for number in range(partitions)]
    keys = [str(number) for number in range(partitions)]
    with_client(port, lambda client: client.create_super_stream(name, names, keys, {}))
    return names


@asynccontextmanager
async def leader_client(places: Sequence[Place], stream: str) -> AsyncIterator[Client]:
    """Connect to the leader of a stream, which the first node that answers names.

    Raises:
        ConnectionError: none does.
    """
    reasons = []
    for place in places:
        try:
            async with _client(place) as locator:
                leader, _ = await asyncio.wait_for(locator.query_leader_and_replicas(stream), _TIMEOUT_S)
        except Exception as failed:  # noqa: BLE001 - of `rstream`, which has many
            reasons.append(repr(failed))
            continue
        async with _client((leader.host, leader.port)) as client:
            yield client
        return
    raise ConnectionError(f"no node tells where stream '{stream}' is: {'; '.join(reasons)}")


@asynccontextmanager
async def _client(place: Place) -> AsyncIterator[Client]:
    client = Client(*place, frame_max=_FRAME_BYTES, heartbeat=_HEARTBEAT_S)
    try:
        await asyncio.wait_for(client.start(), _TIMEOUT_S)
        await asyncio.wait_for(client.authenticate("/", "guest", "guest"), _TIMEOUT_S)
        yield client
    finally:
        with suppress(Exception):  # it may have lost what it says goodbye to
            await asyncio.wait_for(client.close(), _TIMEOUT_S / 5)
