"""1,640 completions of HumanEval's problems whose verdicts are not in doubt, the same at every call.

    samples = make_samples(problems)
    samples[3].kind, samples[3].completion      # "mutant: comparison", "    for ..."

Ten for each problem: its own solution, the same without comments and in another layout, mutants of it, and
broken ones.  A mutant has one place of its syntax tree changed; some still pass, as they should.

What a busy machine, or luck, could decide is left out when the set is made, by counting, not by a clock:
a mutant that runs more lines of Python than ``_LINES``, or four times the solution's own, might meet a time
limit on a slow machine, and is not taken.  Broken ones that never end are few, and end nowhere.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import hashlib
import io
import json
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from evals.problems import Problem

PER_PROBLEM = 10
_MUTANTS = 6
_LINES = 200_000
_ENDLESS_EVERY = 41  # one of so many problems has a completion that never ends: each costs its time limit
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True)
class Made:
    """One completion and how it came about."""

    task_id: str
    sample: int
    kind: str
    completion: str


def make_samples(problems: list[Problem]) -> list[Made]:
    """Ten completions of each of ``problems``, in order."""
    return [sample for number, problem in enumerate(problems) for sample in _of_problem(number, problem)]


def fingerprint(samples: list[Made]) -> str:
    """SHA-256 over all samples."""
    return hashlib.sha256(json.dumps([asdict(sample) for sample in samples]).encode()).hexdigest()


def _of_problem(number: int, problem: Problem) -> list[Made]:
    found = [("canonical", problem.canonical_solution), ("reformatted", _completion(_tree(problem), problem))]
    found += _mutants(problem)
    broken = _broken(problem)
    if number % _ENDLESS_EVERY == 0:
        found.append(("broken: endless", "    while True:\n        pass\n"))
    turn = number
    while len(found) < PER_PROBLEM:  # also in place of mutants that a short solution does not have
        found.append(broken[turn % len(broken)])
        turn += 1
    return [Made(problem.task_id, index, kind, text) for index, (kind, text) in enumerate(found)]


def _broken(problem: Problem) -> list[tuple[str, str]]:
    solution = problem.canonical_solution
    cut = solution.rstrip()[: max(1, len(solution.rstrip()) // 2)]
    texts = {
        "syntax error": solution + "    return (\n",
        "wrong name": "    return no_such_name\n",
        "raises": "    raise ValueError('cannot do this')\n",
        "returns None": "    return None\n",
        "empty": "    pass\n",
        "prose": "The function should first check its arguments.\n",
        "returns itself": f"    return {problem.entry_point}\n",
        "recursion": f"    return {problem.entry_point}(*locals().values())\n",
        "exit": "    import sys\n    sys.exit(0)\n",
        "hard exit": "    import os\n    os._exit(0)\n",
        "interrupt": "    raise KeyboardInterrupt\n",
        "wrong function": "    pass\n\n\ndel " + problem.entry_point + "\n",
        "two answers": solution + f"\n\ndef {problem.entry_point}(*arguments):\n    return []\n",
        "too many arguments": f"    pass\n\n\ndef {problem.entry_point}(a, b, c, d, e, f):\n    return a\n",
        "odd object": "    return object()\n",
        "prints": "    print('passed')\n",
        "division": "    return 1 // 0\n",
        "assertion": "    assert False, 'no'\n",
        "indentation": solution.replace("    ", "   ", 1),
        "cut": cut,
        "constant": "    return 42\n",
        "string": "    return 'answer'\n",
        "list": "    return [0]\n",
        "true": "    return True\n",
        "missing module": "    import no_such_module\n",
    }
    return [(f"broken: {kind}", text) for kind, text in texts.items()]


def _tree(problem: Problem) -> ast.Module:
    return ast.parse(problem.prompt + problem.canonical_solution)


def _function(tree: ast.Module, problem: Problem) -> tuple[int, ast.FunctionDef]:
    """Where the entry point is defined: the last definition of that name."""
    for index, node in reversed(list(enumerate(tree.body))):
        if isinstance(node, ast.FunctionDef) and node.name == problem.entry_point:
            return index, node
    raise ValueError(f"{problem.task_id} does not define {problem.entry_point}")


def _completion(tree: ast.Module, problem: Problem) -> str:
    """What follows the prompt, so that the program is ``tree``."""
    index, function = _function(tree, problem)
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    inner = "\n".join(ast.unparse(statement) for statement in body or [ast.Pass()])
    text = "".join(f"    {line}\n" for line in inner.splitlines())
    return text + "".join(f"\n\n{ast.unparse(node)}\n" for node in tree.body[index + 1 :])


def _mutants(problem: Problem) -> list[tuple[str, str]]:
    """Up to six different changes that end soon."""
    original = _tree(problem)
    allowed = max(_LINES, 4 * (_count_lines(problem, problem.canonical_solution, 100 * _LINES) or 0))
    changes = len(list(_changes(_function(original, problem)[1])))
    order = list(range(changes))
    random.Random(f"mutants of {problem.task_id}").shuffle(order)
    seen = {_completion(original, problem)}
    found: list[tuple[str, str]] = []
    for place in order:
        tree = copy.deepcopy(original)
        kind, change = list(_changes(_function(tree, problem)[1]))[place]
        change()
        text = _completion(ast.fix_missing_locations(tree), problem)
        if text in seen:
            continue
        seen.add(text)
        if _count_lines(problem, text, allowed) is not None:
            found.append((f"mutant: {kind}", text))
        if len(found) == _MUTANTS:
            break
    return found


Change = tuple[str, Callable[[], None]]


def _changes(function: ast.FunctionDef) -> Iterator[Change]:
    """Every change that can be made to ``function``, in the order of its tree."""
    documented = ast.get_docstring(function) is not None
    for statement in function.body[1:] if documented else function.body:
        for node in ast.walk(statement):
            yield from _changes_of(node)
    for node in ast.walk(function):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield from _dropped(
                    block, keep=1 if node is function and documented and name == "body" else 0
                )


def _changes_of(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[operator]):
            for other in _COMPARISONS.get(type(operator), ()):
                yield "comparison", lambda other=other: setattr(node, "ops", [other()])
        case ast.Constant(value=bool(value)):
            yield "constant", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield "off by one", lambda: setattr(node, "value", value + 1)
            yield "off by one", lambda: setattr(node, "value", value - 1)
        case ast.Constant(value=str(value)):
            yield "constant", lambda: setattr(node, "value", value[1:] if value else "x")
        case ast.BinOp(left=left, right=right, op=operator):
            if type(operator) in _OPERATORS:
                yield "operator", lambda: setattr(node, "op", _OPERATORS[type(operator)]())
            if not isinstance(operator, (ast.Add, ast.Mult, ast.Pow)):
                yield "swapped operands", lambda: _swap(node, left, right)
        case ast.BoolOp(op=operator):
            other_operator = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "boolean", lambda: setattr(node, "op", other_operator)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield "condition", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr() as value):
            yield "return", lambda: setattr(node, "value", ast.Tuple([value], ast.Load()))
        case ast.Call(args=[first, second, *rest]):
            yield "swapped arguments", lambda: setattr(node, "args", [second, first, *rest])


def _swap(node: ast.BinOp, left: ast.expr, right: ast.expr) -> None:
    node.left, node.right = right, left


def _dropped(block: list[Any], keep: int) -> Iterator[Change]:
    for index in range(keep, len(block)):
        if isinstance(block[index], ast.stmt):
            yield "dropped statement", lambda index=index: block.__setitem__(index, ast.Pass())


class _TooLongError(BaseException):
    """Not an Exception, so that no program catches it."""


def _count_lines(problem: Problem, completion: str, most: int) -> int | None:
    """Lines of Python that run until the verdict; None where they are more than ``most``.

    A loop on one line counts once; ``ast.unparse`` writes none.
    """
    count = 0

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        if count > most:
            raise _TooLongError
        return trace

    text = f"{problem.prompt}{completion}\n{problem.test}\ncheck({problem.entry_point})"
    try:
        code = compile(text, problem.task_id, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()):
            sys.settrace(trace)
            try:
                exec(code, {})
            finally:
                sys.settrace(None)
    except _TooLongError:
        return None
    except BaseException:
        pass  # A wrong answer is a verdict as well.
    return count
