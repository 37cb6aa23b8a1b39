"""The columns of a write, and the conversion of rows into messages.

The columns have the same names as those of the source, so rows that were read from a queue can be written to another.
Columns that describe a delivery, and properties that brokers add, are left out of the messages. Names and types of the
columns are checked before the first message is published.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pyspark_mq.brokers.base import PASSING_HEADERS, PASSING_PREFIXES
from pyspark_mq.brokers.destinations import of_row
from pyspark_mq.decode.columns import COLUMNS as ALL
from pyspark_mq.decode.columns import WrittenColumn
from pyspark_mq.errors import RowError, SchemaError
from pyspark_mq.sink.ids import Identity, Seen, field, pairs
from pyspark_mq.sink.settings import COPY_ID, MQ_ID, NO_MESSAGE, Destination, Message, Remarks, SinkSettings

__all__ = ["COLUMNS", "LEFT_OUT", "WILDCARD", "ColumnPlan", "RowReader", "has_wildcard"]

WILDCARD = "which has a wildcard ('*' or '#' as a word), and Artemis accepts no message for such an address"

#: Prefixes of RabbitMQ's addresses over AMQP 1.0 and STOMP. Such an address could mean an exchange instead of a queue.
_ADDRESSES = ("/exchanges/", "/exchange/", "/queue/", "/amq/queue/", "/topic/")


#: The columns of a write.
COLUMNS: Mapping[str, WrittenColumn] = {
    name: column.written for name, column in ALL.items() if column.written is not None
}
#: Codes of further fields in a row's digest: a body of type binary, the destination, and an ID that the row has.
_BYTES_BODY, _DESTINATION, _GIVEN = 2, 20, 21
#: Columns of the source that a write accepts but ignores: they describe a delivery, or a position in a stream.
LEFT_OUT = ALL.keys() - COLUMNS.keys()
_ROUTING = frozenset({"exchange", "routingKey"})
#: Name of a property -> the column that has the same meaning.
_IN_COLUMNS = {"JMSXGroupID": "groupId", "JMSXGroupSeq": "groupSequence", "JMSXAppID": "appId"}
#: Names, and prefixes of names, of properties that brokers or this package add to messages.
_ADDED = frozenset({*PASSING_HEADERS, MQ_ID, "x-death", "x-stream-offset", "JMSXUserID", "JMSXDeliveryCount"})
_ADDED_PREFIXES = (*PASSING_PREFIXES, "_AMQ_", "x-opt-", "JMS_AMQP_", "__HDR_", "__AMQ_", "NATIVE_MESSAGE_ID")
_INT32_MAX, _INT64_MAX = (1 << 31) - 1, (1 << 63) - 1


class ColumnPlan:
    """The checked columns of one write, and the destinations of its rows.

    Args:
        fields: name of each column, and Spark's name of its type.
        settings: the settings of the write.

    Raises:
        SchemaError: a column is unknown or has a wrong type, there is no column `body`, or neither an option nor a
            column names a destination.
    """

    def __init__(self, fields: Sequence[tuple[str, str]], settings: SinkSettings) -> None:
        names = [name for name, _ in fields]
        for name, kind in fields:
            if names.count(name) > 1:
                raise SchemaError(f"the rows have column '{name}' twice; select it once")
            _check(name, kind)
        if "body" not in names:
            raise SchemaError(f"the rows have no column 'body' (string or binary); they have {', '.join(names)}")
        routed = settings.endpoint.broker.virtual_hosts
        self._destination = settings.destination
        self.separators = settings.endpoint.broker.special_characters
        self._key = settings.routing_key
        self._queues_only, self.marks_copies = routed, settings.endpoint.broker.drops_copies
        self.drops, self.allowed = settings.drops, settings.broker_properties
        #: Properties that are left out of messages, because the broker would act on them.
        self.steering = settings.endpoint.broker.steering - settings.broker_properties
        where = ("queue", "exchange") if routed else ("queue",)
        #: Name of the column that has each row's destination; empty if an option names the destination of all rows.
        self._where = "" if self._destination is not None else next((name for name in where if name in names), "?")
        if self._where == "?":
            ways = "'queue' or 'exchange'" if routed else "'queue' or 'topic'"
            raise SchemaError(
                f"neither an option nor a column says where rows go: set option {ways}, or add column 'queue' (the "
                f"rows have {', '.join(names)})"
            )
        unused = set(LEFT_OUT)
        if self._where != "exchange":
            unused |= _ROUTING - ({"routingKey"} if self._by_key(settings) else set())
        if self._where != "queue":
            unused.add("queue")
        self.names = tuple(name for name in COLUMNS if name in names and name not in unused)

    @staticmethod
    def _by_key(settings: SinkSettings) -> bool:
        """Whether an option names the exchange, but no option names the routing key, so that rows may name it."""
        return settings.exchange is not None and settings.routing_key is None

    def destination(self, row: Mapping[str, Any]) -> Destination:
        """Return the destination of a row. Raise a RowError if the row does not name an allowed destination."""
        if not self._where:
            assert self._destination is not None
            key = row.get("routingKey") if self._destination.kind == "exchange" and self._key is None else None
            return self._destination if key is None else self._destination._replace(key=key)
        name = row.get(self._where)
        if not name:
            shown = "null" if name is None else "empty"
            raise RowError(
                f"column '{self._where}' is {shown} in a row, so the row has no destination: fill the column, or set "
                f"option '{self._where}' for all rows"
            )
        if not self.separators.isdisjoint(name):
            raise RowError(
                f"a row has '{name}' in column 'queue', but broker 'activemq' reads "
                f"{' '.join(sorted(self.separators))} in a name as separators of queues or parameters: rename the queue"
            )
        if self._where == "queue" and self._queues_only:
            if name.startswith(_ADDRESSES):
                raise RowError(
                    f"a row has '{name}' in column 'queue', which is an address of AMQP 1.0 or STOMP, and not the name "
                    "of a queue. If the value was copied from 'replyTo', the sender of the request chose it, and it "
                    "may name an exchange: put the name of a queue into column 'queue', or drop such rows"
                )
            return Destination("queue", name)
        if self._where == "queue":
            kind, own = of_row(name)
            if self.marks_copies and has_wildcard(own):
                raise RowError(f"a row has '{name}' in column 'queue', {WILDCARD}: rename the queue")
            return Destination(kind, own)
        return Destination("exchange", name, (row.get("routingKey") if self._key is None else self._key) or "")


def has_wildcard(name: str) -> bool:
    """Whether a name has a part that Artemis takes for a wildcard (Artemis' manual, "Wildcard Syntax")."""
    return not {"*", "#"}.isdisjoint(name.split("."))


def _check(name: str, kind: str) -> None:
    column = COLUMNS.get(name)
    if column is None:
        if name in LEFT_OUT:
            return
        near = difflib.get_close_matches(name.lower(), {known.lower(): known for known in COLUMNS}, n=1, cutoff=0.5)
        known = {one.lower(): one for one in COLUMNS}
        hint = f"did you mean '{known[near[0]]}'? " if near else ""
        raise SchemaError(
            f"the rows have column '{name}', which is not a column of a write; {hint}Columns are {', '.join(COLUMNS)}. "
            f"Drop or rename '{name}', or put it into 'body' (to_json) or 'properties'"
        )
    if kind not in column.kinds:
        raise SchemaError(
            f"column '{name}' has type {kind}, but must be {' or '.join(column.kinds)}: cast it before the write"
        )


class RowReader:
    """Converts the rows of one task into messages.

    Args:
        plan: the checked columns of the write.
        identity: creates an ID for a row that has no ID.
        reserved_properties: name of a property that a message cannot have over this protocol -> the reason.
        remarks: object to which dropped rows and omitted properties are added, for a warning in the log.
    """

    def __init__(
        self,
        plan: ColumnPlan,
        identity: Identity,
        reserved_properties: Mapping[str, str],
        remarks: Remarks | None = None,
    ) -> None:
        self._plan, self._identity, self._reserved = plan, identity, reserved_properties
        self._remarks = Remarks() if remarks is None else remarks
        self._rows, self._ids = Seen(), Seen()

    def messages(self, batch: pa.RecordBatch) -> list[Message]:
        """Convert the rows of a batch into messages, in order. Rows that are dropped are left out.

        Raises:
            RowError: a row cannot be converted, and `onUnwritableRow` is `fail`; or too many rows have no ID.
        """
        columns = _columns(batch, self._plan.names)
        is_text = _is_text(batch.schema.field("body").type)
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        drafts = [draft for row in rows if (draft := self._draft(row, is_text=is_text)) is not None]
        digests = [self._identity.digest(fields) for _, fields in drafts]
        given = [place for place, (message, _) in enumerate(drafts) if message.id]
        names = self._check_given([drafts[place][0] for place in given], [digests[place] for place in given])
        nameless = [place for place, (message, _) in enumerate(drafts) if not message.id]
        messages = [message for message, _ in drafts]
        numbers = self._rows.number([digests[place] for place in nameless]) if nameless else []
        for place, number in zip(nameless, numbers, strict=True):
            messages[place] = messages[place]._replace(id=self._identity.text(digests[place], number))
        # Artemis drops a message whose copy ID it has seen. The copy ID depends on the write, so a row with an ID of
        # its own (for example a dead letter that is written to its queue again) does not count as a copy of the first
        # message.
        for place, name in zip(given, names, strict=True) if self._plan.marks_copies else ():
            messages[place] = messages[place]._replace(copy_id=self._identity.text(name, 0))
        return messages

    def _check_given(self, messages: Sequence[Message], digests: Sequence[bytes]) -> list[bytes]:
        """Check that rows with the same ID and destination are equal.

        Return a digest for each row, which depends on the row's ID, its destination and the write.

        Args:
            messages: the messages whose rows have IDs of their own.
            digests: digests of these rows.
        """
        if not messages:
            return []
        names = [
            self._identity.digest(field(_GIVEN, one.id.encode()) + _destination_field(one.destination))
            for one in messages
        ]
        wrong = self._ids.differing(names, digests)
        if wrong is not None:
            raise RowError(
                f"two rows of one task have the messageId '{messages[wrong].id}' but different contents: a reader that "
                "drops duplicates would lose one of them. Give each row its own ID, or leave out column 'messageId' to "
                "get stable IDs"
            )
        return names

    def _draft(self, row: dict[str, Any], *, is_text: bool) -> tuple[Message, bytes] | None:
        """Convert a row into a message, which has an empty ID if the row has no ID.

        Returns:
            the message, and the encoded fields from which the row's ID is made; None if the row is dropped.
        """
        try:
            return self._message(row, is_text=is_text)
        except RowError as unwritable:
            if not self._plan.drops:
                raise
            self._remarks.drop(NO_MESSAGE, unwritable.text)
        return None

    def _message(self, row: dict[str, Any], *, is_text: bool) -> tuple[Message, bytes]:
        if row["body"] is None:
            raise RowError(
                "column 'body' is null in a row, but a message needs a body: filter such rows, or use coalesce"
            )
        reply_to = row.get("replyTo") or None  # ActiveMQ Classic closes the connection if this is empty
        if reply_to is not None and not self._plan.separators.isdisjoint(reply_to):
            raise RowError(
                f"a row has '{reply_to}' in column 'replyTo', but the broker reads "
                f"{' '.join(sorted(self._plan.separators))} in a name as separators: write null, or another name"
            )
        destination = self._plan.destination(row)
        properties = self._properties(row)
        _check_numbers(row)
        persistent = row.get("persistent")
        message = Message(
            destination, row.get("messageId") or "", row["body"], is_text, row.get("correlationId"), reply_to,
            row.get("contentType"), row.get("contentEncoding"), row.get("type"), row.get("priority"),
            row.get("timestamp"), row.get("expiration"), row.get("appId"), row.get("groupId"),
            row.get("groupSequence"), persistent is not False, properties,
        )  # fmt: skip
        return message, _fields(message, persistent)

    def _properties(self, row: dict[str, Any]) -> tuple[tuple[str, str | None], ...]:
        """Return the properties of a row's message.

        A property that means the same as a column is left out. If the row has null in this column, the column gets the
        property's value.
        """
        entries = row.get("properties")
        if not entries:
            return ()
        kept = []
        for name, value in entries:
            column = _IN_COLUMNS.get(name)
            if column is not None:
                if row.get(column) is None and value is not None:
                    row[column] = _sequence(value) if column == "groupSequence" else value
            elif name in self._plan.steering:
                if name != COPY_ID:  # do not warn about this one, which this package's own sink has set
                    self._remarks.properties.add(name)
            elif name not in self._plan.allowed and (name in _ADDED or name.startswith(_ADDED_PREFIXES)):
                continue
            elif not name or name in self._reserved:
                reason = self._reserved.get(name, "which is empty")
                raise RowError(f"column 'properties' has the name '{name}', {reason}; leave it out (map_filter)")
            else:
                kept.append((name, value))
        return tuple(kept)


def _sequence(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else None


def _check_numbers(row: Mapping[str, Any]) -> None:
    for name, most in (("priority", 255), ("groupSequence", _INT64_MAX), ("timestamp", _INT64_MAX)):
        value = row.get(name)
        if value is not None and not 0 <= value <= most:
            raise RowError(
                f"a row has {value} in column '{name}', but only 0 to {most} is allowed (a time: microseconds since "
                "1970)"
            )


@lru_cache(maxsize=1_000)
def _destination_field(destination: Destination) -> bytes:
    return b"".join(field(_DESTINATION, part.encode()) for part in destination)


#: Values of the optional columns in a row that has only a body, as most rows do.
_NOTHING = (None,) * 10


def _fields(message: Message, persistent: bool | None) -> bytes:
    """Encode the fields of a row from which its ID is made, in the order of their codes."""
    texts = (
        message.correlation_id, message.reply_to, message.content_type, message.content_encoding, message.type,
        message.priority, message.timestamp_us, message.app_id, message.group_id, message.group_sequence,
    )  # fmt: skip
    parts = [field(COLUMNS["body"].code if message.is_text else _BYTES_BODY, message.body)]
    if texts != _NOTHING:
        parts += [field(code, str(value).encode()) for code, value in enumerate(texts, 3) if value is not None]
    if persistent is not None:
        parts.append(field(COLUMNS["persistent"].code, b"1" if persistent else b"0"))
    if message.properties:
        parts.append(field(COLUMNS["properties"].code, pairs(message.properties)))
    parts.append(_destination_field(message.destination))
    return b"".join(parts)


# -- Arrow ------------------------------------------------------------------------------------


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _columns(batch: pa.RecordBatch, names: Iterable[str]) -> dict[str, list[Any]]:
    """Return columns of a batch as lists, by name. Times are microseconds since 1970, and the body is bytes."""
    found = {}
    for name in names:
        column = batch.column(name)
        if name == "body":
            # Take the bytes of a string as they are, because Spark does not check that strings are UTF-8.
            column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
        elif name in {"timestamp", "expiration"}:
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        try:
            found[name] = column.to_pylist()
        except UnicodeDecodeError:
            raise RowError(
                f"a row has text that is not UTF-8 in column '{name}': correct it before the write (try_validate_utf8)"
            ) from None
    return found


#: Spark's name of a type -> the Arrow type, for rows that Spark passes one by one.
_ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "bigint": pa.int64(), "smallint": pa.int16(),
    "tinyint": pa.int8(), "boolean": pa.bool_(), "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}  # fmt: skip


def batches_of_rows(
    rows: Iterable[Sequence[Any]], fields: Sequence[tuple[str, str]], convert: Callable[[str, Any], Any], most: int
) -> Iterator[pa.RecordBatch]:
    """Collect rows into Arrow batches. Needed for Spark before 4.1, which passes rows one by one.

    Args:
        fields: name of each column, and Spark's name of its type.
        convert: takes Spark's name of a type and a value, and returns a value that Arrow accepts.
        most: maximum number of rows in a batch.
    """
    chosen = [(place, name, kind) for place, (name, kind) in enumerate(fields) if name in COLUMNS]
    schema = pa.schema([pa.field(name, _ARROW[kind]) for _, name, kind in chosen])

    def batch(some: list[Sequence[Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [
                pa.array([convert(kind, row[place]) for row in some], type=_ARROW[kind])
                for place, _, kind in chosen
            ],
            schema=schema,
        )  # fmt: skip

    kept: list[Sequence[Any]] = []
    for row in rows:
        kept.append(row)
        if len(kept) >= most:
            yield batch(kept)
            kept = []
    if kept:
        yield batch(kept)
