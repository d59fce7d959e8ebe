"""From a problem to the exact text that a model gets, and back from its answer to a program.

    base = BaseFormat(suite.shots())              # text to go on with
    chat = ChatFormat(tokenizer)                  # a question, with the model's own chat template
    base.prompt(problem)

The texts are part of the protocol: docs/evaluation.md shows them, and a test holds them against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from evals.extract import extract_program
from evals.problems import Problem
from evals.stop import FenceRule, MarkerRule, NoRule, Rule, StopRule
from laneformer.errors import EvaluationError, TokenizerError

BEGIN, DONE = "[BEGIN]\n", "[DONE]"
# The text of Austin et al. 2021, section 3.1.
TASK = (
    "You are an expert Python programmer, and here is your task: {description} "
    "Your code should pass these tests:\n\n{tests}\n" + BEGIN
)
COMPLETE = (
    "Complete this Python function. Answer with the whole function, and with the imports that it needs, "
    "in one code block.\n\n```python\n{prompt}\n```"
)
WRITE = (
    "{description}\n\nWrite this in Python, in one code block. The code must pass these tests:\n\n"
    "```python\n{tests}\n```"
)
# What the assistant's answer begins with; the model goes on inside of the code block.
ANSWER = "```python\n"


class PromptFormat(Protocol):
    """One way to ask."""

    name: str
    shots: int
    """Solved examples in every prompt."""
    adds_bos: bool
    """Whether the tokenizer's beginning-of-sequence token goes before the prompt, where it has one."""

    def prompt(self, problem: Problem) -> str:
        """The exact text given to the model."""
        ...

    def rule(self, problem: Problem) -> Rule:
        """When the completion has come to its end."""
        ...

    def program(self, problem: Problem, completion: str) -> str | None:
        """The program to run, the problem's adapter included; None when the completion holds none."""
        ...

    def answer(self, problem: Problem) -> str:
        """The completion that a model which knew the canonical solution would write."""
        ...


class BaseFormat:
    """For models that go on with a text.

    The prompt of a problem that has code to continue is that code as it is; else it is the task in
    the words of the MBPP paper, after ``examples`` in the same words with their solutions.
    """

    name = "base"
    adds_bos = True

    def __init__(self, examples: Sequence[Problem] = ()) -> None:
        self._examples = tuple(examples)
        self.shots = len(self._examples)

    def prompt(self, problem: Problem) -> str:
        """See :class:`PromptFormat`.  EvaluationError for examples before code to continue."""
        if not problem.prompt:
            shown = [_task(example) + self.answer(example) + "\n\n" for example in self._examples]
            return "".join([*shown, _task(problem)])
        if self._examples:
            raise EvaluationError(f"{problem.task_id} is code to continue: its prompt takes no examples")
        return problem.prompt

    def rule(self, problem: Problem) -> Rule:
        """See :class:`PromptFormat`."""
        return StopRule(problem.prompt, problem.entry_point) if problem.prompt else MarkerRule(DONE)

    def program(self, problem: Problem, completion: str) -> str | None:
        """See :class:`PromptFormat`."""
        return _program(problem, completion if problem.prompt else completion.partition(DONE)[0])

    def answer(self, problem: Problem) -> str:
        """See :class:`PromptFormat`."""
        solution = problem.canonical_solution
        return solution if problem.prompt else f"{solution.strip()}\n{DONE}"


class ChatFormat:
    """For models that answer questions: the model's chat template, and the answer's code block begun.

    ``tokenizer`` is a :class:`laneformer.tokenizer.Tokenizer`.  Raises EvaluationError where it has no
    template, or one that cannot be used.
    """

    name = "chat"
    shots = 0
    adds_bos = False  # templates write it themselves

    def __init__(self, tokenizer: Any) -> None:
        self._render: Callable[[Sequence[Mapping[str, str]]], str] = tokenizer.apply_chat_template
        if tokenizer.chat_template is None:
            raise EvaluationError("the model has no chat template: use the prompt format base")
        self._rendered("")

    def prompt(self, problem: Problem) -> str:
        """See :class:`PromptFormat`."""
        return self._rendered(_question(problem)) + ANSWER

    def _rendered(self, question: str) -> str:
        try:
            return self._render([{"role": "user", "content": question}])
        except TokenizerError as error:
            raise EvaluationError(f"{error}: use the prompt format base") from None

    def rule(self, problem: Problem) -> Rule:
        """See :class:`PromptFormat`."""
        return FenceRule()

    def program(self, problem: Problem, completion: str) -> str | None:
        """See :class:`PromptFormat`."""
        return _program(problem, ANSWER + completion)

    def answer(self, problem: Problem) -> str:
        """See :class:`PromptFormat`."""
        return f"{problem.prompt}{problem.canonical_solution}".strip() + "\n```"


class QuestionFormat:
    """The chat format's question alone, for a server that puts it into its model's chat template.

    What the answer begins with is the model's, so the last code block counts, and the model ends it.
    """

    name = "question"
    shots = 0
    adds_bos = True

    def prompt(self, problem: Problem) -> str:
        """See :class:`PromptFormat`."""
        return _question(problem)

    def rule(self, problem: Problem) -> Rule:
        """See :class:`PromptFormat`."""
        return NoRule()

    def program(self, problem: Problem, completion: str) -> str | None:
        """See :class:`PromptFormat`."""
        return _program(problem, completion)

    def answer(self, problem: Problem) -> str:
        """See :class:`PromptFormat`."""
        return f"{ANSWER}{problem.prompt}{problem.canonical_solution}".rstrip() + "\n```"


def _question(problem: Problem) -> str:
    if problem.description:
        return WRITE.format(description=problem.description, tests=_tests(problem))
    return COMPLETE.format(prompt=problem.prompt.strip())


def _task(problem: Problem) -> str:
    return TASK.format(description=problem.description, tests=_tests(problem))


def _tests(problem: Problem) -> str:
    return "\n".join(problem.shown_tests)


def _program(problem: Problem, text: str) -> str | None:
    program = extract_program(problem.prompt, text, problem.entry_point)
    return None if program is None else program + problem.adapter
