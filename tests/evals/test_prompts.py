"""Prompt formats: exact texts, where a completion ends, and which program it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals import prompts
from evals.generate import CanonicalGenerator, complete
from evals.problems import Problem
from evals.prompts import BaseFormat, ChatFormat
from evals.stop import FenceRule, MarkerRule
from evals.suites import load_suite
from laneformer.errors import EvaluationError
from tests.tiny_models import byte_level_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "</{{ message.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
OPTIONS: dict[str, Any] = {"max_new_tokens": 99, "temperature": 0.0, "top_p": 1.0, "seed": 0}


def described(number: int) -> Problem:
    tests = (f"assert add(1) == {number + 1}", f"assert add(2) == {number + 2}")
    code = f"def add(x):\n    return x + {number}\n"
    return Problem(f"MBPP/{number}", "", "add", "", code, f"Write a function to add {number}.", tests)


@pytest.fixture
def chat() -> ChatFormat:
    return ChatFormat(byte_level_tokenizer(TEMPLATE))


def test_a_base_prompt_is_the_code_as_it_is(increment: Problem) -> None:
    assert BaseFormat().prompt(increment) == increment.prompt
    with pytest.raises(EvaluationError, match="takes no examples"):
        BaseFormat([described(2)]).prompt(increment)


def test_a_base_prompt_of_a_description_shows_solved_examples() -> None:
    assert BaseFormat([described(2)]).prompt(described(11)) == (
        "You are an expert Python programmer, and here is your task: Write a function to add 2. "
        "Your code should pass these tests:\n\n"
        "assert add(1) == 3\nassert add(2) == 4\n[BEGIN]\ndef add(x):\n    return x + 2\n[DONE]\n\n"
        "You are an expert Python programmer, and here is your task: Write a function to add 11. "
        "Your code should pass these tests:\n\n"
        "assert add(1) == 12\nassert add(2) == 13\n[BEGIN]\n"
    )
    assert BaseFormat().prompt(described(11)).count("[BEGIN]") == 1


def test_a_chat_prompt_is_the_template_and_the_begun_code_block(chat: ChatFormat, increment: Problem) -> None:
    assert chat.prompt(increment) == (
        "<s><user>Complete this Python function. Answer with the whole function, and with the imports "
        "that it needs, in one code block.\n\n"
        '```python\ndef f(x):\n    """One more than x."""\n```</user><assistant>```python\n'
    )
    assert chat.prompt(described(11)) == (
        "<s><user>Write a function to add 11.\n\nWrite this in Python, in one code block. The code must pass "
        "these tests:\n\n"
        "```python\nassert add(1) == 12\nassert add(2) == 13\n```</user><assistant>```python\n"
    )
    assert not chat.adds_bos and BaseFormat.adds_bos


def test_braces_in_a_problem_are_text(chat: ChatFormat, increment: Problem) -> None:
    braces = Problem("B/0", "def f(x={}):\n    '''{x}'''\n", "f", increment.test, "", "", ())
    assert "def f(x={}):\n    '''{x}'''" in chat.prompt(braces)


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no') }}", "{% if"])
def test_a_model_without_a_usable_template_is_told_at_once(template: str | None) -> None:
    with pytest.raises(EvaluationError, match="use the prompt format base"):
        ChatFormat(byte_level_tokenizer(template))


def test_the_documentation_shows_the_exact_texts() -> None:
    text = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    for shown in (prompts.TASK, prompts.COMPLETE, prompts.WRITE):
        indented = "\n".join(f"    {line}" if line else "" for line in shown.strip().split("\n"))
        assert indented in text, shown


class Written:
    """Writes ``text`` one character at a time."""

    def __init__(self, text: str) -> None:
        self._text = text

    def generate_text(self, prompt: str, **_: Any) -> Iterator[str]:
        yield from self._text


def _completed(prompt_format: Any, problem: Problem, text: str) -> str:
    return complete(Written(text), problem, prompt_format, **OPTIONS).text


def test_completions_end_at_their_marker(chat: ChatFormat, increment: Problem) -> None:
    code = "def add(x):\n    return x + 11\n"
    assert _completed(BaseFormat(), described(11), code + "[DONE]\nmore") == code + "[DONE]"
    assert _completed(chat, increment, code + "```\nIt adds.") == code + "```"
    assert _completed(chat, increment, "s = '''\n```\n'''\n```python") == "s = '''\n```\n'''\n```"
    assert _completed(chat, increment, code + "    ```\n") == code + "    ```"


def test_rules_need_the_whole_marker() -> None:
    assert not MarkerRule("[DONE]").finished("[DONE")
    assert not FenceRule().finished("x = 1  # ``\n``")
    assert not FenceRule().finished("x = '```'")


def _value(program: str | None, call: str = "add(1)") -> Any:
    assert program is not None
    namespace: dict[str, Any] = {}
    exec(compile(program, "<program>", "exec", dont_inherit=True), namespace)
    return eval(call, namespace)


@pytest.mark.parametrize(
    "text",
    [
        "def add(x):\n    return x + 11\n[DONE]\ndef add(x):\n    return None\n",
        "def add(x):\n    return x + 11\n\nYou are an expert Python programmer, and here",
        "Here is the code:\n\nimport math\n\ndef add(x):\n    return math.floor(x) + 11\n\nIt adds.",
        "We need\n\nSCALE = [\n    1,\n]\n@lambda f: f\ndef add(x):\n    return x * SCALE[0] + 11\n",
        "So:\nimport math\n\n\ndef h(x):\n    return math.ceil(x)\n\n\ndef add(x):\n    return h(x) + 11\n",
        "From here on:\nfrom what we know\n\ndef add(x):\n    return x + 11\n\nDone.",
        "```python\ndef add(x):\n    return x + 11\n```\n[DONE]",
        "add = lambda x: x + 11\n[DONE]",
        "def other(x):\n    return x\n\nBut rather:\n\ndef add(x):\n    y = x\n    return y + 11\n",
    ],
)
def test_programs_of_descriptions(text: str) -> None:
    assert _value(BaseFormat().program(described(11), text)) == 12


def test_the_longest_program_is_taken_among_prose() -> None:
    short, long = "def add(x):\n    return 0\n", "def add(x):\n    y = x + 11\n    return y\n"
    for text in (f"One way:\n{short}Or better:\n{long}", f"One way:\n{long}Or shorter:\n{short}"):
        assert _value(BaseFormat().program(described(11), text)) == 12


@pytest.mark.parametrize(
    "text", ["", "no code", "def other(x):\n    return 1\n", "def add(x):\n    '''Adds.'''\n"]
)
def test_no_program(text: str, chat: ChatFormat) -> None:
    assert BaseFormat().program(described(11), text) is None
    assert chat.program(described(11), text) is None


def test_a_chat_answer_goes_on_inside_of_the_code_block(chat: ChatFormat, increment: Problem) -> None:
    whole = "def f(x):\n    return x + 1\n"
    assert _value(chat.program(increment, whole + "```"), "f(1)") == 2
    assert _value(chat.program(increment, whole), "f(1)") == 2  # cut off at the limit
    assert _value(chat.program(increment, "    return x + 1\n```"), "f(1)") == 2  # only the body
    # The last block that defines the function counts.
    again = "def f(x):\n    return 0\n```\nBetter:\n```python\n" + whole + "```"
    assert _value(chat.program(increment, again), "f(1)") == 2


def test_canonical_solutions_keep_their_meaning_in_every_format(
    chat: ChatFormat, humaneval: list[Problem]
) -> None:
    problems = [*humaneval, *load_suite("basics").problems]
    for prompt_format in (BaseFormat(), chat):
        for problem in problems:
            completion = complete(CanonicalGenerator(), problem, prompt_format, **OPTIONS)
            program = prompt_format.program(problem, completion.text)
            assert program is not None, problem.task_id
            whole = ast.parse(problem.prompt + problem.canonical_solution)
            # In a chat answer, what is before the function is there twice.
            assert ast.dump(whole.body[-1]) == ast.dump(ast.parse(program).body[-1]), problem.task_id


def test_the_adapter_comes_after_every_program(chat: ChatFormat) -> None:
    problem = Problem(
        "M/1", "", "add", "", "", "Add.", (), "\ndef run_test_case(number):\n    return add(number)\n"
    )
    for prompt_format in (BaseFormat(), chat):
        program = prompt_format.program(problem, "def add(x):\n    return x + 1\n")
        assert _value(program, "run_test_case(1)") == 2
