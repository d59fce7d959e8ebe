"""The notebooks run, on a tiny checkpoint, and show what they say they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import byte_level_tokenizer, tiny_config, write_checkpoint

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def test_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, tiny_config(), byte_level_tokenizer())
    monkeypatch.setenv("CHECKPOINT", str(tmp_path))
    notebook = json.loads((NOTEBOOKS / "lanes.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    similarities = names["similarities"]
    assert len(similarities) == 5
    assert similarities[:2] == pytest.approx([1.0, 1.0])  # below the delay all lanes are equal
    assert max(similarities[2:]) < 0.99
