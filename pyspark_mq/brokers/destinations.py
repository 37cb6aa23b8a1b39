"""Destinations as rows name them, and as protocols write them. Pure.

In a row, a plain name is a queue. Other destinations begin with their kind: ``topic://prices``,
``temp-queue://ID:host-1:1:2``. ``queue://`` is needed only before a queue whose own name begins like that. On RabbitMQ
every name is a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote

__all__ = ["KINDS", "Form", "as_row", "as_written", "of_row"]

#: Kinds by the number that JMS clients give the destination of a reply (AMQP JMS Mapping 1.0, 3.2.1,
#: `x-opt-jms-reply-to`).
KINDS = ("queue", "topic", "temp-queue", "temp-topic")
#: A kind, and how the protocol's names of that kind begin. The first form of a kind is written. Names with a form of
#: kind `address` are neither queues nor topics, and stay as they are.
Form = tuple[str, str]

_MARK = "://"
#: Prefix of RabbitMQ's address format 2, in which names are percent-encoded.
_ENCODED = "/queues/"


def of_row(text: str) -> tuple[str, str]:
    """Return kind and name of a destination in a row."""
    kind, mark, name = text.partition(_MARK)
    return (kind, name) if mark and name and kind in KINDS else ("queue", text)


def as_row(text: str, forms: Sequence[Form], number: int | None = None) -> str:
    """Return the destination that a broker has written, as rows name it.

    Args:
        forms: the protocol's forms.
        number: place of the kind in :data:`KINDS`, if the message states it apart from the name.
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
    """Return a destination in a row as the protocol writes it. A name in the protocol's own form stays as it is."""
    if any(prefix.startswith("/") and text.startswith(prefix) for _, prefix in forms):
        return text
    kind, name = ("queue", text) if _has_queues_only(forms) else of_row(text)
    prefix = next((prefix for of, prefix in forms if of == kind), "")
    return prefix + (quote(name, safe="") if prefix == _ENCODED else name)


def _has_queues_only(forms: Sequence[Form]) -> bool:
    return bool(forms) and all(kind in {"queue", "address"} for kind, _ in forms)
