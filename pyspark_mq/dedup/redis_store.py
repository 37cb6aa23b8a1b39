"""The store of committed IDs in Redis (option `dedupStore`). Queries can share it, and it outlives a checkpoint.

Each queue or topic has a sorted set. Its members are the keys of committed messages. The score of a member is the time
at which it was last added. The set keeps the newest `window` members. The keys of an epoch are processed in chunks: a
look-up takes one round trip for each chunk, and a write takes two. A member consists of a type byte and the key, so
that a key that is text never equals a key that is a digest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from pyspark_mq.dedup.identity import Key
from pyspark_mq.dedup.store import SeenStore
from pyspark_mq.errors import BrokerUnavailableError, MissingExtraError, OptionError

try:
    import redis
    from redis.backoff import ExponentialBackoff
    from redis.retry import Retry
except ModuleNotFoundError as missing:
    text = f"dedupStore=redis://… needs the Redis client; run: {sys.executable} -m pip install 'pyspark-mq[redis]'"
    raise MissingExtraError(text) from missing

__all__ = ["RedisStore"]

T = TypeVar("T")

_TIMEOUT_S = 5.0
_RETRIES = 3
#: Maximum number of members in one command. With IDs of the usual length, a request then has at most a few hundred
#: kilobytes.
_CHUNK = 10_000


class RedisStore(SeenStore):
    """A store of committed IDs in a sorted set in Redis, which several queries may share.

    Args:
        url: ``redis://user:password@host:port/db`` or ``rediss://…``.
        source: identifies the queue or topic. Stores with the same `source` share one set.
        window: number of members that are kept (option `dedupWindow`), at least one.
        hide: function that takes an error text of the server, and returns the text without the password.
        secret: function that returns the password; called for each connection. None if the login is in the URL.

    Raises:
        BrokerUnavailableError: from any method, if Redis does not answer. No message is lost, because unacknowledged
            messages stay in the queue.
    """

    def __init__(
        self,
        url: str,
        source: str,
        window: int,
        hide: Callable[[str], str] = str,
        secret: Callable[[], str] | None = None,
    ) -> None:
        login = {}
        if secret is not None:
            url, user = _without_user(url)
            login["credential_provider"] = _Login(user, secret)
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                **login,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(ExponentialBackoff(cap=2.0, base=0.1), _RETRIES),
            )
        except ValueError:
            raise OptionError("dedupStore", "is not a Redis URL; use redis://host:port/db") from None
        self._hide = hide
        self._name = f"pyspark-mq:seen:{source}"
        self._window = max(1, window)

    def known(self, keys: Iterable[Key]) -> set[Key]:
        found: set[Key] = set()
        for some in _chunks(keys):
            scores = self._call(partial(self._client.zmscore, self._name, list(map(_member, some))))
            found.update(key for key, score in zip(some, scores, strict=True) if score is not None)
        return found

    def remember(self, keys: Iterable[Key]) -> None:
        for some in _chunks(keys):
            self._call(partial(self._add, some))

    def _add(self, keys: Sequence[Key]) -> None:
        seconds, microseconds = self._client.time()
        now = seconds + microseconds / 1e6
        with self._client.pipeline(transaction=True) as commands:
            commands.zadd(self._name, dict.fromkeys(map(_member, keys), now))
            commands.zremrangebyrank(self._name, 0, -self._window - 1)
            commands.execute()

    def _call(self, command: Callable[[], T]) -> T:
        try:
            return command()
        except redis.RedisError as error:
            # The errors of the client library never contain the password. But if a server does not know the commands
            # HELLO or AUTH (because they were renamed, or it is older than 6, or a proxy), its error quotes the
            # arguments of these commands.
            reason = self._hide(str(error).partition(", with args")[0])
            raise BrokerUnavailableError(
                f"option 'dedupStore': Redis failed: {type(error).__name__}: {reason}. No message is lost. "
                "Restart the query when Redis is available again, or set 'dedupStore' to 'checkpoint'"
            ) from None

    def close(self) -> None:
        self._client.close()


class _Login(redis.CredentialProvider):
    """Provides the login for each connection. The password is read each time, so it may change while the query runs."""

    def __init__(self, user: str | None, secret: Callable[[], str]) -> None:
        self._user, self._secret = user, secret

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return (self._secret(),) if self._user is None else (self._user, self._secret())


def _without_user(url: str) -> tuple[str, str | None]:
    """Return the URL without user and password, and the user; None if the URL names no user."""
    parts = urlsplit(url)
    user = unquote(parts.username) if parts.username else None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), user


def _member(key: Key) -> bytes:
    return b"d" + key if isinstance(key, bytes) else b"t" + key.encode("utf-8", "surrogatepass")


def _chunks(keys: Iterable[Key]) -> list[list[Key]]:
    iterator = iter(keys)
    return list(iter(lambda: list(islice(iterator, _CHUNK)), []))
