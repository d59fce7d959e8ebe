"""Errors that a user can fix.

Every one of them means: the input is wrong, nothing was lost, here is what was found, what was
expected and what to do.  The command line prints the message on one line, without a traceback, and
exits with code 2; anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations


class LaneformerError(Exception):
    """Base of all errors caused by an input: a file, a configuration, a request."""


class ConfigError(LaneformerError):
    """A model or run configuration that does not make sense."""


class CheckpointError(LaneformerError):
    """A checkpoint folder or engine file that is missing, damaged or of another shape."""


class TokenizerError(LaneformerError):
    """A tokenizer that is missing, unreadable or does not fit the checkpoint."""


class DataError(LaneformerError):
    """A data source or token shard that is missing, empty or damaged."""


class RequestError(LaneformerError):
    """A generation request that the model cannot serve: bad token ids, prompt too long, ..."""


class EvaluationError(LaneformerError):
    """An evaluation that cannot give a right number: missing problems, too few samples, ..."""


class TrainingError(LaneformerError):
    """A run that cannot start, resume or go on: other data, another model, weights that diverged."""
