"""Memory that a socket is read into: what somebody refers to stays as it is, and what nobody does is used again."""

from __future__ import annotations

import platform
import random
import subprocess
import sys

import pytest

from pyspark_mq.wire.amqp091.read_memory import ReadMemory
from tests.support.effort import part_of

MIB = 1 << 20


def read(memory: ReadMemory, data: bytes, needed: int = 0) -> int:
    """Read as much as there is room for; return how much that was."""
    room = memory.room(needed)
    count = min(len(room), len(data))
    room[:count] = data[:count]
    memory.end += count
    return count


@pytest.mark.parametrize("seed", range(part_of(40)))
def test_what_is_referred_to_stays_and_what_was_not_taken_goes_on(seed: int) -> None:
    chance = random.Random(seed)
    memory, sent, taken = ReadMemory(), bytearray(), 0
    most = chance.choice((100, 50_000, 600_000))
    held: list[tuple[memoryview, int, bytes]] = []
    for _ in range(60):
        data = chance.randbytes(chance.randint(1, most))
        needed = chance.choice((0, 0, chance.randint(1, 2 * most)))
        if needed:
            assert len(memory.room(needed)) >= needed - (memory.end - memory.begin)
        sent += data[: read(memory, data, needed)]
        assert memory.view[memory.begin : memory.end] == sent[taken:]
        count = chance.choice((memory.end - memory.begin, chance.randint(0, memory.end - memory.begin)))
        if chance.random() < 0.7:
            held.append((memory.view, memory.begin, bytes(sent[taken : taken + count])))
        memory.begin, taken = memory.begin + count, taken + count
        for view, begin, expected in held:
            assert view[begin : begin + len(expected)] == expected
        if chance.random() < 0.2:
            chance.shuffle(held)
            del held[: chance.randint(0, len(held))]


def test_nobody_refers_to_it_so_it_is_filled_again() -> None:
    memory = ReadMemory()
    views = set()
    for _ in range(1_000):
        read(memory, bytes(1_000))
        views.add(id(memory.view))
        memory.begin = memory.end
    assert len(views) == 1
    assert len(memory.view) < MIB


def test_what_is_read_between_two_blocks_is_in_one_piece_and_an_idle_connection_gives_it_back() -> None:
    memory, held = ReadMemory(), []
    for _ in range(3):
        for _ in range(17):
            read(memory, bytes(200_000))
            held.append(memory.view)
            memory.begin = memory.end
        assert len({id(view) for view in held[-16:]}) == 1
        held.clear()
    for _ in range(3):
        read(memory, bytes(10))
        memory.begin = memory.end
    assert len(memory.view) < MIB


def test_a_large_frame_is_read_as_a_whole_and_what_comes_of_it_is_moved_once() -> None:
    memory = ReadMemory()
    came = moved = 0
    view = memory.view
    while came < 20 * MIB:
        came += read(memory, bytes(100_000), 20 * MIB)
        if memory.view is not view:
            moved, view = moved + came, memory.view
    assert moved <= 100_000


#: Frees a block of 16 MiB, by which glibc raises its bound, and holds one of 4 MiB: how many bytes are mapped for it.
PROGRAM = """
import ctypes
from pyspark_mq.spark_source.source import use_little_memory
class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
use_little_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes, libc.mallinfo2.restype = ctypes.c_void_p, [ctypes.c_void_p], Info
libc.free(libc.malloc(16 << 20))
before = libc.mallinfo2().hblkhd
libc.malloc(4 << 20)
print(libc.mallinfo2().hblkhd - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no such bound")
def test_a_large_block_is_given_back_when_it_is_freed() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(told.stdout) >= 4 * MIB
