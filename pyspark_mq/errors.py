"""Every error that a user of pyspark-mq can see, grouped by what has to be fixed.

Spark shows an error's text as the query's exception, so each text names the option or queue, the value, and what to do.
No text ever contains a password (URLs are shown through ``pyspark_mq.sources.url.BrokerUrl``, which leaves passwords
out).

Each text is one printable line (``shown``), whatever a broker or a producer has put into it.

Whichever error is raised, the query's unacknowledged messages stay with the broker, which redelivers them: an error
here never loses a message.

Each text begins with the short name of its class in brackets, such as ``[mq:data-loss]``. Under this name
docs/errors.md says what the error means and what to do. Spark wraps errors in other errors, and drops class names in
places, but the short name survives: search logs for it.

Rules are cited by their number in docs/how-it-works.md#the-rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

__all__ = [
    "BrokerError", "BrokerUnavailableError", "CheckpointError", "ConfigurationError", "DataLossError",
    "DestinationError", "InternalError", "MessageError", "MissingExtraError", "MissingMessageIdError", "MqError",
    "OptionError", "RefusedError", "RowError", "SchemaError", "WriteError",
]  # fmt: skip


#: Advice in errors, as the last way out of an unusable checkpoint. A file sink needs a new folder, because Spark's file
#: sink skips batch numbers that are already in the folder.
START_ANEW = "start with a new checkpointLocation, and a new output folder for a file sink"


def shown(text: object) -> str:
    """Return a string from elsewhere as one printable line that is safe for a terminal, a log or an error.

    IDs come from producers; queue names and reasons come from brokers. Unescaped, such strings could move a cursor, add
    lines to a log, or reverse the writing direction. This function escapes every character that is not printable
    (``str.isprintable``), as ``repr`` does. No other code escapes such characters.
    """
    plain = str(text)
    return plain if plain.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in plain)


def hide_in(error: BaseException, hide: Callable[[str], str]) -> None:
    """Remove secrets from an error and from the error's causes, because Python prints the causes, too.

    Args:
        hide: returns a text without the secrets.
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
    """Root of all errors this package raises on purpose.

    Attributes:
        short_name: name of the class in its texts, which begin with ``[mq:<short name>]``. docs/errors.md has a section
            for each short name.
    """

    short_name: ClassVar[str] = "error"

    @property
    def text(self) -> str:
        """The text without the short name, for errors that quote it."""
        return shown(super().__str__())

    def __str__(self) -> str:
        """The short name in brackets, followed by the text."""
        return f"[mq:{self.short_name}] {self.text}"


class ConfigurationError(MqError):
    """The job is misconfigured. Raised before anything is received."""

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
    """The schema names a column or type that the source, or a message, does not have."""

    short_name = "schema"


class MissingExtraError(ConfigurationError, ImportError):
    """An optional library is not installed; the text has the pip command."""

    short_name = "missing-extra"


class CheckpointError(MqError):
    """The offset in the checkpoint cannot be used, because it is broken, foreign, or from a newer version.

    Nothing has been received yet, so nothing changes on the broker.
    """

    short_name = "checkpoint"


class BrokerError(MqError):
    """The broker, or the connection to it, must be fixed."""

    short_name = "broker"


class BrokerUnavailableError(BrokerError):
    """No broker of the `url` list answered within `connectTimeout` or `reconnectTimeout`."""

    short_name = "broker-unavailable"


class RefusedError(BrokerError):
    """The broker answered, but refused the credentials, the permission, the virtual host or TLS."""

    short_name = "refused"


class DestinationError(BrokerError):
    """The queue or topic does not exist, was deleted, or is exclusive to another consumer."""

    short_name = "destination"


class WriteError(BrokerError):
    """The broker found a message unroutable or too large, rejected it, or did not confirm it within `sendTimeout`.

    Earlier messages may be in the queue. A retried write sends these messages with the same IDs.
    """

    short_name = "write"


class RowError(MqError):
    """A row cannot be written as a message. This attempt published nothing from the row's Arrow batch."""

    short_name = "row"


class MessageError(MqError):
    """A message cannot be received. The message stays unacknowledged in its queue."""

    short_name = "message"


class MissingMessageIdError(MessageError):
    """A message has no ID under `messageIdFrom` and `onMissingMessageId` is `fail`."""

    short_name = "missing-message-id"


class DataLossError(MqError):
    """Messages planned before a restart were not redelivered in `replayTimeout` (rule 9), or a stream lost messages.

    Attributes:
        queue: the queue or stream from which the messages were read.
        epoch: number of the epoch for which the messages were planned; 0 for a stream.
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
    """A state that should be impossible: a bug in this package, please report it."""

    short_name = "internal"


def unread_epoch(destination: str, epoch: str) -> ConfigurationError:
    """Return the error for an epoch that Spark has ended although it did not ask for the epoch's messages."""
    return ConfigurationError(
        f"{destination}: Spark has ended {epoch} without asking for its messages, so none of them was emitted. Either "
        "a file sink skipped the batch, because its folder already has one of this number: use a new folder for a new "
        "checkpoint. Or the plan of the query does not need the source, for example because of limit(0), a condition "
        "that is always false, or a join of which no column is used: change the query. A restart counts the messages "
        "of the epoch as read. To look at messages without consuming them, use 'pyspark-mq peek'"
    )
