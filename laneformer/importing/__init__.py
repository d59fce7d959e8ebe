"""Dense models of the Llama family, turned into Laneformer checkpoints without changing what they compute.

    laneformer import SOURCE OUT --lanes 3

A source is a Hugging Face folder or a GGUF file.  It is read one tensor at a time, so memory stays near
the largest tensor; what cannot be kept exactly is refused by name.  See ``docs/importing.md``.

Importable without torch; ``gguf`` is imported when a GGUF file is read.
"""

from __future__ import annotations

from laneformer.importing.convert import IMPORT_DTYPES, KEEP, ImportSummary, import_checkpoint

__all__ = ["IMPORT_DTYPES", "KEEP", "ImportSummary", "import_checkpoint"]
