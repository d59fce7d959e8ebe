"""The engine file: one file that holds everything needed to generate.

It is a safetensors file, so any safetensors reader can look into it.  The header's ``__metadata__`` has

    format              "laneformer-engine"
    version             "1"
    config              config.json, as text
    dtype               type of the weights: float32, bfloat16, float16, or "mixed"
    source_sha256       hash of the tensors that it was made from (:mod:`infer.export`)
    tokenizer           tokenizer.json, as text (absent where the model has none)
    tokenizer_settings  JSON object: bos_token, eos_token, chat_template, add_bos_token

and the tensors have the names and shapes of a checkpoint.  :mod:`infer.export` writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from laneformer.checkpoint import check_tensors
from laneformer.config import LaneformerConfig
from laneformer.errors import CheckpointError, ConfigError, TokenizerError
from laneformer.json_input import parse_json
from laneformer.parameters import parameter_shapes
from laneformer.tensors import TensorFile
from laneformer.tokenizer import Tokenizer

FORMAT = "laneformer-engine"
VERSION = "1"


class EngineFile:
    """A checked engine file.  Raises :class:`CheckpointError` for a file that is none, damaged or newer."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = TensorFile(self.path)
        self.metadata = self._file.metadata
        _check_format(self.path, self.metadata)
        self.config = self._read_config()
        check_tensors(self.config, {name: self._file.shape(name) for name in self._file.names}, self.path)
        for name in self._file.names:
            self._file.dtype(name)  # an unknown type is an error now, not when it is read
        self.tokenizer = self._read_tokenizer()

    @property
    def names(self) -> list[str]:
        """Names of all tensors, in the order in which a token meets them."""
        return list(parameter_shapes(self.config))

    def dtype(self, name: str) -> str:
        """Stored type of one tensor."""
        return self._file.dtype(name)

    def raw(self, name: str) -> np.ndarray:
        """Stored values, read-only; bfloat16 as uint16."""
        return self._file.raw(name)

    def float32(self, name: str) -> np.ndarray:
        """Values widened to float32; :class:`CheckpointError` for NaN or infinity."""
        return self._file.float32(name)

    def _json(self, key: str) -> dict[str, Any]:
        if key not in self.metadata:
            raise CheckpointError(f"{self.path}: metadata {key!r} is missing")
        return parse_json(self.metadata[key], f"{self.path}: metadata {key!r}", CheckpointError)

    def _read_config(self) -> LaneformerConfig:
        try:
            return LaneformerConfig.from_dict(self._json("config"))
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None

    def _read_tokenizer(self) -> Tokenizer | None:
        if "tokenizer" not in self.metadata:
            return None
        try:
            return Tokenizer.from_text(self.metadata["tokenizer"], self._json("tokenizer_settings"))
        except TokenizerError as error:
            raise TokenizerError(f"{self.path}: {error}") from None


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: a safetensors file, but not an engine file; give the checkpoint folder that it is in, "
            "or make an engine file, under another name: laneformer export FOLDER OUT"
        )
    if metadata.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: engine file version {metadata.get('version')!r}, this software reads "
            f"version {VERSION!r}; export the checkpoint again"
        )
