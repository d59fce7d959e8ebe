from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest

from evals.records import RunFolder, Sample
from laneformer.errors import EvaluationError


def _sample(number: int) -> Sample:
    return Sample("Small/0", number, "", "    return x\n", None, "no-code", "", 0.0, 0)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path, {})
    folder.add(_sample(0))
    opened = Path.open

    class FullDisk:
        """Takes ten bytes more."""

        def __init__(self, file: Any) -> None:
            self._file: io.FileIO = file
            self._room = 10

        def __enter__(self) -> FullDisk:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, data: bytes) -> int:
            if not self._room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = self._file.write(data[: self._room])
            self._room -= written
            return written

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *arguments, **options: FullDisk(opened(*arguments, **options)))
        with pytest.raises(EvaluationError, match="No space left"):
            folder.add(_sample(1))
    folder.add(_sample(2))  # space was freed meanwhile
    with pytest.raises(EvaluationError, match="another evaluation is writing to"):
        RunFolder(tmp_path, {})
    folder.close()
    assert [sample.sample for sample in RunFolder(tmp_path, {}).finished] == [0, 2]


@pytest.mark.parametrize("line", ["[" * 100_000, "5", '{"task_id": 5}', "1" * 5000])
def test_lines_that_are_no_samples_are_refused(tmp_path: Path, line: str) -> None:
    RunFolder(tmp_path, {})
    (tmp_path / "samples.jsonl").write_text(line + "\n")
    with pytest.raises(EvaluationError, match="line 1 is damaged"):
        RunFolder(tmp_path, {})


@pytest.mark.parametrize("text", ["[" * 100_000, "5", '{"settings": 5}', "1" * 5000])
def test_a_summary_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(EvaluationError, match=r"summary\.json is damaged"):
        RunFolder(tmp_path, {})
