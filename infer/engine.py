"""The engine: a model, a back end that runs it, and one request at a time.

engine = Engine("model.laneformer")                     # an engine file or a checkpoint folder
for token in engine.generate(engine.tokenizer.encode("def add"), max_new_tokens=64):
    print(token.text, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from infer.backends import Backend, select_backend
from infer.output_text import OutputText
from infer.request import Request, check_token_ids, check_unicode, whole_numbers
from infer.weights import open_model
from laneformer.config import LaneformerConfig
from laneformer.errors import RequestError
from laneformer.tokenizer import Tokenizer

# A text, a token id, or several token ids in a row.
Stop = str | int | Sequence[int]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class GeneratedToken:
    """One generated token.

    ``text`` is what can be shown now: it may be empty or belong to earlier tokens, since half characters
    and beginnings of stop strings are held back; all texts joined are the answer.  ``logprob`` is the
    log-softmax, in nats, of the model's raw logits at ``token_id``, before penalty, temperature and
    truncation.  ``finish_reason`` is set on the last token: ``"stop"`` for an end-of-text token or a
    stop sequence, ``"length"`` where the token limit or the end of the context was reached.
    """

    token_id: int
    text: str
    logprob: float
    finish_reason: FinishReason | None = None


class Engine:
    """Answers one request at a time for one model.

    ``backend`` is the back end and ``backend_name`` its name; ``tokenizer`` is None where the model has
    none, and the engine then works on token ids only.  Raises :class:`CheckpointError`, :class:`ConfigError`,
    :class:`TokenizerError` for a model that cannot be read, :class:`RequestError` for an unknown back end.
    """

    def __init__(self, path: str | Path, backend: str = "auto") -> None:
        build = select_backend(backend)  # before the model: a mistyped name is told at once
        weights, tokenizer = open_model(path)
        self._attach(build(weights), tokenizer)

    @classmethod
    def from_backend(cls, backend: Backend, tokenizer: Tokenizer | None = None) -> Engine:
        """An engine around a back end that was made elsewhere, such as a model in training."""
        engine = cls.__new__(cls)
        engine._attach(backend, tokenizer)
        return engine

    def _attach(self, backend: Backend, tokenizer: Tokenizer | None) -> None:
        if tokenizer is not None:
            tokenizer.check_fits(backend.config.vocab_size)
        self.backend = backend
        self.backend_name: str = backend.name
        self.config: LaneformerConfig = backend.config
        self.tokenizer = tokenizer

    def logits(self, token_ids: Iterable[int]) -> np.ndarray:
        """Logits of every position, float32 ``[sequence, vocab]``.  Raises :class:`RequestError`."""
        ids = whole_numbers("token ids", token_ids)
        check_token_ids(ids, self.config)
        return self.backend.logits(ids)

    def generate(
        self,
        token_ids: Iterable[int],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: Stop | Iterable[Stop] = (),
    ) -> Generator[GeneratedToken, None, None]:
        """Tokens as they are generated; see :mod:`infer.sampling` for what the parameters do.

        ``stop`` takes texts, token ids and sequences of token ids; neither they nor an end-of-text token
        show in the text.  Raises :class:`RequestError` for a bad request now, not at the first token.
        Closing the iterator cancels the request.
        """
        strings, sequences = self._stops(stop)
        request = Request(
            token_ids=tuple(whole_numbers("token ids", token_ids)),
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop_token_ids=frozenset(ids[0] for ids in sequences if len(ids) == 1),
        )
        request.check_fits(self.config)
        return self._run(request, OutputText(self.tokenizer, strings, sequences))

    def _run(self, request: Request, output: OutputText) -> Generator[GeneratedToken, None, None]:
        limit = request.new_token_limit(self.config)
        with closing(self.backend.decode(request)) as tokens:  # closing is how a back end is cancelled
            for count, (token_id, logprob) in enumerate(tokens, start=1):
                text, stopped = output.push(token_id)
                if count == limit and not stopped:
                    rest, stopped = output.finish()
                    text += rest
                reason: FinishReason | None = "stop" if stopped else "length" if count == limit else None
                yield GeneratedToken(token_id, text, logprob, reason)
                if reason is not None:
                    return
        if limit > 0:
            raise RuntimeError(f"back end {self.backend_name} ended before {limit} tokens or a stop token")

    def _stops(self, stop: Stop | Iterable[Stop]) -> tuple[list[str], list[tuple[int, ...]]]:
        """Stop strings, and stop sequences of token ids, those of the model among them."""
        strings: list[str] = []
        sequences: list[tuple[int, ...]] = [(token_id,) for token_id in self._end_of_text_ids()]
        for entry in (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else stop:
            if isinstance(entry, str):
                check_unicode("stop", entry)
                strings.append(entry)
            elif isinstance(entry, Iterable):
                sequences.append(whole_numbers("stop", entry))
            else:
                sequences.append(whole_numbers("stop", (entry,)))
        if "" in strings or () in sequences:
            raise RequestError("stop: an empty text or sequence would match everywhere; leave it out")
        if strings and self.tokenizer is None:
            raise RequestError(
                f"stop text {strings[0]!r} needs a tokenizer, and this model has none; give token ids"
            )
        return strings, sequences

    def _end_of_text_ids(self) -> set[int]:
        """Ids that config.json or the tokenizer call the end of a text."""
        ids = set(self.config.eos_token_ids)
        if self.tokenizer is not None and self.tokenizer.eos_id is not None:
            ids.add(self.tokenizer.eos_id)
        return ids
