"""Text through an endpoint equals text from the engine behind it, whatever the server does on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from evals.endpoint import client as client_module
from evals.endpoint.client import EndpointClient
from evals.endpoint.generator import EndpointGenerator
from evals.generate import EngineGenerator, complete
from evals.problems import Problem
from evals.prompts import BaseFormat
from infer import Engine
from laneformer.errors import EvaluationError, RequestError
from tests.evals.endpoint.server import (
    KEY,
    MODEL,
    Fault,
    Server,
    breaks_after,
    chunk,
    replies,
    resets,
    serving,
    streams,
    waits_after,
    whole,
)

OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.9, "top_p": 0.95, "seed": 2**62 + 3}


@pytest.fixture
def server(tiny_engine: Engine) -> Iterator[Server]:
    with serving(tiny_engine) as server:
        yield server


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which are not waited for."""
    taken: list[float] = []
    monkeypatch.setattr(client_module, "_sleep", taken.append)
    return taken


def connected(server: Server, **options: Any) -> EndpointGenerator:
    return EndpointGenerator(EndpointClient(server.url, MODEL, timeout_seconds=20), **options)


def text_of(generator: Any, prompt: str = "def f(x):\n", **changes: Any) -> str:
    return "".join(generator.generate_text(prompt, **OPTIONS | changes))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_text_equals_the_engines(server: Server, stream: bool, temperature: float) -> None:
    generator = connected(server, stream=stream)
    generator.check()
    for seed in (1, 2):
        expected = text_of(EngineGenerator(server.engine), temperature=temperature, seed=seed)
        assert len(expected) > 5
        assert text_of(generator, temperature=temperature, seed=seed) == expected
    sent = server.requests[-1]
    assert (sent["path"], sent["seed"], sent["max_tokens"], sent["top_p"]) == ("/v1/completions", 2, 24, 0.95)


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat_endpoint_gets_a_message(server: Server, stream: bool) -> None:
    generator = connected(server, api="chat", stream=stream)
    generator.check()
    assert text_of(generator, "Write f.") == text_of(EngineGenerator(server.engine), "user:Write f.")
    assert server.requests[-1]["messages"] == [{"role": "user", "content": "Write f."}]


def test_usage_is_counted_by_thread_and_streams_do_not_tell(server: Server, increment: Problem) -> None:
    generator = connected(server, stream=False)
    text_of(generator)
    text_of(generator, max_new_tokens=5)
    assert generator.generated_tokens == 29
    elsewhere: list[int | None] = []
    thread = threading.Thread(target=lambda: elsewhere.append(generator.generated_tokens))
    thread.start()
    thread.join()
    assert elsewhere == [0]
    server.faults = [replies(200, {"choices": [{"text": "x"}]})]
    completion = complete(generator, increment, BaseFormat(), **OPTIONS)
    assert (completion.text, completion.tokens) == ("x", None)
    assert generator.generated_tokens is None
    assert connected(server).generated_tokens is None


