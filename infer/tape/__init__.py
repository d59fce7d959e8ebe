"""The weight tape: for every worker of a plan its weights in one run, in the order in which it uses them.

with open_tape(weights, plan) as tape:
    tape.bytes            # the mapped file
    tape.index.pages      # where each page lies
"""

from infer.tape.cache import cache_folder, open_tape
from infer.tape.index import TapeIndex, TapePage
from infer.tape.tape_file import Tape, write_tape
from infer.tape.tiles import TileIndex

__all__ = ["Tape", "TapeIndex", "TapePage", "TileIndex", "cache_folder", "open_tape", "write_tape"]
