"""An OpenAI-compatible server around an ``infer.Engine``, and ways in which servers fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

from infer import Engine

MODEL = "tiny"
KEY = "secret-1"
# Takes the handler and the request's body; True where it has answered.
Fault = Callable[["Handler", dict[str, Any]], bool]


class Server(ThreadingHTTPServer):
    """Serves ``engine``; ``faults`` are tried first, one a request, in order."""

    daemon_threads = True

    def __init__(self, engine: Engine) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine = engine
        self.faults: list[Fault] = []
        self.requests: list[dict[str, Any]] = []
        self.closed_early = threading.Semaphore(0)  # released for each stream that the client closed
        self.lock = threading.Lock()
        self.engine_lock = threading.Lock()  # an engine answers one request at a time
        self.needs_key = False
        self.together: threading.Barrier | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Closed connections are what these tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append({"path": self.path, **body})
            fault = self.server.faults.pop(0) if self.server.faults else None
        if fault is not None and fault(self, body):
            return
        if self.server.needs_key and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.reply(401, {"error": {"message": "no valid key"}})
        elif self.path not in ("/v1/completions", "/v1/chat/completions"):
            self.reply(404, {"detail": "Not Found"})
        elif body["model"] != MODEL:
            self.reply(404, {"error": {"message": f"no model {body['model']}"}})
        else:
            if self.server.together is not None:
                self.server.together.wait(30)
            self.answer(body, chat="chat" in self.path)

    def answer(self, body: dict[str, Any], *, chat: bool) -> None:
        engine = self.server.engine
        assert engine.tokenizer is not None
        # A chat template of one word, so that tests see that the server applied it.
        prompt = f"user:{body['messages'][0]['content']}" if chat else body["prompt"]
        ids = engine.tokenizer.encode(prompt)
        if len(ids) >= engine.config.max_position_embeddings:
            self.reply(400, {"error": {"message": f"{len(ids)} tokens are too many"}})
            return
        steps = engine.generate(
            ids,
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_p=body["top_p"],
            seed=body["seed"],
        )
        if body.get("stream"):
            self.begin_stream()
            try:
                for step in self.locked(steps):
                    self.event(chunk(step.text, step.finish_reason, chat=chat))
                self.event(None)
            except OSError:
                self.server.closed_early.release()
            finally:
                steps.close()
            return
        answer = list(self.locked(steps))
        text = "".join(step.text for step in answer)
        self.reply(200, whole(text, len(answer), chat=chat))

    def locked(self, steps: Iterator[Any]) -> Iterator[Any]:
        with self.server.engine_lock:
            yield from steps

    def reply(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self, headers: dict[str, str] | None = None) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, value: Any) -> None:
        data = "[DONE]" if value is None else json.dumps(value, ensure_ascii=False)
        self.wfile.write(f"data: {data}\n\n".encode("utf-8", "replace"))


def chunk(text: str, finish_reason: str | None = None, *, chat: bool = False) -> dict[str, Any]:
    content = {"delta": {"content": text}} if chat else {"text": text}
    return {"choices": [{"index": 0, "finish_reason": finish_reason, **content}]}


def whole(text: str, tokens: int, *, chat: bool = False) -> dict[str, Any]:
    content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"choices": [{"index": 0, **content}], "usage": {"completion_tokens": tokens}}


@contextmanager
def serving(engine: Engine) -> Iterator[Server]:
    server = Server(engine)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def replies(status: int, answer: Any, headers: dict[str, str] | None = None) -> Fault:
    """A fault that is one answer."""

    def fault(handler: Handler, body: dict[str, Any]) -> bool:
        handler.reply(status, answer, headers)
        return True

    return fault


def resets(handler: Handler, body: dict[str, Any]) -> bool:
    """Closes the connection without an answer."""
    handler.close_connection = True
    return True


def streams(*events: Any, before: bytes = b"") -> Fault:
    """A fault that is a stream of ``events``, and then the end of the connection."""

    def fault(handler: Handler, body: dict[str, Any]) -> bool:
        handler.begin_stream()
        handler.wfile.write(before)
        for event in events:
            handler.event(event)
        return True

    return fault


def before_pieces(act: Callable[[int], None]) -> Fault:
    """The engine's own stream, with ``act(number)`` before each piece is written."""

    def fault(handler: Handler, body: dict[str, Any]) -> bool:
        numbers = count()
        write = handler.event

        def event(value: Any) -> None:
            act(next(numbers))
            write(value)

        handler.event = event  # type: ignore[method-assign]
        return False

    return fault


def breaks_after(pieces: int) -> Fault:
    """The engine's own stream, broken off after so many pieces."""

    def act(number: int) -> None:
        if number == pieces:
            raise OSError

    return before_pieces(act)


def waits_after(pieces: int, event: threading.Event) -> Fault:
    """The engine's own stream, which goes on after so many pieces when ``event`` comes."""

    def act(number: int) -> None:
        if number >= pieces:
            assert event.wait(30)

    return before_pieces(act)
