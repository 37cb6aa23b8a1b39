"""What a job uses at the beginning of a soak and at its end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from testbed.chaos import usage
from testbed.chaos.history import History
from testbed.chaos.usage import UsageWatch, growth


def told(folder: Path, *looks: dict[str, int]) -> dict[str, tuple[float, float, float]]:
    with History(folder) as history:
        for look in looks:
            history.add("info", "usage", look, "watch")
        return growth(history)


def test_the_first_tenth_is_compared_with_that_in_the_middle_and_the_last(tmp_path: Path) -> None:
    looks = [{"source: MiB": 100 if number < 10 else 300 if number >= 90 else 1_000} for number in range(100)]
    assert told(tmp_path, *looks) == {"source: MiB": (100, 1_000, 300)}


def test_one_look_that_is_high_says_nothing(tmp_path: Path) -> None:
    looks = [{"JVM: threads": 50} for _ in range(40)]
    looks[0], looks[-1] = {"JVM: threads": 900}, {"JVM: threads": 900}
    assert told(tmp_path, *looks) == {"JVM: threads": (50, 50, 50)}


def test_what_was_seen_too_rarely_is_left_out(tmp_path: Path) -> None:
    looks = [{"JVM: MiB": number} | ({"source: MiB": 1} if number == 3 else {}) for number in range(12)]
    assert told(tmp_path, *looks) == {"JVM: MiB": (2, 5, 9)}
    (tmp_path / "few").mkdir()
    assert told(tmp_path / "few", *looks[:3]) == {}


@dataclass
class Own:
    """This process as the JVM of a job, and a checkpoint."""

    checkpoint: Path

    def jvm(self) -> psutil.Process:
        return psutil.Process()

    def workers(self) -> list[psutil.Process]:
        return []


def test_a_look_has_processes_and_the_newest_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_AGE_MIN_S", 0.0)
    checkpoint = tmp_path / "checkpoint"
    for name, size in {"offsets/9": 5_000, "offsets/10": 300, "offsets/.10.crc": 12, "mq-ids/a.json": 4_096}.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(bytes(size))
    with History(tmp_path) as history:
        watch = UsageWatch(Own(checkpoint), history)  # type: ignore[arg-type]
        watch.poll()
        watch.poll()  # too soon
        (seen,) = [operation["value"] for operation in history.read()]
    assert (seen["offset: bytes"], seen["files of IDs"], seen["files of IDs: KiB"]) == (300, 1, 4)
    assert seen["JVM: threads"] == psutil.Process().num_threads()
    assert 0 < seen["JVM: MiB"] < psutil.virtual_memory().total >> 20
    assert abs(seen["JVM: descriptors"] - len(os.listdir("/proc/self/fd"))) < 10
    assert "source: MiB" not in seen
