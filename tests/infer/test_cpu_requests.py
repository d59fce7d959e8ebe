"""What happens to a request on the CPU back end: cancelling, deadlines, stalls, several at once."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from infer.backends.cpu_backend import CpuBackend
from infer.engine import Engine
from infer.request import Request
from laneformer.errors import ConfigError, LaneformerError
from tests.tiny_models import RandomWeights, tiny_config

LONG = Request((1, 2, 3), max_new_tokens=100_000)


def weights(context: int = 64) -> RandomWeights:
    return RandomWeights(tiny_config(max_position_embeddings=context))


def tokens(backend: CpuBackend, request: Request) -> list[int]:
    return [token_id for token_id, _ in backend.decode(request)]


def test_closing_the_iterator_cancels() -> None:
    backend = CpuBackend(weights(context=200_000))
    stream = backend.decode(LONG)
    first = [next(stream)[0] for _ in range(3)]
    start = time.monotonic()
    stream.close()
    assert time.monotonic() - start < 5
    assert tokens(backend, Request((1, 2, 3), max_new_tokens=3)) == first


def test_an_iterator_that_nobody_holds_is_cancelled() -> None:
    backend = CpuBackend(weights(context=200_000))
    next(backend.decode(LONG))
    gc.collect()
    assert len(tokens(backend, Request((1, 2, 3), max_new_tokens=3))) == 3


def test_a_second_request_waits_for_the_first() -> None:
    backend = CpuBackend(weights())
    request, other = Request((1, 2, 3), max_new_tokens=20), Request((7, 8), max_new_tokens=20)
    alone = tokens(backend, request), tokens(backend, other)
    first, second = backend.decode(request), backend.decode(other)
    pairs = list(zip(first, second, strict=True))  # in turn
    assert ([a for (a, _), _ in pairs], [b for _, (b, _) in pairs]) == alone


def test_requests_of_several_threads() -> None:
    backend = CpuBackend(weights(), workers_per_lane=2)
    requests = [Request((seed + 1,), 30, temperature=1.0, seed=seed) for seed in range(8)]
    expected = [tokens(backend, request) for request in requests]
    found: dict[int, list[int]] = {}

    def run(seed: int) -> None:
        found[seed] = tokens(backend, requests[seed])

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[seed] for seed in range(8)] == expected


def test_a_worker_that_stays_silent_is_named() -> None:
    backend = CpuBackend(weights(), workers_per_lane=2, threads=2, stall_seconds=0.2)
    expected = tokens(backend, Request((1, 2, 3), max_new_tokens=5))
    backend._silent_worker = 5  # of lane 2
    start = time.monotonic()
    with pytest.raises(LaneformerError, match=r"worker \d \(lane 2\) .* worker 5 in layer 0, phase append"):
        tokens(backend, Request((1, 2, 3), max_new_tokens=5))
    assert time.monotonic() - start < 10
    backend._silent_worker = -1
    assert tokens(backend, Request((1, 2, 3), max_new_tokens=5)) == expected


def test_a_deadline_ends_a_request() -> None:
    backend = CpuBackend(weights(context=200_000), deadline_seconds=0.3)
    start = time.monotonic()
    with pytest.raises(LaneformerError, match=r"deadline of 0.3 s passed after \d+ tokens"):
        tokens(backend, LONG)
    assert time.monotonic() - start < 10
    assert len(tokens(backend, Request((1, 2, 3), max_new_tokens=3))) == 3


def test_a_deadline_ends_a_request_in_which_someone_is_silent() -> None:
    backend = CpuBackend(weights(), workers_per_lane=2, threads=2, deadline_seconds=0.2)
    backend._silent_worker = 3
    with pytest.raises(LaneformerError, match="deadline"):
        tokens(backend, Request((1, 2, 3), max_new_tokens=5))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(temperature: float) -> None:
    huge = weights()
    huge.tensors["lm_head.weight"] *= np.float32(1e38)
    backend = CpuBackend(huge)
    with pytest.raises(LaneformerError, match="logits are not finite"):
        tokens(backend, Request((1, 2, 3), max_new_tokens=5, temperature=temperature))


def test_more_workers_than_cores_do_not_crawl() -> None:
    backend = CpuBackend(weights(), workers_per_lane=5)
    assert len(backend.plan.workers) == 20
    many = CpuBackend(weights(), workers_per_lane=5, threads=20)
    request = Request((1, 2, 3), max_new_tokens=60)
    for each in (backend, many):
        start = time.monotonic()
        assert len(tokens(each, request)) == 60
        assert time.monotonic() - start < 20


def test_engines_come_and_go() -> None:
    before = threading.active_count()
    model = weights()
    expected = tokens(CpuBackend(model), Request((1, 2, 3), max_new_tokens=3))
    for _ in range(20):
        assert tokens(CpuBackend(model), Request((1, 2, 3), max_new_tokens=3)) == expected
    assert threading.active_count() == before


def test_the_engine_runs_on_it(checkpoint: Path) -> None:
    engine = Engine(checkpoint, backend="cpu")
    reference = Engine(checkpoint, backend="numpy")
    ids = engine.tokenizer.encode("he")
    found, expected = (list(e.generate(ids, max_new_tokens=20)) for e in (engine, reference))
    assert [(t.token_id, t.text, t.finish_reason) for t in found] == [
        (t.token_id, t.text, t.finish_reason) for t in expected
    ]
    assert engine.backend_name == "cpu"


FORKED = """
import multiprocessing, sys
from infer.backends.cpu_backend import CpuBackend
from infer.request import Request
from tests.tiny_models import RandomWeights, tiny_config

backend = CpuBackend(RandomWeights(tiny_config()))
request = Request((1, 2, 3), max_new_tokens=5)

def tokens(_=None):
    return [token_id for token_id, _ in backend.decode(request)]

here = tokens()
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.map(tokens, [0]) == [here]
next(backend.decode(request))  # left open at exit
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_bandwidth_is_measured() -> None:
    assert CpuBackend(weights()).read_bandwidth(megabytes=20, rounds=2) > 1e8


def test_context_beyond_all_reason_is_refused() -> None:
    weights = RandomWeights(tiny_config(max_position_embeddings=10**12))
    with pytest.raises(ConfigError, match="exceeds the 2097152 positions of the cpu back end"):
        CpuBackend(weights)