PROGRAM = "    return x + 1\n\n\nprint(f(1))\n\nprint(f(2))\n" + "# more\n" * 100


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_rule_cuts_stream_and_answer_at_the_same_place(
    scripted_engine: Any, increment: Problem, stream: bool
) -> None:
    options = OPTIONS | {"max_new_tokens": len(PROGRAM)}
    stopped = threading.Event()
    with serving(scripted_engine(PROGRAM)) as server:
        server.faults = [waits_after(len(PROGRAM) // 2, stopped)]
        completion = complete(connected(server, stream=stream), increment, BaseFormat(), **options)
        stopped.set()
        if stream:  # the server meets a closed connection when it goes on
            assert server.closed_early.acquire(timeout=30)
        direct = complete(EngineGenerator(scripted_engine(PROGRAM)), increment, BaseFormat(), **options)
    assert completion.text == direct.text == "    return x + 1\n\n\nprint(f(1))\n"


TEMPORARY: list[Fault] = [
    replies(500, b"<html>oh</html>"),
    replies(429, {"error": {"message": "slow down"}}),
    replies(503, {"error": "loading"}),
    resets,
]


@pytest.mark.parametrize("fault", [*TEMPORARY, breaks_after(0), breaks_after(7), streams({"error": "lost"})])
def test_a_stream_that_breaks_is_asked_for_again(server: Server, pauses: list[float], fault: Fault) -> None:
    expected = text_of(EngineGenerator(server.engine))
    server.faults = [fault, fault]
    assert text_of(connected(server)) == expected
    assert len(server.requests) == 3
    assert len(pauses) == 2 and all(0 < pause < 3 for pause in pauses)


@pytest.mark.parametrize("fault", TEMPORARY)
def test_an_answer_that_fails_is_asked_for_again(server: Server, fault: Fault) -> None:
    server.faults = [fault, fault]
    assert text_of(connected(server, stream=False)) == text_of(EngineGenerator(server.engine))


def test_pauses_grow_and_the_servers_wish_counts(server: Server, pauses: list[float]) -> None:
    busy = replies(429, {}, {"Retry-After": "9"})
    server.faults = [replies(500, {}), busy, replies(500, {}), replies(429, {}, {"Retry-After": "9999"})]
    text_of(connected(server))
    assert pauses[0] < pauses[1] == 9.0
    assert 3 <= pauses[2] <= 5
    assert pauses[3] == 60.0


@pytest.mark.parametrize("stream", [True, False])
def test_endless_failure_is_an_error(server: Server, stream: bool, pauses: list[float]) -> None:
    server.faults = [replies(500, {"error": {"message": "out of\nmemory"}})] * 9
    with pytest.raises(
        EvaluationError, match=r"HTTP 500 \(out of memory\), 6 times in a row; what is finished"
    ):
        text_of(connected(server, stream=stream))
    assert len(server.requests) == 6 and len(pauses) == 5


def test_a_server_that_does_not_repeat_itself_is_not_patched_together(server: Server) -> None:
    server.faults = [streams(chunk("one "), chunk("two")), streams(chunk("one "), chunk("three"))]
    pieces = connected(server).generate_text("p", **OPTIONS)
    assert next(pieces) + next(pieces) == "one two"
    with pytest.raises(EvaluationError, match="answers the same request in another way"):
        next(pieces)


def test_a_silent_server_is_not_waited_for(server: Server) -> None:
    release = threading.Event()

    def silent(handler: Any, body: dict[str, Any]) -> bool:
        release.wait(30)
        return True

    server.faults = [silent]
    generator = EndpointGenerator(EndpointClient(server.url, MODEL, timeout_seconds=0.2), attempts=1)
    with pytest.raises(EvaluationError, match=r"no answer in time \(ReadTimeout\)"):
        text_of(generator)
    release.set()


def test_streams_in_the_wild(server: Server) -> None:
    odd = ["\u2028 \x85 \x0b", "\u00e9\U0001f600", ""]
    role: dict[str, Any] = {"choices": [{"delta": {"role": "assistant", "content": None}}]}
    usage: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": 3}}
    events = [role, *(chunk(text, chat=True) for text in odd), usage, None]
    server.faults = [streams(*events, before=b": comment\r\nevent: ping\r\nid: 1\r\n\r\n")]
    assert text_of(connected(server, api="chat")) == "".join(odd)
    # No [DONE], but a reason why it ends.
    server.faults = [streams(chunk("all", "stop"))]
    assert text_of(connected(server)) == "all"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_prompt_is_no_error_of_the_run(
    server: Server, increment: Problem, stream: bool, status: int
) -> None:
    server.faults = [replies(status, {"error": {"message": "too long: 99 tokens"}})]
    completion = complete(connected(server, stream=stream), increment, BaseFormat(), **OPTIONS)
    assert completion.text == ""
    assert f"HTTP {status} (too long: 99 tokens)" in completion.refusal
    with pytest.raises(RequestError, match="too many"):
        text_of(connected(server, stream=stream), "x" * 5000)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (replies(401, {"error": {"message": "who are you"}}), r"HTTP 401 \(who are you\).*--api-key-env"),
        (replies(403, b""), "HTTP 403: name the environment variable"),
        (
            replies(404, {"error": {"message": "no model"}}),
            r"HTTP 404 \(no model\): is the model called 'tiny'",
        ),
        (replies(400, {"error": {"message": "seed is unknown"}}), r"HTTP 400 \(seed is unknown\)"),
        (replies(301, b"", {"Location": "http://elsewhere/"}), "HTTP 301: it points to http://elsewhere/"),
        (replies(418, b"tea"), r"HTTP 418 \(tea\)"),
        (replies(503, {"error": {"message": "loading model"}}), r"HTTP 503 \(loading model\)$"),
        (resets, "the connection broke"),
    ],
)
def test_the_check_tells_at_once_what_is_wrong(
    server: Server, stream: bool, answer: Fault, message: str
) -> None:
    server.faults = [answer]
    with pytest.raises(EvaluationError, match=message):
        connected(server, stream=stream).check()
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("stream", "answer", "message"),
    [
        (False, replies(200, b"<html>\x1b[31m</html>"), r"not JSON: <html> \[31m</html>"),
        (False, replies(200, b"\xff\xfe"), "not JSON"),
        (False, replies(200, b""), "not JSON: nothing"),
        (False, replies(200, b"[1]"), "answers with a list, expected an object"),
        (False, replies(200, {"choices": []}), "not the shape of /completions"),
        (False, replies(200, {"choices": [{"text": 7}]}), "not the shape of /completions"),
        (False, replies(200, {"choices": [{"text": None}]}), "not the shape of /completions"),
        (False, replies(200, whole("x", 1, chat=True)), "not the shape of /completions"),
        (
            False,
            replies(200, b"this is not gzip", {"Content-Encoding": "gzip"}),
            "encoding that cannot be read",
        ),
        (True, replies(200, whole("x", 1)), "asked for a stream and answered with application/json"),
        (True, streams({"choices": "none"}), "not the shape of /completions"),
        (True, streams({"choices": [{"text": {}}]}), "not the shape of /completions"),
        (True, streams(before=b"data: {half\n\n"), "not JSON: {half"),
        (True, streams(chunk("x")), "the stream broke off"),
        (True, streams({"error": {"message": "no memory"}}), "error in the stream: no memory"),
    ],
)
def test_the_check_refuses_what_is_not_the_protocol(
    server: Server, stream: bool, answer: Fault, message: str
) -> None:
    server.faults = [answer]
    with pytest.raises(EvaluationError, match=message):
        connected(server, stream=stream).check()
    assert len(server.requests) == 1


