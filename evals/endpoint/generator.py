"""Samples from an endpoint, as :class:`evals.generate.Generator` wants them.

generator = EndpointGenerator(EndpointClient("http://localhost:8000/v1", "my-model"))
generator.check()                                       # one token, before anything starts
for piece in generator.generate_text("def add(a, b):\\n", max_new_tokens=64, ...):
    ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Literal

from evals.endpoint.client import ATTEMPTS, Answer, EndpointClient, TemporaryError, patiently
from laneformer.errors import EvaluationError, RequestError

Api = Literal["completions", "chat"]
_PATHS: dict[Api, str] = {"completions": "completions", "chat": "chat/completions"}


class EndpointGenerator:
    """Asks for text through ``/completions`` or, with ``api="chat"``, as one user message through
    ``/chat/completions``, where the server applies its model's chat template.

    With ``stream``, pieces come as the server writes them, and closing the iterator closes the connection.
    Without, the whole answer is waited for and then told character by character, so that a stop rule cuts
    it where it would have cut the stream.  ``generate_text`` may run in ``concurrency`` threads at once.
    """

    def __init__(
        self,
        client: EndpointClient,
        *,
        api: Api = "completions",
        stream: bool = True,
        concurrency: int = 1,
        attempts: int = ATTEMPTS,
    ) -> None:
        if concurrency < 1:
            raise EvaluationError(f"concurrency must be at least 1, found {concurrency}")
        self.concurrency = concurrency
        self._client = client
        self._api: Api = api
        self._stream = stream
        self._attempts = attempts
        self._counts = threading.local()
        # Until an answer comes without a count.  A stream's comes at its end, and a stop rule often before.
        self._counting = not stream

    @property
    def generated_tokens(self) -> int | None:
        """Tokens of all answers that the calling thread has got, as the server counts them.

        None where it does not tell, and for streams.
        """
        return getattr(self._counts, "tokens", 0) if self._counting else None

    def check(self, *, temperature: float = 0.0, top_p: float = 1.0) -> None:
        """Asks for one token.  EvaluationError where that does not work, so that no run begins in vain."""
        once = EndpointGenerator(self._client, api=self._api, stream=self._stream, attempts=1)
        options = {"max_new_tokens": 1, "temperature": temperature, "top_p": top_p, "seed": 0}
        try:
            for _ in once.generate_text("def add(a, b):\n", **options):  # type: ignore[arg-type]
                pass
        except RequestError as error:
            raise EvaluationError(f"{self._client.url}: {error}") from None
        self._counting = once._counting

    def generate_text(
        self, prompt: str, *, max_new_tokens: int, temperature: float, top_p: float, seed: int
    ) -> Iterator[str]:
        """See :class:`evals.generate.Generator`.

        Raises RequestError for a prompt that the server refuses, EvaluationError where it cannot be
        reached, fails again and again, or does not speak the protocol.
        """
        body: dict[str, Any] = {
            "max_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
        }
        if self._api == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        return self._streamed(body) if self._stream else self._whole(body)

    def _whole(self, body: dict[str, Any]) -> Iterator[str]:
        answer = self._patiently(lambda: self._client.answer(_PATHS[self._api], body))
        text = self._text(answer, "message")
        self._count(answer)
        yield from text

    def _streamed(self, body: dict[str, Any]) -> Iterator[str]:
        """Pieces of text.  Where a stream breaks, the request is sent again, and what came is passed over."""
        told = ""
        stream: Generator[dict[str, Any], None, None] | None = None
        seen = ""  # of the present stream

        def next_piece() -> str | None:
            nonlocal stream, seen
            if stream is None:
                stream, seen = self._client.events(_PATHS[self._api], body), ""
            try:
                for event in stream:
                    seen += self._text(event, "delta")
                    if not (seen.startswith(told) or told.startswith(seen)):
                        raise EvaluationError(
                            f"{self._client.url}: a stream broke, and the server answers the same request in "
                            "another way than before; the same command with --output continues, and with "
                            "--no-stream a broken answer is asked for anew"
                        )
                    if len(seen) > len(told):
                        return seen[len(told) :]
            except TemporaryError:
                stream = None
                raise
            return None

        try:
            while (piece := self._patiently(next_piece)) is not None:
                told += piece
                yield piece
        finally:
            if stream is not None:
                stream.close()

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        return patiently(ask, self._client.url, attempts=self._attempts)

    def _text(self, answer: Mapping[str, Any], message: str) -> str:
        """The text in an answer or event; ``message`` is what the chat API calls its holder there."""
        try:
            if message == "delta" and answer["choices"] == []:
                return ""  # an event about the usage
            choice = answer["choices"][0]
            text: Any = choice[message].get("content") if self._api == "chat" else choice["text"]
            if message == "delta" and text is None:
                return ""  # an event about the role
            if isinstance(text, str):
                return text
        except (LookupError, TypeError, AttributeError):
            pass
        path = _PATHS[self._api]
        raise EvaluationError(
            f"{self._client.url}: the answer has not the shape of /{path}: {str(dict(answer))[:200]}"
        )

    def _count(self, answer: Mapping[str, Any]) -> None:
        usage = answer.get("usage")
        count = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            self._counts.tokens = getattr(self._counts, "tokens", 0) + count
        else:
            self._counting = False
