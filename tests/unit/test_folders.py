"""Places as users write them for Spark: each character of a name is itself."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from pyspark_mq.spark_source.folders import _escaped, below, is_uri, open_folder, resolve, shown_place

NAMES = [
    "my job",
    "gr\u00f6\u00dfe",
    "[1]",
    "a%20b",
    "%3D",
    "a:b",
    "a?b",
    "a#b",
    "a=b&c",
    "a@b",
    "{1}",
    "a+b",
    'a"b',
    "a\\b",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("root", ["s3://bucket", "abfss://c@a.dfs.core.windows.net"])
def test_a_store_is_asked_for_the_name_that_was_written(root: str, name: str) -> None:
    parameters = "?region=x" if root.startswith("s3") else ""
    place = below(resolve(f"{root}/data/{name}{parameters}"), "mq-ids")
    _, path = fs.FileSystem.from_uri(_escaped(place))
    assert path.partition("/")[2] == f"data/{name}/mq-ids"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "FILE:///{}"])
def test_a_folder_of_this_machine_has_the_name_that_was_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, form: str
) -> None:
    root = tmp_path_factory.mktemp("places")
    place = resolve(form.format(f"{root}/{name}"))
    assert not is_uri(place)
    open_folder(place, "mq-ids").write("file", b"x")
    assert (root / name / "mq-ids" / "file").read_bytes() == b"x"
    assert shown_place(place) == place or "@" in place


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_what_was_resolved_stays_as_it_is(text: str) -> None:
    for place in (f"/{text}", f"file:/{text}", f"s3a://bucket/{text}", text):
        try:
            once = resolve(place)
        except ValueError:
            continue
        assert resolve(once) == once
        assert is_uri(below(once, "mq-ids")) == is_uri(once)


def test_a_pyarrow_without_the_store_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fs, "AzureFileSystem")
    with pytest.raises(ValueError, match=r"needs pyarrow.fs.AzureFileSystem, which this build of pyarrow lacks"):
        resolve("abfss://c@a.dfs.core.windows.net/a")
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    monkeypatch.delattr("pyarrow.fs")
    with pytest.raises(ValueError, match=r"needs pyarrow.fs.S3FileSystem"):
        resolve("s3://bucket/a")


@pytest.mark.parametrize(
    "place",
    [
        "s3://key:hushhush@bucket/my job",
        "dbfs://u:hushhush@h/x",
        "oss://u:hush/hushhush@h/x",
        "s3:/u:hushhush@h",
        "file://u:hushhush@h/x",
    ],
)
def test_a_place_is_shown_without_a_password(place: str) -> None:
    assert "hushhush" not in shown_place(place)
    try:
        said = shown_place(resolve(place))
    except ValueError as wrong:
        said = str(wrong)
    assert "hushhush" not in said
