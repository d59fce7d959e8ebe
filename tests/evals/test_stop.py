from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.lines import LineTracker
from evals.problems import Problem
from evals.stop import StopRule

PROMPT = 'import math\n\ndef f(x: int) -> int:\n    """\n    >>> f(1)\n    2\n    """\n'
BODY = "    return x + 1\n"


def _read_until_stop(completion: str, prompt: str = PROMPT, entry_point: str = "f") -> str:
    """Feeds line by line, as a stream does; returns what was read."""
    rule = StopRule(prompt, entry_point)
    read = ""
    for line in completion.splitlines(keepends=True):
        read += line
        if rule.finished(read):
            break
    return read


@pytest.mark.parametrize(
    "stop",
    [
        "if __name__ == '__main__':\n",
        "print(f(1))\n",
        "assert f(1) == 2\n",
        "```\n",
        "This function adds one.\n",
        "Note: it adds one\n",
        "f(1) == 2\n",
        "for i in range(3):\n",
        "else: x = 1\n",
        "def f(x: int) -> int:\n",
        "async def f(x):\n",
        "</s>\n",
        "'''\n",
    ],
)
def test_stops_at_what_begins_something_else(stop: str) -> None:
    assert _read_until_stop(BODY + "\n" + stop + "more = 1\n") == BODY + "\n" + stop


@pytest.mark.parametrize(
    "kept",
    [
        "def helper(y):\n    return y\n",
        "async def helper(y):\n    return y\n",
        "@functools.cache\ndef helper(y):\n    return y\n",
        "class Helper:\n    pass\n",
        "import os\nfrom os import path\n",
        "# a comment\n",
        "LIMIT = 3\n",
        "LIMIT: Final[int] = 3\n",
        "a, b = 1, 2\n",
        "(a, b) = [c, d] = 1, 2\n",
        "table['a'].b += 1\n",
        "TABLE = {\n'a': 1,\n}\n",
        "TEXT = '''\nif it looks like code\n```\nprint(1)\n'''\n",
        'TEXT = """a \\""" b\nprint(1)\n"""\n',
        "TOTAL = 1 + \\\n2\n",
        "def fast(x):\n    return x\n",
    ],
)
def test_goes_on_through_what_belongs_to_the_program(kept: str) -> None:
    completion = BODY + "\n\n" + kept
    assert _read_until_stop(completion + "print(1)\nrest\n") == completion + "print(1)\n"


def test_column_zero_inside_of_the_function_is_no_stop() -> None:
    text = "    text = '''\nprint(1)\n'''\n"
    brackets = "    total = sum([\n1,\n])\n"
    completion = text + brackets + "# comment\n    if x \\\n== 3:\n        pass\n" + BODY
    assert _read_until_stop(completion) == completion


@pytest.mark.parametrize("text", ["print(1)\n", "Here is (the function:\n\n", "```python\n"])
def test_does_not_stop_before_the_function_has_a_body(text: str) -> None:
    answer = text + "```python\ndef f(x):\n    '''doc'''\n    return x + 1\n```\n"
    assert _read_until_stop(answer + "It adds one.\n") == answer


def test_docstrings_and_comments_are_no_body() -> None:
    completion = "    # think\n\nprint(1)\ndef f(x):\n    'doc'\n\nprint(2)\ndef f(x): return 3\nprint(3)\n"
    assert _read_until_stop(completion + "rest\n") == completion


def test_incomplete_lines_decide_nothing() -> None:
    rule = StopRule(PROMPT, "f")
    assert not rule.finished(BODY + "print")
    assert not rule.finished(BODY + "print = 3")
    assert not rule.finished(BODY + "print = 3\nprint")
    assert rule.finished(BODY + "print = 3\nprint(3)\n")


def test_a_prompt_without_a_final_newline_goes_on_in_the_first_line() -> None:
    assert _read_until_stop(" return x\nprint(1)\nrest\n", prompt="def f(x):") == " return x\nprint(1)\n"


@given(st.data())
def test_the_answer_does_not_depend_on_how_the_text_arrived(data: st.DataObject) -> None:
    pieces = st.sampled_from(
        [BODY, "'''", '"', "(", ")", "\\\n", "\n", "    ", "# x\n", "print(1)\n", "a = 1\n", "```"]
    )
    text = "".join(data.draw(st.lists(pieces, max_size=25)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    streamed = StopRule(PROMPT, "f")
    for cut in cuts:
        streamed.finished(text[:cut])
    assert streamed.finished(text) == StopRule(PROMPT, "f").finished(text)


@given(st.integers(0, 163), st.sampled_from(["if __name__ == '__main__':\n", "```\n", "print(1)\n"]))
def test_canonical_solutions_are_read_whole(humaneval: list[Problem], number: int, stop: str) -> None:
    problem = humaneval[number]
    completion = problem.canonical_solution.rstrip("\n") + "\n"
    read = _read_until_stop(completion, problem.prompt, problem.entry_point)
    assert read == completion
    longer = completion + stop
    assert _read_until_stop(longer + "rest\n", problem.prompt, problem.entry_point) == longer


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("x = '''", True),
        ("x = '''a'''", False),
        ("x = 'it''s'", False),
        ("x = 'unterminated", False),
        ("x = 'continued \\", True),
        ("x = (  # )", True),
        ("x = '(' + \"[\"", False),
        ("# '''", False),
        ("# \\", False),
        ("x = 1 \\", True),
        ("x = '''\\'''", True),
        ("x = '''\n# ''' + (\n)", False),
    ],
)
def test_line_tracker_knows_where_statements_end(text: str, inside: bool) -> None:
    tracker = LineTracker()
    for line in text.split("\n"):
        tracker.feed(line)
    assert tracker.in_statement is inside
