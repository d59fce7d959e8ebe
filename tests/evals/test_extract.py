from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals import extract
from evals.extract import extract_program
from evals.problems import Problem

PROMPT = (
    'import math\n\nLIMIT = 3\n\ndef helper(y):\n    return y\n\n\ndef f(x):\n    """One more than x."""\n'
)
BODY = "    return helper(x) + 1\n"


def _run(completion: str, prompt: str = PROMPT, entry_point: str = "f") -> dict[str, Any]:
    program = extract_program(prompt, completion, entry_point)
    assert program is not None
    namespace: dict[str, Any] = {}
    # Without this file's own __future__ imports, as the sandbox runs it.
    exec(compile(program, "<program>", "exec", dont_inherit=True), namespace)
    return namespace


def test_canonical_solutions_keep_their_meaning(humaneval: list[Problem]) -> None:
    for problem in humaneval:
        program = extract_program(problem.prompt, problem.canonical_solution, problem.entry_point)
        assert program is not None, problem.task_id
        expected = ast.dump(ast.parse(problem.prompt + problem.canonical_solution))
        assert ast.dump(ast.parse(program)) == expected, problem.task_id


@pytest.mark.parametrize(
    "after",
    [
        "",
        "\nprint(f(undefined))\n",
        "\nf(undefined)\n",
        "\nif __name__ == '__main__':\n    f(undefined)\n",
        "\nassert False\n",
        "\nfor x in undefined:\n    pass\n",
        "\nNote: simple\n",
        "\nThis function (as asked) adds one.\n",
        "\n```\n\nIt adds one, as in\n\n```python\nf(undefined)\n```\n",
        "\ndef f(x):\n    return None\n",
        "\ndef f(x):\n    '''cut of",
        "\n@staticmethod\ndef f(x):\n    return None\n",
        "\ndef unfinished(",
        "\nx = '''never closed",
    ],
)
def test_what_follows_cannot_break_the_function(after: str) -> None:
    assert _run(BODY + after)["f"](1) == 2


def test_definitions_imports_and_constants_that_follow_are_kept() -> None:
    helper = "@(lambda function: function)\ndef later(y):\n    return y\n"
    completion = "    return later(x) + ONE\n\nprint(f(1))\n\nimport os\nONE = 1\n\n" + helper
    namespace = _run(completion)
    assert namespace["f"](1) == 2
    assert "os" in namespace


def test_statements_before_the_function_are_kept() -> None:
    namespace = _run("```\nvalues = []\nvalues.append(4)\ndef f(x):\n    return values[0]\n```\n")
    assert namespace["f"](0) == 4


def test_a_cut_completion_keeps_its_whole_lines() -> None:
    assert _run("    y = x + 1\n    return y\n    return helper(")["f"](1) == 2
    assert _run("    y = 2\n    return (y", prompt="def f(x):\n")["f"](1) is None


def test_a_shared_line_is_not_torn_apart() -> None:
    assert _run(BODY + "A = 1; print(A)\n")["A"] == 1


@pytest.mark.parametrize("language", ["", "python", "py title=x"])
@pytest.mark.parametrize("closing", ["```\n\nIt adds one.\n", ""])
def test_a_fenced_answer_gets_the_context_of_the_prompt(language: str, closing: str) -> None:
    answer = f"Here you are:\n\n```{language}\ndef f(x):\n    return helper(x) + LIMIT\n{closing}"
    assert _run(answer)["f"](1) == 4


def test_the_last_fenced_definition_wins() -> None:
    first = "```python\ndef f(x):\n    return 1\n```\nBetter:\n"
    second = "```python\ndef f(x):\n    return 2\n```\nUsage:\n```python\nprint(f(1))\n```\n"
    assert _run(first + second)["f"](0) == 2


def test_fenced_blocks_may_be_indented_or_hold_only_a_body() -> None:
    assert _run("1. So:\n   ```python\n   def f(x):\n       return 5\n   ```\n")["f"](0) == 5
    assert _run("```python\n    return 6\n```\n")["f"](0) == 6


def test_a_completion_that_began_inside_of_a_fence() -> None:
    completion = BODY + "```\nA longer way:\n```python\ndef f(x):\n    return 7\n```\n"
    assert _run(completion)["f"](0) == 7


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "\n\n",
        "    # nothing\n",
        "    pass\n",
        "    ...\n",
        "    'text'\n",
        "I cannot do that.\n",
        "def g():\n    pass\n",
    ],
)
def test_no_body_is_no_program(completion: str) -> None:
    assert extract_program(PROMPT, completion, "f") is None


@pytest.mark.parametrize("completion", ["    return '\0'\n", "    return " + "(" * 5000 + "\n", "\0" * 50])
def test_text_that_the_parser_cannot_read_is_no_program(completion: str) -> None:
    assert extract_program(PROMPT, completion, "f") is None


_LINES = st.sampled_from(
    [
        "    return 1",
        "    if x:",
        "        y = (1,",
        "        2)",
        "    try:",
        "        pass",
        "    except ValueError:",
        "    z = '''",
        "'''",
        "    else:",
        "",
        "def g(",
        "    a, b):",
        "    return )",
        "print('a' 'b'",
        "  bad indent",
        "text that is prose",
        "    match x:",
        "        case 1:",
        "            x = 2",
        "    w = 'open",
        "@decorated",
        "class A:",
        "    f'{x!z}'",
        "    a = b = \\",
        "    lambda: (yield)",
        "    x == 1 = 2",
    ]
)


@given(st.lists(_LINES, max_size=14))
@settings(max_examples=400, deadline=None)
def test_no_longer_prefix_parses(lines: list[str]) -> None:
    """The search skips prefixes by the line of the error; trying them all must give the same."""
    longest = None
    for count in range(len(lines), 0, -1):
        source = PROMPT + "\n".join(lines[:count]) + "\n"
        try:
            ast.parse(source)
        except SyntaxError:
            continue
        longest = extract_program(PROMPT, "\n".join(lines[:count]), "f")
        break
    assert extract_program(PROMPT, "\n".join(lines), "f") == longest


@pytest.mark.parametrize(
    "text",
    ["x = (\n" * 500, "def f(x): (\n" * 500, "import os\n" * 1000, "import os\n" * 1000 + "def f(x):\n"],
)
def test_endless_repetition_is_not_parsed_from_every_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    monkeypatch.setattr(
        extract, "_parse", lambda source, parse=extract._parse: parsed.append(1) or parse(source)
    )
    assert extract_program("", "So f is\n" + text, "f") is None
    assert len(parsed) < 5000
