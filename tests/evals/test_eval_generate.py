from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from evals.generate import CanonicalGenerator, EngineGenerator, complete, sample_seed
from evals.problems import Problem
from evals.prompts import BaseFormat
from laneformer.errors import EvaluationError, RequestError


@dataclass
class Step:
    text: str


@dataclass
class FakeEngine:
    """The part of ``infer.Engine`` that the evaluation relies on."""

    pieces: list[str]
    requests: list[dict[str, Any]] = field(default_factory=list)
    yielded: int = 0
    closed: bool = False
    stream: Iterator[Step] | None = None

    @property
    def tokenizer(self) -> FakeEngine:
        return self

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        return [1, *text.encode()] if add_bos else list(text.encode())

    def generate(self, token_ids: list[int], **options: Any) -> Iterator[Step]:
        self.requests.append({"token_ids": token_ids, **options})
        if len(token_ids) > 200:
            raise RequestError("the prompt is\ntoo long")
        # Kept, so that only an explicit close ends it early.
        self.stream = self._steps()
        return self.stream

    def _steps(self) -> Iterator[Step]:
        try:
            for piece in self.pieces:
                self.yielded += 1
                yield Step(piece)
        finally:
            self.closed = True


OPTIONS: dict[str, Any] = {"max_new_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 3}


def test_the_engine_gets_tokens_and_options(increment: Problem) -> None:
    engine = FakeEngine(["    return", " x + 1", "\n"])
    completion = complete(EngineGenerator(engine), increment, BaseFormat(), **OPTIONS)
    assert completion.text == "    return x + 1\n"
    assert completion.refusal == ""
    assert engine.requests == [{"token_ids": engine.encode(increment.prompt), **OPTIONS}]


def test_generation_ends_where_the_stop_rule_says(increment: Problem) -> None:
    engine = FakeEngine(["    return x", "\nprint(1)", "\nmore", "\nand more"])
    completion = complete(EngineGenerator(engine), increment, BaseFormat(), **OPTIONS)
    assert completion.text == "    return x\nprint(1)\nmore"
    assert engine.yielded == 3
    assert engine.closed


def test_a_model_without_a_tokenizer_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="no tokenizer"):
        EngineGenerator(SimpleNamespace(tokenizer=None))


def test_any_generator_is_closed_early(increment: Problem) -> None:
    class Kept:
        def generate_text(self, prompt: str, **_: Any) -> Iterator[str]:
            self.stream = self._pieces()
            return self.stream

        def _pieces(self) -> Iterator[str]:
            self.closed = False
            try:
                yield "    return x\nprint(1)\n"
                yield "rest"
            finally:
                self.closed = True

    generator = Kept()
    complete(generator, increment, BaseFormat(), **OPTIONS)
    assert generator.closed


def test_tokens_of_each_completion_are_counted(increment: Problem) -> None:
    generator = EngineGenerator(FakeEngine(["    return x", "\n", "print(1)\n", "never read"]))
    for times in (1, 2):
        completion = complete(generator, increment, BaseFormat(), **OPTIONS)
        assert completion.tokens == 3
        assert completion.seconds > 0
        assert generator.generated_tokens == 3 * times


def test_prompts_of_chat_templates_get_no_second_beginning(increment: Problem) -> None:
    engine = FakeEngine(["    return x\n"])
    complete(EngineGenerator(engine, add_bos=False), increment, BaseFormat(), **OPTIONS)
    assert engine.requests[0]["token_ids"] == list(increment.prompt.encode())


def test_a_prompt_that_is_too_long_is_a_refusal(increment: Problem) -> None:
    long = Problem("Long/0", "#" * 300 + increment.prompt, "f", increment.test, "")
    engine = FakeEngine(["    return x\n"])
    completion = complete(EngineGenerator(engine), long, BaseFormat(), **OPTIONS)
    assert completion.text == ""
    assert completion.refusal == "the prompt is too long"


def test_iterators_without_close_are_fine(increment: Problem) -> None:
    class Plain:
        def generate_text(self, prompt: str, **_: Any) -> Iterator[str]:
            return iter(["    return 1\n", "print(1)\n", "rest\n"])

    assert complete(Plain(), increment, BaseFormat(), **OPTIONS).text == "    return 1\nprint(1)\n"


def test_seeds_differ_between_samples_and_stay_the_same() -> None:
    seeds = {sample_seed(s, p, i) for s in range(4) for p in range(20) for i in range(20)}
    assert len(seeds) == 4 * 20 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(0, 1, 2) == 8703209590962626244


def test_canonical_generator_answers_the_problem_also_where_two_share_a_prompt(increment: Problem) -> None:
    other = Problem("Other/0", increment.prompt, "f", increment.test, "    return 1 + x\n")
    for problem in (increment, other):
        assert (
            complete(CanonicalGenerator(), problem, BaseFormat(), **OPTIONS).text
            == problem.canonical_solution
        )


def test_errors_that_are_no_refusals_pass_through(increment: Problem) -> None:
    class Broken:
        def generate_text(self, prompt: str, **_: Any) -> Iterator[str]:
            yield "    return"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        complete(Broken(), increment, BaseFormat(), **OPTIONS)