def test_nobody_at_home_is_told_at_once(pauses: list[float]) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    generator = EndpointGenerator(EndpointClient(f"http://127.0.0.1:{port}/v1", MODEL))
    with pytest.raises(EvaluationError, match=f"http://127.0.0.1:{port}/v1: not reachable"):
        generator.check()
    assert pauses == []


def test_keys_are_sent_and_not_told(server: Server) -> None:
    server.needs_key = True
    with pytest.raises(EvaluationError, match="HTTP 401"):
        connected(server).check()
    EndpointGenerator(EndpointClient(server.url, MODEL, api_key=KEY)).check()
    for key in ("", " ", "a\r\nX: b", "é"):
        with pytest.raises(EvaluationError, match="API key is empty or holds characters"):
            EndpointClient(server.url, MODEL, api_key=key)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000/v1", "no address like"),
        ("ftp://host/v1", "no address like"),
        ("http:///v1", "no address like"),
        ("http://me:secret@host/v1", "must not hold a name or password"),
        ("http://host/v1?key=secret", "must end with the path"),
        ("http://host:99999999/v1", "is no address"),
        ("", "no address like"),
    ],
)
def test_addresses_are_checked(url: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        EndpointClient(url, MODEL)


def test_a_name_that_is_no_text_is_only_an_unknown_model(server: Server) -> None:
    with pytest.raises(EvaluationError, match=r"is the model called 'm\\udcff'"):
        EndpointGenerator(EndpointClient(server.url, "m\udcff")).check()


def test_options_are_checked(server: Server) -> None:
    with pytest.raises(EvaluationError, match="model needs a name"):
        EndpointClient(server.url, "")
    with pytest.raises(EvaluationError, match="request timeout must be 0 to 86400 seconds, found 0"):
        EndpointClient(server.url, MODEL, timeout_seconds=0)
    with pytest.raises(EvaluationError, match="concurrency must be at least 1, found 0"):
        connected(server, concurrency=0)
