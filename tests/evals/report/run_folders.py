"""Run folders for tests, in the format that the evaluation writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FAILED = {"status": "failed", "detail": "AssertionError"}
PASSED = {"status": "passed", "detail": ""}


def write_run(
    folder: Path,
    outcomes: Sequence[Sequence[bool | dict[str, Any]]],
    *,
    complete: bool = True,
    settings: dict[str, Any] | None = None,
    prompts: Sequence[dict[str, Any]] = (),
) -> Path:
    """Writes a run in which problem i has the samples ``outcomes[i]``.

    A sample is True (passed), False (failed) or values that replace those of its line; ``prompts`` does
    the same for the lines of prompts.jsonl.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines, samples = [], []
    for number, problem_outcomes in enumerate(outcomes):
        line = prompt_line(number) | (prompts[number] if number < len(prompts) else {})
        line["prompt_sha256"] = hashlib.sha256(line["prompt"].encode("utf-8", "surrogatepass")).hexdigest()
        lines.append(line)
        for index, outcome in enumerate(problem_outcomes):
            changes = outcome if isinstance(outcome, dict) else PASSED if outcome else FAILED
            samples.append(sample_line(line, index) | changes)
    statuses = [sample["status"] for sample in samples]
    results = {
        "pass_at_k": {"1": statuses.count("passed") / max(1, len(statuses))},
        "status_counts": {status: statuses.count(status) for status in set(statuses)},
        "isolation": {"network": True, "processes": False},
        "tokens_per_second": 12.5,
    }
    all_settings = {
        "suite": "humaneval",
        "prompt_format": "completion",
        "shots": 0,
        "model": "checkpoints/mine",
        "model_sha256": "0" * 64,
        "problems": len(lines),
        "problems_sha256": "1" * 64,
        "samples_per_problem": max((len(samples) for samples in outcomes), default=1),
        "temperature": 0.8,
    } | (settings or {})
    summary = {"settings": all_settings, "complete": complete, **(results if complete else {})}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return folder


def prompt_line(number: int) -> dict[str, Any]:
    return {
        "task_id": f"HumanEval/{number}",
        "entry_point": f"f{number}",
        "prompt": f'def f{number}(x):\n    """Problem {number}."""\n',
        "test": f"def check(candidate):\n    assert candidate({number}) == {number + 1}\n",
    }


def sample_line(problem: dict[str, Any], index: int) -> dict[str, Any]:
    completion = f"    return x + 1  # {problem['task_id']}, sample {index}\n"
    return {
        "task_id": problem["task_id"],
        "sample": index,
        "prompt_sha256": problem["prompt_sha256"],
        "completion": completion,
        "program": problem["prompt"] + completion,
        "seconds": 0.25,
        "seed": 2**62 + index,
        "tokens": 17,
    }
