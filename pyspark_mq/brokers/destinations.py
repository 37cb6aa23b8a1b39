"""Converts the names of destinations between columns of a row (`replyTo`, `queue`) and the forms of each protocol.

In a row, a plain name means a queue. Other destinations begin with their kind: ``topic://prices``,
``temp-queue://ID:host-1:1:2``. The prefix ``queue://`` is needed only for a queue whose own name begins like one of
these prefixes. On RabbitMQ every name means a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote

__all__ = ["KINDS", "Form", "as_row", "as_written", "of_row"]

#: Kinds of destinations. Their indexes are the numbers by which JMS clients state the kind of the destination for a
#: reply over AMQP 1.0 (AMQP JMS Mapping 1.0, 3.2.1, `x-opt-jms-reply-to`).
KINDS = ("queue", "topic", "temp-queue", "temp-topic")
#: A kind of destination, and the prefix that names of this kind have in the protocol. If a kind has several forms, this
#: package writes the first and reads all of them. The kind `address` stands for names that mean neither a queue nor a
#: topic; these names are not converted.
Form = tuple[str, str]

_MARK = "://"
#: Prefix of RabbitMQ's address format 2, in which names are percent-encoded.
_ENCODED = "/queues/"


def of_row(text: str) -> tuple[str, str]:
    """Split a destination, as a row names it, into its kind and its name."""
    kind, mark, name = text.partition(_MARK)
    return (kind, name) if mark and name and kind in KINDS else ("queue", text)


def as_row(text: str, forms: Sequence[Form], number: int | None = None) -> str:
    """Convert a destination from the form that a broker has written into the form in which rows name it.

    Args:
        text: the destination as the broker has written it.
        forms: the protocol's forms.
        number: index of the kind in :data:`KINDS`; None if the message does not state the kind apart from the name.
    """
    kind, name = KINDS[number or 0], text
    for of, prefix in forms:
        if text.startswith(prefix):
            if of == "address":
                return text
            kind, name = of, unquote(text[len(prefix) :]) if prefix == _ENCODED else text[len(prefix) :]
            break
    if kind == "queue":
        plain = of_row(name) == ("queue", name) or _has_queues_only(forms)
        return name if plain else f"queue{_MARK}{name}"
    return f"{kind}{_MARK}{name}"


def as_written(text: str, forms: Sequence[Form]) -> str:
    """Convert a destination from the form in which a row names it into the form that the protocol writes.

    A name that already has the protocol's form is returned unchanged.
    """
    if any(prefix.startswith("/") and text.startswith(prefix) for _, prefix in forms):
        return text
    kind, name = ("queue", text) if _has_queues_only(forms) else of_row(text)
    prefix = next((prefix for of, prefix in forms if of == kind), "")
    return prefix + (quote(name, safe="") if prefix == _ENCODED else name)


def _has_queues_only(forms: Sequence[Form]) -> bool:
    return bool(forms) and all(kind in {"queue", "address"} for kind, _ in forms)
