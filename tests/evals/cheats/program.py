"""What all cheating programs have in common, and how one is written down."""

from __future__ import annotations

from dataclasses import dataclass

SECRET = "the-tests-were-here"
TEST = f'''
SECRET = "{SECRET}"

def check(candidate):
    assert candidate(1) == 2
    assert not candidate(2) != 3
    assert abs(candidate(3) - 4) < 1e-6
    assert candidate(4) in [5]
    assert candidate(5) < 7 and candidate(6) > 6
'''
WRONG = "def f(x):\n    return x\n"
# In the names of files and the arguments of processes that programs leave.
MARK = "6174.2718"


@dataclass(frozen=True)
class Cheat:
    """One program, and the statuses of which it may get any."""

    name: str
    program: str
    statuses: frozenset[str]
    fools_one_process: bool = False
    """Whether it passes where program and tests share an interpreter and its exit code is the verdict."""


def cheat(name: str, program: str, *statuses: str, fools: bool = False) -> Cheat:
    """A :class:`Cheat`; without ``statuses``, it must be ``failed``."""
    return Cheat(name, program, frozenset(statuses or ("failed",)), fools)


def indented(code: str, depth: int = 1) -> str:
    """``code`` as the body of something."""
    return "".join(f"{'    ' * depth}{line}\n" for line in code.splitlines())
