"""The proxy of the failure tests against a real server: a fault has to be the one it claims."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from testbed.chaos.proxy import Direction, FaultProxy

TIMEOUT_S = 10.0
SILENCE_S = 0.2  # how long "nothing arrives" is watched


class EchoServer:
    """Answers every connection with what it sends; keeps its ends for inspection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = 0
        self.endings: list[str] = []
        self.ended = threading.Event()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                self._ends.append(end)
                thread = threading.Thread(target=self._echo, args=(end,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _echo(self, end: socket.socket) -> None:
        ending = "end of stream"
        try:
            while data := end.recv(65536):
                self.received += len(data)
                end.sendall(data)
        except OSError:
            ending = "reset"
        self.endings.append(ending)
        self.ended.set()
        end.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TIMEOUT_S)


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with dial(proxy) as client:
        assert echoes(client)
        yield client


def dial(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT_S)


def receive(client: socket.socket, count: int) -> bytes:
    """Exactly so many bytes, or what came before the end."""
    data = bytearray()
    while len(data) < count and (part := client.recv(count - len(data))):
        data += part
    return bytes(data)


def echoes(client: socket.socket, text: bytes = b"hello") -> bool:
    client.sendall(text)
    return receive(client, len(text)) == text


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(TIMEOUT_S)
    return False


def received_until_reset(client: socket.socket) -> int:
    """How many bytes come before the connection is reset."""
    count = 0
    try:
        while data := client.recv(65536):
            count += len(data)
    except ConnectionResetError:
        return count
    pytest.fail(f"an orderly end after {count} bytes")


def wait_for(condition: Callable[[], bool], text: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, text
        time.sleep(0.005)


# -- no fault ---------------------------------------------------------------------------------


def test_large_data_passes_unchanged_both_ways(proxy: FaultProxy, client: socket.socket) -> None:
    data = random.Random(1).randbytes(8_000_000)
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()
    assert proxy.bytes_seen(Direction.TO_BROKER) == len(data) + len(b"hello")
    assert proxy.bytes_seen(Direction.TO_CLIENT) == len(data) + len(b"hello")


def test_half_closing_is_passed_on(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert receive(client, 1000) == b"last words"
    assert server.endings == ["end of stream"]
    wait_for(lambda: proxy.connections == 0, "the connection is still counted")


def test_a_reset_by_the_client_is_passed_on(client: socket.socket, server: EchoServer) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    assert server.ended.wait(TIMEOUT_S)
    assert server.endings == ["reset"]


def test_many_connections_at_once(proxy: FaultProxy) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dial(proxy)) for _ in range(50)]
        for number, client in enumerate(clients):
            client.sendall(str(number).encode())
        for number, client in enumerate(clients):
            assert client.recv(10) == str(number).encode()
        assert proxy.connections == 50


def test_an_absent_target_resets_the_client(proxy: FaultProxy, server: EchoServer) -> None:
    server.close()
    # Depending on who is quicker, dialling fails already.
    with pytest.raises(ConnectionResetError), dial(proxy) as client:
        client.recv(1)


# -- cut --------------------------------------------------------------------------------------


def test_cut_resets_both_sides_and_spares_the_next_connection(
    proxy: FaultProxy, client: socket.socket, server: EchoServer
) -> None:
    assert proxy.cut() == 1
    assert received_until_reset(client) == 0
    assert server.ended.wait(TIMEOUT_S)
    assert server.endings == ["reset"]
    assert proxy.connections == 0
    with dial(proxy) as again:
        assert echoes(again)


@pytest.mark.parametrize("count", [1, 999, 65_536, 100_001])
def test_cut_after_passes_exactly_so_many_bytes_to_the_client(
    proxy: FaultProxy, client: socket.socket, count: int
) -> None:
    cut = proxy.cut_after(count, Direction.TO_CLIENT)
    sender = threading.Thread(target=send_ignoring_reset, args=(client, 200_000))
    sender.start()
    # The system reports a reset once, and here maybe to the sender.
    with contextlib.suppress(ConnectionResetError):
        assert receive(client, count) == bytes(count)
        assert client.recv(1) == b""
    assert cut.wait(TIMEOUT_S)
    sender.join()


def test_cut_after_passes_exactly_so_many_bytes_to_the_broker(
    proxy: FaultProxy, client: socket.socket, server: EchoServer
) -> None:
    before = server.received
    cut = proxy.cut_after(12_345, Direction.TO_BROKER)
    client.sendall(bytes(12_000))
    assert receive(client, 12_000) == bytes(12_000)
    assert not cut.is_set()
    client.sendall(bytes(1_000))
    assert cut.wait(TIMEOUT_S)
    assert server.ended.wait(TIMEOUT_S)
    assert server.received - before == 12_345


def test_cut_after_is_used_up(proxy: FaultProxy, client: socket.socket) -> None:
    assert proxy.cut_after(0, Direction.TO_BROKER).is_set()
    assert received_until_reset(client) == 0
    with dial(proxy) as again:
        assert echoes(again, bytes(50_000))


def send_ignoring_reset(client: socket.socket, count: int) -> None:
    with contextlib.suppress(OSError):
        client.sendall(bytes(count))


# -- mute -------------------------------------------------------------------------------------


def test_mute_to_the_client_swallows_answers_only(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    proxy.mute(Direction.TO_CLIENT)
    client.sendall(b"anybody there?")
    wait_for(lambda: server.received == len(b"helloanybody there?"), "the broker heard nothing")
    assert is_silent(client)
    assert proxy.connections == 1


def test_mute_hides_the_end_of_the_client(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    proxy.mute()
    client.sendall(b"lost")
    client.close()
    assert not server.ended.wait(SILENCE_S)
    assert server.received == len(b"hello")
    assert proxy.connections == 1
    proxy.cut()
    assert server.ended.wait(TIMEOUT_S)


def test_mute_hides_the_end_of_the_broker(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    proxy.mute(Direction.TO_CLIENT)
    server.close()
    assert is_silent(client)


def test_muting_is_for_connections_there_are(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.mute()
    with dial(proxy) as other:
        assert echoes(other)
    client.sendall(b"x")
    assert is_silent(client)


def test_muting_new_ones_as_well(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.mute(new=True)
    with dial(proxy) as other:
        other.sendall(b"x")
        assert is_silent(other)
        proxy.unmute()
        assert is_silent(other)
    with dial(proxy) as third:
        assert echoes(third)


# -- throttle ---------------------------------------------------------------------------------


def seconds_for(client: socket.socket, count: int) -> float:
    """How long so many bytes take there and back."""
    began = time.monotonic()
    sender = threading.Thread(target=client.sendall, args=(bytes(count),))
    sender.start()
    assert receive(client, count) == bytes(count)
    sender.join()
    return time.monotonic() - began


@pytest.mark.parametrize("direction", [None, *Direction])
def test_a_narrow_link_passes_everything_on_no_faster_than_it_may(
    proxy: FaultProxy, client: socket.socket, direction: Direction | None
) -> None:
    proxy.throttle(100_000, direction)
    # Of the first moment it may have saved something up.
    assert 0.45 <= seconds_for(client, 50_000) < 5
    with dial(proxy) as another:
        assert 0.45 <= seconds_for(another, 50_000) < 5
    proxy.throttle(None)
    assert seconds_for(client, 50_000) < 0.4


def test_connections_share_a_narrow_link(proxy: FaultProxy) -> None:
    proxy.throttle(200_000, Direction.TO_CLIENT)
    began = time.monotonic()
    with dial(proxy) as one, dial(proxy) as two:
        both = [threading.Thread(target=seconds_for, args=(client, 50_000)) for client in (one, two)]
        for each in both:
            each.start()
        for each in both:
            each.join()
    assert 0.45 <= time.monotonic() - began < 5


def test_a_link_of_some_bytes_a_second_passes_those(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.throttle(20, Direction.TO_BROKER)
    began = time.monotonic()
    assert echoes(client, b"0123456789")
    assert 0.3 <= time.monotonic() - began < 5


def test_a_narrow_link_is_idle_when_nothing_is_sent(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.throttle(1_000)
    assert echoes(client, b"x")
    time.sleep(0.3)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.25


def test_a_narrow_link_is_cut_at_the_byte_that_was_asked_for(
    proxy: FaultProxy, client: socket.socket, server: EchoServer
) -> None:
    proxy.throttle(100_000)
    cut = proxy.cut_after(30_000, Direction.TO_CLIENT)
    began = time.monotonic()
    sender = threading.Thread(target=send_ignoring_reset, args=(client, 200_000))
    sender.start()
    with contextlib.suppress(ConnectionResetError):
        assert receive(client, 30_000) == bytes(30_000)
    sender.join()
    assert cut.wait(TIMEOUT_S)
    assert 0.25 <= time.monotonic() - began < 5
    assert server.ended.wait(TIMEOUT_S)


def test_a_narrow_link_still_tells_of_the_end(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    proxy.throttle(100_000)
    client.sendall(bytes(5_000))
    client.shutdown(socket.SHUT_WR)
    assert len(receive(client, 10_000)) == 5_000
    assert server.endings == ["end of stream"]


# -- idle limit -------------------------------------------------------------------------------


def test_a_connection_on_which_nothing_comes_is_reset_and_no_other(
    proxy: FaultProxy, client: socket.socket, server: EchoServer
) -> None:
    proxy.limit_idle(0.6)
    with dial(proxy) as busy:
        for _ in range(10):
            assert echoes(busy)
            time.sleep(0.1)
        assert received_until_reset(client) == 0
        assert server.endings == ["reset"]
        assert proxy.idle_ends == 1
        assert echoes(busy)
    proxy.limit_idle(None)
    with dial(proxy) as quiet:
        time.sleep(0.8)
        assert echoes(quiet)


def test_no_bytes_a_second_is_no_narrow_link(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="stall"):
        proxy.throttle(0)


def test_a_cut_that_was_disarmed_does_not_happen(proxy: FaultProxy, client: socket.socket) -> None:
    cut = proxy.cut_after(3, Direction.TO_CLIENT)
    proxy.disarm()
    assert echoes(client)
    assert not cut.is_set()


# -- stall ------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", Direction)
def test_stalling_builds_backpressure_and_loses_nothing(
    proxy: FaultProxy, client: socket.socket, direction: Direction
) -> None:
    data = random.Random(2).randbytes(30_000_000)
    answer: list[bytes] = []
    reader = threading.Thread(target=lambda: answer.append(receive(client, len(data))))
    sender = threading.Thread(target=client.sendall, args=(data,))
    proxy.stall(direction)
    reader.start()
    sender.start()
    sender.join(SILENCE_S)
    assert sender.is_alive(), "30 MB fitted into the buffers: no backpressure"
    assert not answer
    proxy.resume(direction)
    for thread in (sender, reader):
        thread.join(TIMEOUT_S)
    assert answer == [data]


def test_stalling_holds_new_connections_too(proxy: FaultProxy) -> None:
    proxy.stall()
    with dial(proxy) as client:
        client.sendall(b"later")
        assert is_silent(client)
        proxy.resume()
        assert receive(client, 5) == b"later"


# -- refuse, retarget, close ------------------------------------------------------------------


def test_refusing_is_for_new_connections(proxy: FaultProxy, client: socket.socket) -> None:
    for _ in range(3):  # the port has to come back every time
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
        assert echoes(client)
        proxy.accept()
        with dial(proxy) as other:
            assert echoes(other)


def test_refusing_and_accepting_twice_is_harmless(proxy: FaultProxy) -> None:
    proxy.refuse()
    proxy.refuse()
    proxy.accept()
    proxy.accept()
    with dial(proxy) as client:
        assert echoes(client)


def test_retargeting_moves_new_connections_only(proxy: FaultProxy, client: socket.socket, server: EchoServer) -> None:
    other = EchoServer()
    proxy.retarget(other.port)
    with dial(proxy) as moved:
        assert echoes(moved)
    assert echoes(client)
    assert (other.received, server.received) == (5, 10)
    other.close()


def test_closing_resets_and_frees_the_port(server: EchoServer) -> None:
    proxy = FaultProxy("127.0.0.1", server.port)
    with dial(proxy) as client:
        assert echoes(client)
        proxy.close()
        proxy.close()
        assert received_until_reset(client) == 0
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
    with pytest.raises(RuntimeError, match="closed"):
        proxy.cut()


def test_commands_from_many_threads_while_data_flows(proxy: FaultProxy) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def traffic() -> None:
        try:
            while not stop.is_set():
                with contextlib.suppress(OSError), dial(proxy) as client:
                    while not stop.is_set() and echoes(client, bytes(10_000)):
                        pass
        except BaseException as error:
            failures.append(error)
            raise

    def trouble(seed: int) -> None:
        generator = random.Random(seed)
        actions: list[Callable[[], object]] = [
            proxy.cut,
            proxy.stall,
            proxy.resume,
            proxy.refuse,
            proxy.accept,
        ]
        try:
            for _ in range(100):
                generator.choice(actions)()
                proxy.cut_after(generator.randrange(30_000), Direction.TO_CLIENT)
                assert proxy.connections >= 0
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=traffic) for _ in range(3)]
    workers += [threading.Thread(target=trouble, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers[3:]:
        worker.join(TIMEOUT_S)
    stop.set()
    proxy.accept()
    proxy.resume()
    proxy.cut()
    for worker in workers[:3]:
        worker.join(2 * TIMEOUT_S)  # it may be waiting for an answer that was cut off
    assert not failures
    assert not any(worker.is_alive() for worker in workers)
    # What one of the threads may have armed last.
    for direction in Direction:
        proxy.cut_after(0, direction)
    with dial(proxy) as client:
        assert echoes(client)
