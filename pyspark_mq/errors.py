"""Every error that a user of pyspark-mq can see. Each class tells what has to be fixed: options, broker, a message.

Spark shows an error's text as the query's exception, so each text names the option or queue, the value, and what to do.
No text ever contains a password (URLs are shown through ``pyspark_mq.wire.url.BrokerUrl``, which leaves passwords
out).

Each text is one printable line, even if it quotes a broker or a producer: `shown` escapes other characters.

An error never loses a message. The query's unacknowledged messages stay with the broker, which redelivers them.

Each text begins with the short name of its class in brackets, such as ``[mq:data-loss]``. docs/errors.md has a section
with this name, which says what the error means and what to do. Spark wraps errors in other errors, and sometimes drops
the class name, but keeps the short name: search logs for the short name.

A docstring that says "rule 9" means the rule with this number in docs/design.md#the-rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

__all__ = [
    "BrokerError", "BrokerUnavailableError", "CheckpointError", "ConfigurationError", "DataLossError",
    "DestinationError", "InternalError", "MessageError", "MissingExtraError", "MissingMessageIdError", "MqError",
    "OptionError", "RefusedError", "RowError", "SchemaError", "WriteError",
]  # fmt: skip


#: Advice in errors, for a checkpoint that cannot be used any more. A new checkpoint numbers its batches from 0 again.
#: Spark's file sink skips batch numbers that are already in its folder, so a file sink needs a new folder.
START_ANEW = "start with a new checkpointLocation, and a new output folder for a file sink"


def shown(text: object) -> str:
    """Return a string from a producer or a broker as one printable line, safe for a terminal, a log or an error.

    IDs come from producers; queue names and reasons come from brokers. Unescaped, such strings could move a cursor, add
    lines to a log, or reverse the writing direction. This function escapes every character that is not printable
    (``str.isprintable``), as ``repr`` does. No other function of this package escapes such characters.
    """
    plain = str(text)
    return plain if plain.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in plain)


def hide_in(error: BaseException, hide: Callable[[str], str]) -> None:
    """Remove secrets from an error and from its causes, because Python prints the causes, too.

    Args:
        error: the error, which is changed in place.
        hide: takes a text, and returns it without the secrets.
    """
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one.args = tuple(hide(part) if isinstance(part, str) else part for part in one.args)
        if isinstance(one, OptionError):
            one.problem = hide(one.problem)
        one = one.__cause__ or one.__context__


class MqError(Exception):
    """Base class of all errors that this package raises on purpose.

    Attributes:
        short_name: stands for the class in error texts, which begin with ``[mq:<short name>]``. docs/errors.md has a
            section for each short name.
    """

    short_name: ClassVar[str] = "error"

    @property
    def text(self) -> str:
        """The error's text without the short name, for other errors that quote this text."""
        return shown(super().__str__())

    def __str__(self) -> str:
        """Return the short name in brackets, followed by the error's text."""
        return f"[mq:{self.short_name}] {self.text}"


class ConfigurationError(MqError):
    """The job is misconfigured. Usually raised before the source receives a message."""

    short_name = "configuration"


class OptionError(ConfigurationError):
    """An option is unknown, missing, or has a value that cannot be used.

    Attributes:
        option: the option's documented name.
        problem: what is wrong with the option.
    """

    short_name = "option"

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        self.problem = problem
        super().__init__(f"option '{option}': {problem}")

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        return OptionError, (self.option, self.problem)


class SchemaError(ConfigurationError):
    """A schema names a column that does not exist, or gives a column a type that it does not have.

    The schema is the argument of `.schema(...)` if rows are read, or the schema of the rows that are written.
    """

    short_name = "schema"


class MissingExtraError(ConfigurationError, ImportError):
    """An optional library is not installed. The text contains the pip command that installs it."""

    short_name = "missing-extra"


class CheckpointError(MqError):
    """The checkpoint cannot be used with this query.

    For example, the checkpoint is damaged, belongs to another query or queue, or was written by a newer version. The
    messages of the affected epoch are not acknowledged.
    """

    short_name = "checkpoint"


class BrokerError(MqError):
    """Something must be fixed on the broker, or in the connection to the broker."""

    short_name = "broker"


class BrokerUnavailableError(BrokerError):
    """No broker of the `url` list answered within `connectTimeout` or `reconnectTimeout`."""

    short_name = "broker-unavailable"


class RefusedError(BrokerError):
    """The broker answered, but refused the login, the virtual host or TLS, or the user lacks a permission."""

    short_name = "refused"


class DestinationError(BrokerError):
    """The queue or topic does not exist, was deleted, or belongs exclusively to another consumer."""

    short_name = "destination"


class WriteError(BrokerError):
    """The broker did not accept a message that was written.

    The message could not be routed to a queue, was too large, was rejected, or was not confirmed within `sendTimeout`.
    Other messages of the write may already be in the queue. A retried write sends them again with the same IDs.
    """

    short_name = "write"


class RowError(MqError):
    """A row cannot be written as a message. No row of the same part of an Arrow batch (at most 64 MiB) is published."""

    short_name = "row"


class MessageError(MqError):
    """A message cannot be decoded, settled, or passed to a task. The message stays unacknowledged in its queue."""

    short_name = "message"


class MissingMessageIdError(MessageError):
    """A message lacks the ID that `messageIdFrom` names, and `onMissingMessageId` is `fail`."""

    short_name = "missing-message-id"


class DataLossError(MqError):
    """Messages are missing that the query had planned to emit.

    Either messages of a queue were planned before a restart, and the broker did not redeliver these messages within
    `replayTimeout` (rule 9 of docs/design.md). Or a stream no longer has offsets that the query has not read.

    Attributes:
        queue: the queue or stream from which the messages were read.
        epoch: number of the epoch in which the messages were planned; 0 for a stream.
        missing: the IDs of messages that were not redelivered, in planned order; empty for a stream.
    """

    short_name = "data-loss"

    def __init__(self, queue: str, epoch: int, missing: Sequence[str], text: str) -> None:
        self.queue = queue
        self.epoch = epoch
        self.missing = tuple(missing)
        super().__init__(text)

    def __reduce__(self) -> tuple[type[DataLossError], tuple[str, int, Sequence[str], str]]:
        return DataLossError, (self.queue, self.epoch, self.missing, self.text)


class InternalError(MqError):
    """The package is in a state that should be impossible. This is a bug: please report it."""

    short_name = "internal"


def unread_epoch(destination: str, epoch: str) -> ConfigurationError:
    """Return the error for an epoch that Spark has ended without asking for the epoch's messages.

    Args:
        destination: what the query reads, as errors name it.
        epoch: the epoch as the text names it, for example "an epoch".
    """
    return ConfigurationError(
        f"{destination}: Spark has ended {epoch} without asking for its messages, so none of them was emitted. Either "
        "a file sink skipped the batch, because its folder already has a batch with this number: use a new folder for "
        "a new checkpoint. Or Spark has removed the source from the query's plan, for example because of limit(0), a "
        "condition that is always false, or a join of which no column is used: change the query. A restart counts the "
        "messages of the epoch as read. To look at messages without consuming them, use 'pyspark-mq peek'"
    )
