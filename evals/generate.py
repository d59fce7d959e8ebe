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
from evals.prompts import PromptFormat
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

        A generator that has an attribute ``generated_tokens`` counts there what it generates (for the thread
        that asks; None: it cannot tell).  It is asked for one text at a time, or for as many as its attribute
        ``concurrency`` says, from as many threads.
        """
        ...


class EngineGenerator:
    """Samples from an ``infer.Engine``, and counts tokens.

    ``add_bos`` is false for prompts that hold their beginning-of-sequence token, as those of chat templates
    do.  Raises EvaluationError when the engine has no tokenizer: prompts are text.
    """

    def __init__(self, engine: Any, *, add_bos: bool = True) -> None:
        if engine.tokenizer is None:
            raise EvaluationError("the model has no tokenizer, and the problems' prompts are text")
        self._engine = engine
        self._add_bos = add_bos
        self.generated_tokens = 0

    def generate_text(
        self, prompt: str, *, max_new_tokens: int, temperature: float, top_p: float, seed: int
    ) -> Iterator[str]:
        """See :class:`Generator`."""
        steps = self._engine.generate(
            self._engine.tokenizer.encode(prompt, add_bos=self._add_bos),
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


class CanonicalGenerator:
    """Answers each problem with its canonical solution: a check of the evaluation itself.

    No :class:`Generator`, for a prompt does not tell the problem: two may share one.
    """

    def solve(self, problem: Problem, prompt_format: PromptFormat) -> Iterator[str]:
        """Yields the solution line by line."""
        yield from prompt_format.answer(problem).splitlines(keepends=True)


@dataclass(frozen=True)
class Completion:
    """What the model wrote for one problem."""

    text: str
    refusal: str = ""
    """Why the model could not take the prompt."""
    tokens: int | None = None
    """How many were generated, the one that ended the text included; None where the generator cannot tell."""
    seconds: float = 0.0
    """Wall-clock time of the generation, the reading of the prompt included."""


def sample_seed(seed: int, problem_index: int, sample_index: int) -> int:
    """The seed of one sample, in [0, 2**63): well mixed, and independent of all other samples."""
    text = f"{seed}/{problem_index}/{sample_index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def complete(
    generator: Generator | CanonicalGenerator,
    problem: Problem,
    prompt_format: PromptFormat,
    *,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> Completion:
    """Samples one completion of the problem's prompt, until the model ends it or the stop rule does."""
    rule = prompt_format.rule(problem)
    prompt = prompt_format.prompt(problem)
    text = ""
    before: int | None = getattr(generator, "generated_tokens", None)
    start = time.perf_counter()
    try:
        if isinstance(generator, CanonicalGenerator):
            pieces = generator.solve(problem, prompt_format)
        else:
            pieces = generator.generate_text(
                prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
            )
        try:
            for piece in pieces:
                text += piece
                if rule.finished(text):
                    break
        finally:
            _close(pieces)
    except RequestError as error:
        return Completion("", " ".join(str(error).split()))
    seconds = time.perf_counter() - start
    after: int | None = getattr(generator, "generated_tokens", None)
    tokens = None if before is None or after is None else after - before
    return Completion(text, tokens=tokens, seconds=seconds)


def _close(iterator: Any) -> None:
    # Iterators need no close(); generators, and whatever holds a device, have one.
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
