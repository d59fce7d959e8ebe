"""Programs that try to pass without being right, or to take or leave more than they may.

``CHEATS`` is the list.  Every program is judged by ``TEST``, and none computes what it asks for: ``f`` is
wrong, unless the program gets at the tests.
"""

from __future__ import annotations

from tests.evals.cheats import bombs, exits, forged, leftovers, objects, patches, readers
from tests.evals.cheats.program import MARK, SECRET, TEST, WRONG, Cheat

__all__ = ["CHEATS", "MARK", "SECRET", "TEST", "WRONG", "Cheat"]

CHEATS = [
    cheat
    for family in (exits, objects, patches, forged, readers, leftovers, bombs)
    for cheat in family.cheats()
]
