"""A disk whose power can be cut: ext4 on an image of its own.

``EXT4_IOC_SHUTDOWN`` without a flush of the journal is how the file systems' own tests cut the power (xfstests, program
``godown``): from one moment to the next nothing is written any more, what was not written yet is gone, and every call
fails. Mounted again, the file system recovers from its journal, as after a power cut. The disk itself forgets nothing
that it was given, as one with a battery, or a volume of a cloud. It needs Linux, root, and the right to mount.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from testbed.process import NodeError, poll

__all__ = ["Disk"]

#: _IOR('X', 125, __u32), and EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ext4.h).
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_SIZE_MIB = 512
_TIMEOUT_S = 60.0
#: One of so many files, the newest, is written back so often.
_WRITE_BACK_S = 0.1
_WRITE_BACK_FILES = 40


class Disk:
    """One disk, mounted at a folder from the start until it is closed.

    Args:
        folder: for its image; the disk is at `path` in it.

    Raises:
        NodeError: this machine does not let it be made or mounted.
    """

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.path = folder / "disk"
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(_SIZE_MIB << 20)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        # Processes with mounts of their own let go of a disk with us if what it is mounted in is shared.
        self._folder = folder
        _run("mount", "--bind", str(folder), str(folder))
        _run("mount", "--make-shared", str(folder))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def cut(self) -> None:
        """Cut the power. Whoever uses the disk gets errors from now on."""
        disk = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(disk, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(disk)

    def restore(self) -> None:
        """Power again: what came to the disk is there. All processes that used it have to be gone."""
        self._unmount()
        self._mount()

    def close(self) -> None:
        """Give everything back."""
        self._unmount()
        _run("umount", "--lazy", str(self._folder))
        self._image.unlink()

    def _unmount(self) -> None:
        if not poll(lambda: _works("umount", str(self.path)), _TIMEOUT_S, interval_s=0.2):
            raise NodeError(f"{self.path} cannot be unmounted: somebody still uses it")
        if not poll(lambda: not _said("losetup", "-j", str(self._image)), _TIMEOUT_S, interval_s=0.2):
            raise NodeError(f"{self._image} cannot be mounted again: a process still has it")

    @contextlib.contextmanager
    def written_back(self, chance: random.Random) -> Iterator[None]:
        """Meanwhile single files are written back to the disk, in any order.

        The kernel does so after half a minute, for which no test lives. This finds more than that, which begins with
        the oldest.
        """
        stop, own = threading.Event(), random.Random(chance.random())
        thread = threading.Thread(target=self._write_back, args=(own, stop), name="write-back", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _write_back(self, chance: random.Random, stop: threading.Event) -> None:
        while not stop.wait(_WRITE_BACK_S):
            with contextlib.suppress(OSError, IndexError):  # files go meanwhile, and the disk at last
                files = sorted(self.path.rglob("*"), key=lambda file: file.lstat().st_mtime_ns)[-_WRITE_BACK_FILES:]
                opened = os.open(chance.choice([file for file in files if file.is_file()]), os.O_RDONLY)
                try:
                    os.fsync(opened)
                finally:
                    os.close(opened)


def _works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout


def _run(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, check=True, text=True)
    except FileNotFoundError as missing:
        raise NodeError(f"{command[0]} is not installed: {missing}") from missing
    except subprocess.CalledProcessError as failed:
        raise NodeError(f"{' '.join(command)}: {failed.stderr.strip()}") from failed
