"""From a completion to a program.

The last fenced block that defines the function is the program, after the prompt's imports and helpers.
Without one, it is the prompt and the longest run of whole lines from the completion's beginning that parses
and gives the function a body; and where the completion does not go on from the prompt, the longest such run
that begins anywhere, again after the prompt's imports and helpers.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings

_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*$", re.MULTILINE)
# A model that repeats itself without end would otherwise cost minutes.
_MOST_DEFINITIONS = 16
_MOST_TRIES = 16
_KEPT_STATEMENTS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AugAssign,
)


def extract_program(prompt: str, completion: str, entry_point: str) -> str | None:
    """The program in ``completion``, or None when it does not give ``entry_point`` a body.

    Top-level statements after the function that are no definitions, imports or assignments (a test
    call, a print) are left out: they could break an otherwise right answer.  So are second
    definitions of the function, which the stop rule would not have let begin.
    """
    blocks = _fenced_blocks(completion)
    context = _context(prompt, entry_point)
    for block in reversed(blocks):
        program = _longest_program(context, _dedented(block), entry_point)
        if program is not None:
            return program
    for text in (completion, *reversed(blocks)):
        program = _longest_program(prompt, text, entry_point)
        if program is not None:
            return program
    return _longest_span(context, completion, entry_point)


def _longest_span(context: str, completion: str, entry_point: str) -> str | None:
    """The longest program around one of the function's definitions, wherever that stands."""
    definition = re.compile(
        rf"(?:async\s+def|def)\s+{re.escape(entry_point)}\b|{re.escape(entry_point)}\s*=[^=]"
    )
    lines = completion.split("\n")
    best: str | None = None
    found = [number for number, line in enumerate(lines) if definition.match(line)]
    for number in found[:_MOST_DEFINITIONS]:
        before = "".join(f"{line}\n" for line in lines[_beginning(lines, number) : number])
        program = _longest_program(context + before, "\n".join(lines[number:]), entry_point)
        if program is not None and (best is None or len(program) > len(best)):
            best = program
    return best


def _beginning(lines: list[str], definition: int) -> int:
    """The first of the lines right before ``definition`` that are statements of a program, without a gap."""
    beginning, tries = definition, 0
    for number in range(definition - 1, -1, -1):
        line = lines[number]
        if not line.strip() or line[0].isspace():
            continue  # the inside of a statement, or nothing
        # A decorator belongs to what it decorates.
        stub = "\ndef decorated(): pass" if line.startswith("@") and beginning == definition else ""
        tree = _parse("\n".join(lines[number:beginning]) + stub)
        tries += 1
        if isinstance(tree, ast.Module) and all(map(_may_follow, tree.body)):
            beginning, tries = number, 0
        elif tries == _MOST_TRIES:  # more than the last lines of one statement
            break
    return beginning


def _fenced_blocks(completion: str) -> list[str]:
    """The insides of ``` blocks, in order; the last may be cut off, without its closing fence."""
    blocks: list[str] = []
    begin: int | None = None
    for fence in _FENCE.finditer(completion):
        if begin is not None:
            blocks.append(completion[begin : fence.start()])
        # A fence that names a language opens a block, also when one seems to be open: the
        # completion may have begun inside of one.
        opens = begin is None or bool(fence.group(1))
        begin = fence.end() + 1 if opens else None
    if begin is not None:
        blocks.append(completion[begin:])
    return blocks


def _dedented(block: str) -> str:
    """Without the indentation of the list or quotation that the block stands in."""
    if any(line and not line[0].isspace() for line in block.split("\n")):
        return block  # textwrap would still change lines of blanks, which may be in a string
    return textwrap.dedent(block)


def _context(prompt: str, entry_point: str) -> str:
    """The prompt without the open definition at its end: imports, constants and helpers."""
    head = re.search(rf"^(?:@.*\n)*(?:async\s+)?def\s+{re.escape(entry_point)}\b", prompt, re.MULTILINE)
    return prompt if head is None else prompt[: head.start()]


def _parse(source: str) -> ast.Module | SyntaxError | None:
    """The tree, the error that says where it stops to be Python, or None when it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            return ast.parse(source)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError):
        return None


def _longest_program(prefix: str, text: str, entry_point: str) -> str | None:
    lines = text.split("\n")
    prefix_lines = prefix.count("\n")
    count = len(lines)
    while count > 0:
        source = prefix + "\n".join(lines[:count]) + "\n"
        tree = _parse(source)
        if isinstance(tree, ast.Module):
            return _pruned(source, tree, entry_point)
        count -= 1
        if isinstance(tree, SyntaxError) and tree.lineno is not None:
            # What includes the line of the error is in error as well.
            count = min(count, tree.lineno - prefix_lines - 1)
    return None


def _has_body(node: ast.stmt, entry_point: str) -> bool:
    """Whether ``node`` defines the function with more than a docstring, ``pass`` or ``...``."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        return any(isinstance(target, ast.Name) and target.id == entry_point for target in node.targets)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name != entry_point:
        return False
    return not all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in node.body
    )


def _may_follow(node: ast.stmt) -> bool:
    """Whether ``node`` belongs to a program when it stands after the function."""
    if isinstance(node, ast.AnnAssign):
        return node.value is not None  # Without one it is prose: "Note: ..." parses as an annotation.
    return isinstance(node, _KEPT_STATEMENTS)


def _pruned(source: str, tree: ast.Module, entry_point: str) -> str | None:
    """``source`` without the statements that must not follow the function; None without a body."""
    complete = False
    dropped: set[int] = set()
    kept: set[int] = set()
    for node in tree.body:
        redefined = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == entry_point
        decorators = getattr(node, "decorator_list", [])
        start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        span = range(start, (node.end_lineno or node.lineno) + 1)
        if complete and (redefined or not _may_follow(node)):
            dropped.update(span)
        else:
            kept.update(span)
        complete = complete or _has_body(node, entry_point)
    if not complete:
        return None
    # A line shared by both sorts of statements (``x = 1; print(x)``) stays.
    lines = source.split("\n")
    return "\n".join(line for number, line in enumerate(lines, start=1) if number not in dropped - kept)
