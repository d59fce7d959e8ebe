"""Requests to an OpenAI-compatible endpoint: patient where a server stumbles, plain where it refuses.

    client = EndpointClient("http://localhost:8000/v1", "my-model")
    client.answer("completions", {"prompt": "def add(", "max_tokens": 16})       # the whole answer
    for event in client.events("completions", {"prompt": "def add(", "max_tokens": 16}):
        ...                                                                      # piece by piece

Errors come in three kinds.  :class:`TemporaryError`: the server was not reached, broke off, is busy or
failed; asking again may help.  RequestError: it refuses this request (HTTP 400, 413, 422).  EvaluationError:
no request can succeed (no such model, a wrong key, an answer that is not the protocol's).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import httpx

from laneformer.errors import EvaluationError, RequestError

ATTEMPTS = 6
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_CONNECT_SECONDS = 20.0
_BUSY_OR_BROKEN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_REFUSED = {400, 413, 422}
_END_OF_STREAM = b"[DONE]"

Answer = TypeVar("Answer")
_sleep = time.sleep  # tests replace it


class TemporaryError(Exception):
    """What asking again may cure; ``pause_seconds`` is how long the server wants to be left alone."""

    def __init__(self, message: str, pause_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.pause_seconds = pause_seconds


class EndpointClient:
    """One model at one address.  Callable from several threads at once.

    ``url`` ends before ``/completions``, usually with ``/v1``.  ``timeout_seconds`` is how long the server
    may stay silent within one request.  Raises EvaluationError for an address that is none.
    """

    def __init__(
        self, url: str, model: str, *, api_key: str | None = None, timeout_seconds: float = 600.0
    ) -> None:
        self.url = _checked_url(url)
        self.model = model
        if not model:
            raise EvaluationError("the endpoint's model needs a name")
        if not 0 < timeout_seconds <= 86_400:
            raise EvaluationError(
                f"the request timeout must be 0 to 86400 seconds, found {timeout_seconds:g}"
            )
        headers = {"User-Agent": "laneformer-evaluate"}
        if api_key is not None:
            # Into a header goes what cannot begin another.
            if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
                raise EvaluationError("the API key is empty or holds characters that no key has")
            headers["Authorization"] = f"Bearer {api_key}"
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, _CONNECT_SECONDS)),
            limits=httpx.Limits(max_connections=None),  # the caller's threads are the limit
        )

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one request and returns its answer, a JSON object."""
        with _translated(self.url):
            response = self._client.send(self._request(path, body))
            self._check_status(response)
        return self._object(response.content)

    def events(self, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Sends one request and yields the JSON objects of its event stream as they come.

        Closing the iterator closes the connection, by which servers know that the rest is not wanted.
        TemporaryError where the stream ends before it says that it does.
        """
        request = self._request(path, {"stream": True, **body})
        with _translated(self.url):
            response = self._client.send(request, stream=True)
        with closing(response):
            with _translated(self.url):
                if response.status_code != 200:
                    response.read()
                self._check_status(response)
                kind = response.headers.get("content-type", "no content type")
                if not kind.startswith("text/event-stream"):
                    raise EvaluationError(
                        f"{self.url} was asked for a stream and answered with {_start(kind)}: "
                        "give --no-stream"
                    )
            yield from self._stream_events(response)

    def _request(self, path: str, body: Mapping[str, Any]) -> httpx.Request:
        # In ASCII, for a name from the command line may hold what UTF-8 cannot.
        content = json.dumps({"model": self.model, **body}).encode("ascii")
        headers = {"Content-Type": "application/json"}
        return self._client.build_request("POST", f"{self.url}/{path}", content=content, headers=headers)

    def _stream_events(self, response: httpx.Response) -> Iterator[dict[str, Any]]:
        ended = False
        for line in self._lines(response):
            field, _, data = line.partition(b":")
            if field != b"data":  # comments that keep the connection open, names of events, empty lines
                continue
            if data.strip() == _END_OF_STREAM:
                return
            event = self._object(data)
            if event.get("error"):
                raise TemporaryError(f"the server reports an error in the stream: {_message(event)}")
            ended = ended or _says_why_it_ends(event)
            yield event
        if not ended:  # some servers close without the line that ends a stream
            raise TemporaryError("the stream broke off")

    def _lines(self, response: httpx.Response) -> Iterator[bytes]:
        # Not iter_lines(), which also splits at U+2028 and the like inside of the JSON.
        rest = b""
        parts = response.iter_bytes()
        while True:
            with _translated(self.url):
                part = next(parts, None)
            if part is None:
                return
            *lines, rest = (rest + part).split(b"\n")
            yield from lines

    def _check_status(self, response: httpx.Response) -> None:
        status = response.status_code
        if status == 200:
            return
        said = _said(response)
        if status in _BUSY_OR_BROKEN:
            raise TemporaryError(f"HTTP {status}{said}", _retry_after(response))
        if status in _REFUSED:
            raise RequestError(f"the endpoint refuses the request: HTTP {status}{said}")
        hint = ""
        if status in (401, 403):
            hint = ": name the environment variable that holds a valid key with --api-key-env"
        elif status == 404:
            hint = f": is the model called {self.model!r}, and does the address end like .../v1?"
        elif 300 <= status < 400:
            hint = f": it points to {_start(response.headers.get('location', 'nowhere'))}"
        raise EvaluationError(f"{self.url} answers with HTTP {status}{said}{hint}")

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            said = _start(data.decode(errors="replace")) or "nothing"
            raise EvaluationError(f"{self.url} answers with what is not JSON: {said}") from None
        if not isinstance(answer, dict):
            raise EvaluationError(f"{self.url} answers with a {type(answer).__name__}, expected an object")
        return answer


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """The exceptions of the HTTP library as ours."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise TemporaryError(f"no answer in time ({type(error).__name__})") from None
    except httpx.ConnectError as error:
        raise TemporaryError(f"not reachable ({error})") from None
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise EvaluationError(f"{url} is no address: {error}") from None
    except httpx.DecodingError as error:
        raise EvaluationError(f"{url} answers in an encoding that cannot be read: {error}") from None
    except httpx.HTTPError as error:
        raise TemporaryError(f"the connection broke ({error or type(error).__name__})") from None


def patiently(
    ask: Callable[[], Answer],
    url: str,
    *,
    attempts: int = ATTEMPTS,
) -> Answer:
    """``ask()``, again after growing pauses while it fails for a time.

    A server that names a pause gets it, up to a minute.  EvaluationError after ``attempts``.
    """
    for attempt in range(1, attempts + 1):
        try:
            return ask()
        except TemporaryError as error:
            if attempt == attempts:
                again = (
                    f", {attempts} times in a row; what is finished is kept, and the same command with "
                    "--output continues"
                )
                raise EvaluationError(f"{url}: {error}{again if attempts > 1 else ''}") from None
            # Spread, so that requests that failed together do not come back together.
            own_pause = _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
            _sleep(min(_LONGEST_PAUSE_SECONDS, max(own_pause, error.pause_seconds)))
    raise ValueError(f"attempts must be at least 1, found {attempts}")


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise EvaluationError(f"--url {url!r} is no address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise EvaluationError(f"--url {url!r} is no address like http://localhost:8000/v1")
    if parsed.port is not None and not 0 < parsed.port < 65_536:
        raise EvaluationError(f"--url {url!r} is no address: there is no port {parsed.port}")
    if parsed.userinfo:
        # It would be written into the run folder.
        raise EvaluationError("--url must not hold a name or password: give a key with --api-key-env")
    if parsed.query or parsed.fragment:
        raise EvaluationError(f"--url {url!r} must end with the path, usually /v1")
    return url.rstrip("/")


def _says_why_it_ends(event: Mapping[str, Any]) -> bool:
    choices = event.get("choices")
    if not isinstance(choices, list):
        return False
    return any(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks for; 0 where it does not, or names a date."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else 0.0


def _said(response: httpx.Response) -> str:
    """What the server says about its refusal."""
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return f" ({_start(response.text)})" if response.text.strip() else ""
    return f" ({_message(answer)})"


def _message(answer: Any) -> str:
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message", error) if isinstance(error, dict) else error
    return _start(message if isinstance(message, str) else json.dumps(message))


def _start(text: str) -> str:
    """The beginning of what a stranger wrote, fit for one line of a terminal."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[:1000]).split())
    return line if len(line) <= 200 else f"{line[:200]}..."
