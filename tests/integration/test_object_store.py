"""What lies in an object store: the ID log, and checkpoints for the command line. Over S3, with pyarrow's client."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_mq.cli.main import main
from pyspark_mq.spark_source.folders import open_folder
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError, poll
from tests.plugin import missing
from tests.support.checks import assert_ids_exactly_once, bodies
from tests.support.engine import At, Crashed, Engine, ReaderError, full_epochs
from tests.support.object_store import ObjectStore

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    try:
        server = ObjectStore()
    except NodeError as absent:
        missing(str(absent))
    with server:
        yield server


def test_a_folder_of_it_is_as_any_other(store: ObjectStore) -> None:
    folder = open_folder(store.uri("plain"))
    assert folder.names() == []
    folder.write("a", b"1")
    folder.write("b", bytes(10_000_000))
    assert sorted(folder.names()) == ["a", "b"]
    folder.replace("a", b"2")
    assert (folder.read("a"), folder.read("b")) == (b"2", bytes(10_000_000))
    folder.remove("b")
    assert store.names("plain") == ["a"]


@pytest.mark.parametrize("point", list(At))
def test_a_killed_driver_replays_what_is_there(store: ObjectStore, rabbit: RabbitNode, name: str, point: At) -> None:
    folder = f"checkpoints/{uuid.uuid4()}/ids"
    sent = rabbit.publish(name, bodies(300), ids=[str(uuid.uuid4()) for _ in range(300)])
    with Engine(url=rabbit.url(), queue=name, idLog=store.uri(folder), **full_epochs(50)) as run:
        run.batch()
        for _ in range(3):
            with contextlib.suppress(Crashed):
                run.trigger(point)
        run.drain(300)
        assert all(store.secret not in offset for offset in run._offsets.values())
        assert_ids_exactly_once(rabbit, name, run, sent)
    assert store.names(folder) != []


def test_a_store_that_is_not_there_stops_the_query_and_nothing_is_lost(
    store: ObjectStore, rabbit: RabbitNode, name: str
) -> None:
    folder = f"checkpoints/{uuid.uuid4()}/ids"
    there, away = store.uri(folder), store.uri(folder).replace("@bucket/", "@no-such-bucket/")
    sent = rabbit.publish(name, bodies(100), ids=[str(uuid.uuid4()) for _ in range(100)])
    with Engine(url=rabbit.url(), queue=name, idLog=away, **full_epochs(50)) as run:
        with pytest.raises(ReaderError, match="no-such-bucket") as failed:
            run.batch()
        assert failed.value.kind == "CheckpointError"
        assert store.secret not in str(failed.value)
        run.crash()
        assert poll(lambda: rabbit.counts(name).ready == 100, 30)
        run.options["idLog"] = there
        run.drain(100)
        assert_ids_exactly_once(rabbit, name, run, sent)


def test_a_checkpoint_there_is_inspected(
    store: ObjectStore, rabbit: RabbitNode, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rabbit.publish(name, bodies(50), ids=[str(uuid.uuid4()) for _ in range(50)])
    checkpoint = f"inspected/{uuid.uuid4()}"
    id_log = store.uri(f"{checkpoint}/ids")
    given = {"url": rabbit.url(), "queue": name, "idLog": id_log, **full_epochs(50)}
    with Engine(**given) as run:
        assert run.batch() == 50
        for batch, offset in run._offsets.items():
            for folder, text in (("offsets", f"v1\n{{}}\n{offset}"), ("commits", "v1\n{}")):
                (tmp_path / folder).mkdir(exist_ok=True)
                (tmp_path / folder / str(batch)).write_text(text)
    store.copy(tmp_path, checkpoint)
    # There are credentials in it, so no offset says where it is.
    assert main(["inspect", store.uri(checkpoint), "--json", "--id-log", id_log]) == 0
    said = capsys.readouterr()
    assert store.secret not in said.out + said.err
    (source,) = json.loads(said.out)["sources"]
    assert (source["committed"]["batch"], source["committed"]["planned"]) == (0, 50)
