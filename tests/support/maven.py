"""Java programs of the tests, compiled by Maven when they are first used."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
from pathlib import Path

from testbed.comparison.readers import build_project
from testbed.distributions import find_maven
from testbed.process import NodeError
from tests.plugin import missing

__all__ = ["class_path"]


@functools.cache
def class_path(project: Path) -> str:
    """Return the class path of a project's programs. Maven runs only if the project has changed since it last did.

    Without Maven the test is skipped, or fails where everything has to be there.

    Raises:
        NodeError: a compiler is missing, or it cannot be built.
    """
    target = project / "target"
    built = target / "built-from"
    with (project / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers begin at the same time
        digest = _digest(project)
        if not built.exists() or built.read_text("utf-8") != digest:
            try:
                find_maven()
            except NodeError as absent:
                missing(str(absent))
            build_project(project)
            built.write_text(digest, "utf-8")
    return os.pathsep.join([str(target / "classes"), str(target / "lib" / "*")])


def _digest(project: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted([project / "pom.xml", *(project / "src").rglob("*.java")]):
        digest.update(f"{file.relative_to(project)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()
