"""From problems to completions, with any source of text.

:class:`Generator` is all that the evaluation asks of a model: a training loop can wrap its model in
one, and :class:`EngineGenerator` wraps the engine.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from evals.problems import Problem
from evals.stop import StopRule
from laneformer.errors import EvaluationError, RequestError


class Generator(Protocol):
    """A source of sampled text."""

    def generate_text(
        self, prompt: str, *, max_new_tokens: int, temperature: float, top_p: float, seed: int
    ) -> Iterator[str]:
        """Yields a continuation of ``prompt`` in pieces.

        Closed early (``close()``, where the iterator has it) when the rest is not needed.  Equal
        arguments give equal text; temperature 0 is greedy.  Raises RequestError for a prompt that
        the model cannot take.
        """
        ...


class EngineGenerator:
    """Samples from an ``infer.Engine``, and measures how fast.

    Raises EvaluationError when the engine has no tokenizer: prompts are text.
    """

    def __init__(self, engine: Any) -> None:
        if engine.tokenizer is None:
            raise EvaluationError("the model has no tokenizer, and the problems' prompts are text")
        self._engine = engine
        self.generated_tokens = 0
        self.generation_seconds = 0.0

    def generate_text(
        self, prompt: str, *, max_new_tokens: int, temperature: float, top_p: float, seed: int
    ) -> Iterator[str]:
        """See :class:`Generator`."""
        start = time.perf_counter()
        steps = self._engine.generate(
            self._engine.tokenizer.encode(prompt),
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
        )
        try:
            for step in steps:
                self.generated_tokens += 1
                yield step.text
        finally:
            _close(steps)
            self.generation_seconds += time.perf_counter() - start


class CanonicalGenerator:
    """Answers each problem with its canonical solution: a check of the evaluation itself.

    No :class:`Generator`, for a prompt does not tell the problem: two may share one.
    """

    def solve(self, problem: Problem) -> Iterator[str]:
        """Yields the solution line by line."""
        yield from problem.canonical_solution.splitlines(keepends=True)


@dataclass(frozen=True)
class Completion:
    """What the model wrote for one problem; ``refusal`` says why it could not take the prompt."""

    text: str
    refusal: str = ""


def sample_seed(seed: int, problem_index: int, sample_index: int) -> int:
    """The seed of one sample, in [0, 2**63): well mixed, and independent of all other samples."""
    text = f"{seed}/{problem_index}/{sample_index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def complete(
    generator: Generator | CanonicalGenerator,
    problem: Problem,
    *,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> Completion:
    """Samples one completion of ``problem.prompt``, until the model ends it or the stop rule does."""
    rule = StopRule(problem.prompt, problem.entry_point)
    text = ""
    try:
        if isinstance(generator, CanonicalGenerator):
            pieces = generator.solve(problem)
        else:
            pieces = generator.generate_text(
                problem.prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
            )
        try:
            for piece in pieces:
                text += piece
                if "\n" in piece and rule.finished(text):
                    break
        finally:
            _close(pieces)
    except RequestError as error:
        return Completion("", " ".join(str(error).split()))
    return Completion(text)


def _close(iterator: Any) -> None:
    # Iterators need no close(); generators, and whatever holds a device, have one.
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
