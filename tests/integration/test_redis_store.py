"""The shared store against a real Redis server."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_mq.dedup import Key, SeenStore, id_keys
from pyspark_mq.dedup.identity import LONG_ID_BYTES
from pyspark_mq.errors import BrokerUnavailableError, OptionError
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.source import make_store
from testbed.ports import LOOPBACK, free_port, listens
from testbed.process import Command
from testbed.server import LocalServer

try:
    import redis

    from pyspark_mq.dedup import redis_store
except ImportError:
    if "CI" in os.environ:
        raise
    pytest.skip("needs the Redis client", allow_module_level=True)

PASSWORD = "Xq7hushhushZw9"
SOURCE = "queue 'orders' in virtual host '/'"


class RedisServer(LocalServer):
    """A Redis server of one's own, with nothing on disk, that can be killed and started again."""

    title = "Redis"

    def __init__(self, program: str, *arguments: str) -> None:
        super().__init__()
        self.port = self._reserve_port()
        self.url = f"redis://:{PASSWORD}@{LOOPBACK}:{self.port}/0"
        self._arguments = (
            program, "--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.folder), "--save", "",
            "--appendonly", "no", "--requirepass", PASSWORD, *arguments,
        )  # fmt: skip

    def _command(self) -> Command:
        return Command(self._arguments, environment={"PATH": os.defpath, "LC_ALL": "C"})

    def _ready(self) -> bool:
        return listens(self.port)

    def pause(self) -> None:
        """It keeps its connections and says nothing, as behind a network that drops everything."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def store(self, source: str = SOURCE, window: int = 1000) -> SeenStore:
        return redis_store.RedisStore(self.url, source, window)


@pytest.fixture(scope="session")
def program() -> str:
    found = shutil.which("redis-server")
    if found is None:
        missing = "needs the redis-server program"
        pytest.fail(missing) if "CI" in os.environ else pytest.skip(missing)
    return str(found)


@pytest.fixture(scope="module")
def shared(program: str) -> Iterator[RedisServer]:
    with RedisServer(program) as server:
        yield server


@pytest.fixture
def server(shared: RedisServer) -> RedisServer:
    """An empty one."""
    with redis.Redis.from_url(shared.url) as client:
        client.flushall()
    return shared


@pytest.fixture
def own_server(program: str) -> Iterator[RedisServer]:
    """One that the test may kill."""
    with RedisServer(program) as server:
        yield server


def ids(first: int, last: int) -> list[Key]:
    return [f"id-{number}" for number in range(first, last + 1)]


# -- what is known ----------------------------------------------------------------------------


def test_nothing_is_known_at_first(server: RedisServer) -> None:
    assert server.store().known(["a", b"d" * LONG_ID_BYTES]) == set()


def test_what_was_remembered_is_known_and_nothing_else(server: RedisServer) -> None:
    store = server.store()
    store.remember(["a", "b", *id_keys([b"x"])])
    assert store.known(["a", "c", "A", "a ", *id_keys([b"x", b"y"])]) == {"a", *id_keys([b"x"])}


def test_no_ids_at_all_are_none(server: RedisServer) -> None:
    store = server.store()
    store.remember([])
    assert store.known([]) == set()


def test_ids_may_be_repeated(server: RedisServer) -> None:
    store = server.store()
    store.remember(["a", "a", "b", "a"])
    store.remember(["a"])
    assert store.known(["a", "b", "a", "c", "c"]) == {"a", "b"}


@pytest.mark.parametrize("key", [" ", "\0", "\n", "a\r\nb", "é🐇", "\ud800", "x" * 255, "*", "[a]", "-inf"])
def test_any_text_is_an_id(server: RedisServer, key: str) -> None:
    store = server.store()
    assert store.known([key]) == set()
    store.remember([key])
    assert store.known([key, key + "2", "2" + key]) == {key}


def test_text_and_digests_never_meet(server: RedisServer) -> None:
    digest, text = b"t" * LONG_ID_BYTES, "t" * LONG_ID_BYTES
    store = server.store()
    store.remember([digest])
    lookalikes = [text, "d" + text, text[1:], digest.hex(), str(digest)]
    assert store.known([digest, *lookalikes]) == {digest}
    store.remember([text])
    assert store.known([digest, text, b"d" * LONG_ID_BYTES, b"d" + b"t" * 19]) == {digest, text}


# -- the window -------------------------------------------------------------------------------


def test_the_oldest_are_forgotten_beyond_the_window(server: RedisServer) -> None:
    store = server.store(window=10)
    for number in range(1, 31):
        store.remember([f"id-{number}"])
    assert store.known(ids(1, 30)) == set(ids(21, 30))


def test_as_many_as_the_window_are_known_when_more_come_at_once(server: RedisServer) -> None:
    store = server.store(window=10)
    store.remember(ids(1, 30))
    assert len(store.known(ids(1, 30))) == 10
    store.remember(ids(31, 40))
    assert store.known(ids(1, 40)) == set(ids(31, 40))


def test_an_id_that_is_remembered_again_is_new_again(server: RedisServer) -> None:
    store = server.store(window=3)
    for key in ["a", "b", "c", "a", "d"]:
        store.remember([key])
    assert store.known(["a", "b", "c", "d"]) == {"a", "c", "d"}


@pytest.mark.parametrize("window", [0, 1])
def test_the_smallest_window_is_one(server: RedisServer, window: int) -> None:
    store = server.store(window=window)
    store.remember(["a"])
    store.remember(["b"])
    assert store.known(["a", "b"]) == {"b"}


def test_each_source_has_a_window_of_its_own(server: RedisServer) -> None:
    one, two = server.store("one", window=2), server.store("two", window=2)
    one.remember(["a", "b"])
    two.remember(["c", "d", "e", "f"])
    assert one.known(["a", "b"]) == {"a", "b"}


# -- who shares -------------------------------------------------------------------------------


def test_stores_of_one_source_share_what_they_know(server: RedisServer) -> None:
    one, two = server.store(), server.store()
    one.remember(["a"])
    two.remember(["b"])
    assert one.known(["a", "b"]) == two.known(["a", "b"]) == {"a", "b"}


@pytest.mark.parametrize("other", ["queue 'orders' in virtual host '/a'", "queue 'Orders' in virtual host '/'", ""])
def test_stores_of_different_sources_share_nothing(server: RedisServer, other: str) -> None:
    server.store().remember(["a"])
    assert server.store(other).known(["a"]) == set()


def test_what_a_closed_store_remembered_is_known_to_the_next(server: RedisServer) -> None:
    store = server.store()
    store.remember(["a"])
    store.close()
    assert server.store().known(["a"]) == {"a"}


def test_an_epoch_of_50_000_ids_takes_seconds_at_most(server: RedisServer) -> None:
    store = server.store(window=100_000)
    before, keys, digests = (
        ids(1, 50_000),
        ids(50_001, 100_000),
        id_keys([str(number).encode() for number in range(100)]),
    )
    store.remember(before)
    began = time.monotonic()
    assert store.known([*keys, *digests]) == set()
    store.remember([*keys, *digests])
    assert store.known([*keys, *digests]) == {*keys, *digests}
    assert time.monotonic() - began < 10
    assert len(store.known(before)) == 50_000 - len(digests)


# -- trouble ----------------------------------------------------------------------------------


def unavailable(call: Callable[[list[Key]], object], seconds: float) -> str:
    """The text of the error that a call raises within some time."""
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError) as caught:
        call(["a"])
    assert time.monotonic() - began < seconds
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return str(caught.value)


def assert_hidden(text: str) -> None:
    assert "hushhush" not in text
    assert PASSWORD[:3] not in text
    assert PASSWORD[-3:] not in text


@pytest.mark.parametrize("method", ["known", "remember"])
def test_no_redis_is_an_error_in_bounded_time_without_the_password(method: str) -> None:
    port = free_port()
    store = redis_store.RedisStore(f"redis://user:{PASSWORD}@{LOOPBACK}:{port}/0", SOURCE, 10)
    text = unavailable(getattr(store, method), seconds=15)
    assert "option 'dedupStore': Redis failed" in text
    assert f"{LOOPBACK}:{port}" in text
    assert "No message is lost" in text
    assert_hidden(text)


def test_a_silent_redis_is_an_error_in_bounded_time(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(redis_store, "_RETRIES", 1)
    store = own_server.store()
    store.remember(["a"])
    own_server.pause()
    text = unavailable(store.known, seconds=5)
    assert "Timeout" in text
    assert_hidden(text)
    own_server.resume()
    assert store.known(["a"]) == {"a"}


def test_a_store_goes_on_when_redis_is_back(own_server: RedisServer) -> None:
    store = own_server.store()
    store.remember(["a"])
    own_server.kill()
    assert_hidden(unavailable(store.remember, seconds=15))
    own_server.start()
    assert store.known(["a"]) == set()  # this server keeps nothing on disk
    store.remember(["b"])
    assert store.known(["a", "b"]) == {"b"}


def test_a_restart_of_redis_between_two_calls_is_not_noticed(own_server: RedisServer) -> None:
    store = own_server.store()
    store.remember(["a"])
    own_server.kill()
    own_server.start()
    store.remember(["b"])
    assert store.known(["a", "b"]) == {"b"}


def test_a_wrong_password_is_an_error_without_it(server: RedisServer) -> None:
    url = f"redis://:{PASSWORD}wrong@{LOOPBACK}:{server.port}/0"
    text = unavailable(redis_store.RedisStore(url, SOURCE, 10).known, seconds=15)
    assert "AuthenticationError" in text
    assert_hidden(text)


def test_a_user_with_the_permissions_of_the_page_reads_and_writes_with_a_secret_that_changes(
    program: str, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text("utf-8")
    rights = page.partition("`ACL SETUSER spark on >… ")[2].partition("`")[0].split()
    assert len(rights) > 5
    first, second = f"{PASSWORD}1", f"{PASSWORD}2"
    with RedisServer(program) as server, redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "spark", "on", f">{first}", *rights)
        secret = tmp_path / "secret"
        secret.write_text(f"{first}\n")
        # As the source makes it for these options.
        given = {
            "broker": "rabbitmq", "url": "amqp://host/", "queue": "orders", "checkpointLocation": str(tmp_path / "c"),
            "dedupStore": f"redis://spark@{LOOPBACK}:{server.port}/0", "dedupStorePasswordFile": str(secret),
        }  # fmt: skip
        options = parse_options(given)
        assert PASSWORD not in repr(options)
        store = make_store(options, options.settings)
        store.remember(ids(1, 5))
        assert store.known(ids(4, 7)) == set(ids(4, 5))
        admin.execute_command("ACL", "SETUSER", "spark", f"<{first}", f">{second}")
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        text = unavailable(store.known, seconds=15)
        assert "option 'dedupStore': Redis failed" in text
        assert_hidden(text)
        secret.write_text(second)
        assert store.known(ids(4, 7)) == set(ids(4, 5))
        with pytest.raises(redis.exceptions.NoPermissionError):
            redis.Redis.from_url(f"redis://spark:{second}@{LOOPBACK}:{server.port}/0").set("other", 1)
        secret.unlink()
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(OptionError, match=r"'dedupStorePasswordFile'.*cannot be read"):
            store.known(ids(4, 7))


@pytest.mark.parametrize("protocol", ["", "?protocol=2"])
@pytest.mark.parametrize("user", ["", "user"])
def test_a_redis_that_quotes_what_it_does_not_know_is_an_error_without_the_password(
    program: str, tmp_path: Path, user: str, protocol: str
) -> None:
    # Servers before 6 do not know HELLO, and managed ones rename AUTH.
    with RedisServer(program, "--rename-command", "HELLO", "", "--rename-command", "AUTH", "") as server:
        url = f"redis://{user}:{PASSWORD}@{LOOPBACK}:{server.port}/0{protocol}"
        text = unavailable(redis_store.RedisStore(url, SOURCE, 10).known, seconds=15)
        assert "unknown command" in text
        assert_hidden(text)


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        f"redis://:{PASSWORD}/@host",
        f"redis://:{PASSWORD}@host:port",
        f"redis://host?socket_timeout={PASSWORD}",
    ],
)
def test_what_is_no_redis_url_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        redis_store.RedisStore(url, SOURCE, 10)
    assert caught.value.option == "dedupStore"
    assert caught.value.__suppress_context__
    assert_hidden(str(caught.value))
