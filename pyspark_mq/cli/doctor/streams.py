"""Examines RabbitMQ streams: the broker's nodes, the addresses that they advertise, and the messages of the streams.

The command changes nothing on the broker, because reading a stream does not remove messages.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import pairwise

from pyspark_mq.admin.checks import Finding, Level
from pyspark_mq.cli.doctor.certificates import check_tls
from pyspark_mq.cli.doctor.machine import check_machine, examine_machine
from pyspark_mq.cli.doctor.report import Section
from pyspark_mq.decode.amqp10 import ReadBatch
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.errors import MqError
from pyspark_mq.streams.access import Access, make_access
from pyspark_mq.streams.chunk import Chunk, ChunkError
from pyspark_mq.streams.connection import Member, NoStream, StreamConnection, StreamLost
from pyspark_mq.streams.offsets import StreamPosition
from pyspark_mq.streams.settings import StreamSettings
from pyspark_mq.streams.tail import Copy
from pyspark_mq.streams.topology import located, persistently
from pyspark_mq.wire.url import BrokerUrl, place_of

__all__ = ["examine_streams"]

#: At most this number of partitions of a super stream are examined.
_PARTITIONS_MAX = 20
#: If chunks have fewer messages than this, reading the chunks takes more time than decoding their messages.
_CHUNK_RECORDS_MIN = 10
_CHUNKS = 20


def examine_streams(settings: StreamSettings, maximum: int, patience_s: float) -> Iterator[Section]:
    """Examine the machine, the nodes and the streams of a query, and yield a section with findings for each of them.

    Args:
        settings: the settings of the query.
        maximum: maximum number of messages to look at in each stream; 0 for none.
        patience_s: longest wait for the next chunk.
    """
    yield Section("this machine", check_machine(examine_machine(), "stream", None, syncs=False))
    try:
        access = make_access(settings.endpoint)
    except MqError as failed:
        yield Section(str(settings.endpoint.urls[0]), [Finding("login", Level.PROBLEM, str(failed))])
        return
    answered = 0
    for url in access.urls:
        findings = [*_node(access, url, settings)]
        answered += not any(one.level is Level.PROBLEM for one in findings)
        yield Section(str(url), findings)
    for name in settings.streams if answered else ():
        yield from _stream(access, name, maximum, patience_s)


def _node(access: Access, url: BrokerUrl, settings: StreamSettings) -> Iterator[Finding]:
    for finding in check_tls(url, settings.endpoint):
        yield finding
        if finding.level is Level.PROBLEM:
            return
    try:
        connection = StreamConnection(access, Member(url.host, url.port), url)
    except StreamLost as unavailable:
        level = Level.WARNING if len(access.urls) > 1 else Level.PROBLEM
        advice = "start the broker, correct 'url', or enable the plugin rabbitmq_stream, whose default port is 5552"
        yield Finding("login", level, str(unavailable), advice)
        return
    except MqError as failed:
        yield Finding("login", Level.PROBLEM, str(failed))
        return
    connection.close()
    yield Finding("login", Level.OK, f"user '{access.username}', over the stream protocol")
    yield Finding("broker", Level.OK, f"RabbitMQ {connection.properties['version']}")
    yield _advertised([connection.advertised], access, Member(url.host, url.port))


def _advertised(members: Sequence[Member], access: Access, known: Member | None = None) -> Finding:
    """Check whether this machine reaches the addresses that nodes advertise.

    Args:
        members: the addresses.
        known: an address that is not checked, because this machine has already reached it.
    """
    failed = [text for member in members if member != known and (text := _unreached(member, access.connect_timeout_s))]
    if not failed:
        places = ", ".join(place_of(*member) for member in members)
        return Finding("advertised", Level.OK, f"{places}: reached from this machine; workers must reach them too")
    advice = (
        "set the broker's stream.advertised_host and stream.advertised_port to an address that workers reach; until "
        "then workers use the hosts of 'url', and do not read from members on other hosts"
    )
    return Finding("advertised", Level.WARNING, "; ".join(failed), advice)


def _unreached(member: Member, timeout_s: float) -> str:
    try:
        socket.create_connection(member, timeout_s).close()
    except OSError as failed:
        return f"the broker advertises {place_of(*member)}, which cannot be reached from here: {failed}"
    return ""


def _stream(access: Access, name: str, maximum: int, patience_s: float) -> Iterator[Section]:
    try:
        found = persistently(access, (), lambda one: located(one, name), limit_s=access.connect_timeout_s)
    except (MqError, NoStream) as failed:
        yield Section(f"stream '{name}'", [_unread(failed)])
        return
    for partition, members in [*found.items()][:_PARTITIONS_MAX]:
        yield Section(f"stream '{partition}'", [*_partition(access, partition, members, maximum, patience_s)])
    if len(found) > _PARTITIONS_MAX:
        text = f"{len(found) - _PARTITIONS_MAX} more partition(s) were not examined"
        yield Section(f"stream '{name}'", [Finding("read", Level.UNKNOWN, text, "name them with option 'stream'")])


def _unread(failed: Exception) -> Finding:
    advice = "correct option 'stream', or read a queue with 'queue' and amqp://" if isinstance(failed, NoStream) else ""
    return Finding("read", Level.PROBLEM, str(failed), advice)


def _partition(
    access: Access, name: str, members: Sequence[Member], maximum: int, patience_s: float
) -> Iterator[Finding]:
    yield _advertised(members, access)

    def look(connection: StreamConnection) -> tuple[StreamPosition, Chunk | None, list[Chunk]]:
        copy = Copy(connection, name, patient=True)
        end = copy.end
        if end.last is None:
            return end, None, []
        first = copy.chunk(0)
        begin = max(first.first, end.next - maximum)
        return end, first, [*_last(connection, name, begin, end.next, patience_s)] if maximum else []

    try:
        end, first, chunks = persistently(access, members, look, limit_s=access.connect_timeout_s)
    except (MqError, NoStream) as failed:
        yield _unread(failed)
        return
    if first is None:
        yield Finding("read", Level.OK, "the stream is empty")
        return
    since = datetime.fromtimestamp(first.timestamp_ms / 1000, timezone.utc)
    text = f"it has offsets {first.first:,} to {end.next - 1:,}, the first from {since:%Y-%m-%d %H:%M} UTC"
    yield Finding(
        "read", Level.OK, f"{text}: a query loses messages that retention removes before the query has read them"
    )
    if not maximum:
        yield Finding("chunks", Level.UNKNOWN, "no message was examined", "use --messages above 0")
        return
    yield from _contents([chunk for chunk in chunks if chunk.user])


def _last(connection: StreamConnection, name: str, begin: int, end: int, patience_s: float) -> Iterator[Chunk]:
    with connection.subscribed(name, begin) as subscription, suppress(TimeoutError):
        for _ in range(_CHUNKS):
            chunk = subscription.next(patience_s)
            yield chunk
            if chunk.end >= end:
                return
            subscription.want(1)


def _contents(chunks: Sequence[Chunk]) -> Iterator[Finding]:
    count = sum(chunk.records for chunk in chunks)
    if not count:
        yield Finding(
            "chunks", Level.UNKNOWN, "none of the last offsets belongs to a message", "use --messages above 20"
        )
        return
    a_chunk = count / len(chunks)
    text = f"{a_chunk:,.1f} message(s) a chunk, among the last {count:,}"
    if a_chunk < _CHUNK_RECORDS_MIN:
        advice = "have producers send batches, or sub-entries: chunks under ten messages cost more CPU than messages"
        yield Finding("chunks", Level.WARNING, text, advice)
    else:
        yield Finding("chunks", Level.OK, text)
    try:
        messages = [message for chunk in chunks for message in _cut(chunk)]
    except ChunkError as broken:
        yield Finding("messages", Level.PROBLEM, f"a chunk cannot be read: {broken}", "start after that chunk")
        return
    reader = SectionReader(counts_acquirers=False)
    bad = list(ReadBatch([reader.read(*one) for one in enumerate(messages)]).unreadable.values())
    if bad:
        advice = "set 'onUnreadableMessage' to 'row' to get their bytes as rows, or have producers write AMQP 1.0"
        yield Finding(
            "messages", Level.PROBLEM, f"{len(bad):,} of {count:,} messages are not AMQP 1.0: {bad[0].error}", advice
        )
    else:
        yield Finding("messages", Level.OK, f"{count:,} messages were decoded")


def _cut(chunk: Chunk) -> list[bytes]:
    entries = (entry.unpacked() for entry in chunk.check())
    return [plain[begin : end - 4] for plain, begins in entries for begin, end in pairwise(begins)]
