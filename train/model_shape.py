"""The shape of the model to train: the run's ``model`` section made to fit the tokenizer."""

from __future__ import annotations

from laneformer.config import LaneformerConfig
from laneformer.errors import ConfigError
from laneformer.tokenizer import Tokenizer
from train.config import TrainConfig


def model_config(config: TrainConfig, tokenizer: Tokenizer) -> LaneformerConfig:
    """Keys of a config.json; ``vocab_size`` and special token ids come from the tokenizer unless given.

    Raises :class:`ConfigError` for a shape that makes no sense or a context shorter than the sequences.
    """
    values = dict(config.model)
    if values.get("vocab_size") is None:
        values["vocab_size"] = tokenizer.vocab_size
    for name, token_id in (("bos_token_id", tokenizer.bos_id), ("eos_token_id", tokenizer.eos_id)):
        if values.get(name) is None:
            values[name] = token_id
    shape = LaneformerConfig.from_dict(values)
    tokenizer.check_fits(shape.vocab_size)
    if config.sequence_length > shape.max_position_embeddings:
        raise ConfigError(
            f"sequence_length ({config.sequence_length}) exceeds the model's max_position_embeddings "
            f"({shape.max_position_embeddings})"
        )
    return shape
