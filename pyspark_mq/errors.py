"""Every error that a user of pyspark-mq can meet, by who has to act.

Spark shows the text of these as the query's exception, so each text names the option or queue,
the value, and what to do. None of them ever contains a password (URLs are shown through
:func:`pyspark_mq.sources.url.BrokerUrl.__str__`, which leaves it out).

Whatever is raised, the messages of the query that were not acknowledged stay with the broker,
which hands them out again: an error here never loses a message.

Rules are cited by their number in docs/how-it-works.md#the-rules.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BrokerError",
    "BrokerUnavailableError",
    "CheckpointError",
    "ConfigurationError",
    "DataLossError",
    "DestinationError",
    "InternalError",
    "MessageError",
    "MissingExtraError",
    "MissingMessageIdError",
    "MqError",
    "OptionError",
    "RefusedError",
    "SchemaError",
]


class MqError(Exception):
    """Root of all errors this package raises on purpose."""


class ConfigurationError(MqError):
    """The job is configured wrongly. Raised before anything is received."""


class OptionError(ConfigurationError):
    """An option is unknown, missing, or has a value that cannot be used.

    Attributes:
        option: name of the option as documented.
    """

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        self._problem = problem
        super().__init__(f"option '{option}': {problem}")

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        return OptionError, (self.option, self._problem)


class SchemaError(ConfigurationError):
    """The schema names a column or a type that the source does not have."""


class MissingExtraError(ConfigurationError, ImportError):
    """A library that only some users need is not installed; the text has the pip command."""


class CheckpointError(MqError):
    """The offset in the checkpoint cannot be used: broken, foreign, or of a newer version.

    Nothing was received yet, so nothing changes at the broker.
    """


class BrokerError(MqError):
    """The broker, or the way to it, must be fixed."""


class BrokerUnavailableError(BrokerError):
    """No broker of the `url` list answered within `connectTimeout` or `reconnectTimeout`."""


class RefusedError(BrokerError):
    """The broker answered and refused: credentials, permission, virtual host, TLS."""


class DestinationError(BrokerError):
    """The queue or topic does not exist, was deleted, or is used exclusively by another."""


class MessageError(MqError):
    """A message cannot be taken in. It stays unacknowledged in its queue."""


class MissingMessageIdError(MessageError):
    """A message has no ID under `messageIdFrom` and `onMissingMessageId` is `fail`."""


class DataLossError(MqError):
    """Messages planned before a restart did not come back within `replayTimeout` (rule 9).

    Attributes:
        queue: the queue they were read from.
        epoch: number of the epoch that planned them.
        missing: the IDs that did not come back, in planned order.
    """

    def __init__(self, queue: str, epoch: int, missing: Sequence[str], text: str) -> None:
        self.queue = queue
        self.epoch = epoch
        self.missing = tuple(missing)
        super().__init__(text)

    def __reduce__(self) -> tuple[type[DataLossError], tuple[str, int, Sequence[str], str]]:
        return DataLossError, (self.queue, self.epoch, self.missing, str(self))


class InternalError(MqError):
    """A state that should be impossible: a bug in this package, please report it."""
