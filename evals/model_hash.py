"""Which model it was: a hash of the files that decide what a model writes.

model_sha256(Path("model.laneformer"))      # an engine file: everything is in it
model_sha256(Path("checkpoints/mine"))      # a folder: weights, configuration, tokenizer

A path does not tell: a later checkpoint is often saved over an earlier one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from laneformer.errors import EvaluationError

# The index says which of the weight files count; the tokenizer's settings say whether BOS comes first and,
# where no file of its own does, what the chat template is.
_FOLDER_PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def model_sha256(path: Path) -> str:
    """SHA-256, in hex, of an engine file's bytes or of the names and bytes of a checkpoint's files.

    The bytes, not the ``source_sha256`` of an engine file: two exports of one checkpoint in different
    types share that and do not write the same.  Raises EvaluationError when a file cannot be read.
    """
    try:
        if not path.is_dir():
            return _file_sha256(path)
        files = sorted({file for pattern in _FOLDER_PATTERNS for file in path.glob(pattern)})
        hashes = [(file.name, _file_sha256(file)) for file in files]
    except OSError as error:
        raise EvaluationError(f"the model {path} cannot be read: {error}") from None
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # in chunks
