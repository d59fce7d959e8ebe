"""The CUDA soak's own logic, on back ends that need no GPU: what it counts, and what it catches."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infer.backends.cuda_backend import check_workers, most_workers
from infer.backends.numpy_backend import NumpyBackend
from infer.request import Request
from infer.weights import Weights
from laneformer.errors import LaneformerError
from tests import soak_cuda
from tests.infer.fake_cuda import Machine
from tests.soak_cuda import Engine, Model, Soak
from tests.tiny_models import RandomWeights, tiny_config


class Numpy:
    """The numpy back end with a fault after three tokens."""

    def __init__(self, weights: Weights, fault: str = "") -> None:
        self._backend, self._fault = NumpyBackend(weights), fault

    def decode(self, request: Request) -> Iterator[tuple[int, float]]:
        for place, (token, log_probability) in enumerate(self._backend.decode(request)):
            if place > 2 and self._fault == "wrong":
                token = (token + 1) % 320
            if place > 2 and self._fault == "stall":
                raise LaneformerError("worker 3 (lane 1), layer 2, waiting for the token: waited too long")
            if place > 2 and self._fault == "short":
                return
            yield token, log_probability


@pytest.fixture
def weights() -> Weights:
    return RandomWeights(tiny_config(max_position_embeddings=24))


def soak(weights: Weights, first: str = "", second: str = "", requests: int = 60) -> Soak:
    engines = [Engine("first", False, Numpy(weights, first)), Engine("second", True, Numpy(weights, second))]
    done = Soak([Model("tiny", weights, engines)], seed=1)
    for _ in range(requests):
        done.run_one()
    return done


def test_right_answers_are_counted(weights: Weights) -> None:
    done = soak(weights)
    assert not done.failed and done.failures == []
    assert done.counts["requests"] == 60
    assert 10 <= done.counts["with_checksums"] <= 30
    assert done.counts["cancelled"] > 5 and done.counts["numpy_tokens"] > 5
    assert done.counts["tokens"] > 200 and done.running_seconds > 0
    assert done.numpy_records["tiny"] <= soak_cuda.NUMPY_RECORDS


def test_a_wrong_token_of_another_engine_is_caught(weights: Weights) -> None:
    done = soak(weights, second="wrong")
    assert done.failed and done.counts["mismatches"] > 0
    assert "tiny, second: differs at 3 of" in done.failures[0]


def test_an_engine_that_is_wrong_in_the_same_way_each_time_is_caught_by_numpy(weights: Weights) -> None:
    done = soak(weights, first="wrong", second="wrong")
    assert any("numpy differs" in failure for failure in done.failures)


def test_requests_that_are_given_up_and_answers_that_are_short(weights: Weights) -> None:
    given_up = soak(weights, second="stall")
    assert given_up.counts["hangs"] > 0 and "second: worker 3 (lane 1)" in given_up.failures[0]
    short = soak(weights, first="short", requests=5)
    assert short.counts["mismatches"] > 0 and "3 tokens" in short.failures[0]


def test_a_request_that_does_not_end_is_told(weights: Weights) -> None:
    done = soak(weights, requests=1)
    told: list[int] = []
    done.began = time.monotonic()
    soak_cuda.watch(done, lambda: told.append(done.counts["hangs"]), hang_seconds=0.05)
    assert told == [1] and "did not end in 0.05 seconds" in done.failures[0]


def test_pieces_add_up(weights: Weights, tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    first, second = soak(weights, requests=10), soak(weights, second="wrong")
    about: dict[str, Any] = {"date": "2026-01-01", "seed": 1}
    soak_cuda.add_piece(path, soak_cuda.piece(first, about))
    total = soak_cuda.add_piece(path, soak_cuda.piece(second, about))
    written = json.loads(path.read_text())
    assert [piece["date"] for piece in written["pieces"]] == ["2026-01-01"] * 2
    assert written["total"] == total and "seed" not in total
    assert total["requests"] == 70
    assert total["tokens"] == first.counts["tokens"] + second.counts["tokens"]
    assert total["mismatches"] == second.counts["mismatches"] > 0


def test_models_are_compiled_for_the_back_ends_that_use_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LANEFORMER_CACHE", str(tmp_path))
    Machine().install(monkeypatch)
    monkeypatch.setattr(soak_cuda, "SOAK", {"tiny": (tiny_config(), "float16")})
    monkeypatch.setattr(soak_cuda, "FEW_WORKERS", 1)
    (model,) = soak_cuda.cuda_models()
    found = [(each.label, each.checksums, each.backend.kernel.float16) for each in model.engines]
    assert found == [
        ("2 workers", False, True),
        ("2 workers, checksums", True, True),
        ("1 workers", False, True),
        ("1 workers, checksums", True, True),
    ]
    assert len(list((tmp_path / "compiled").iterdir())) == 4  # the back ends compiled nothing of their own


def test_the_command_writes_its_piece_and_fails_where_answers_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LANEFORMER_CACHE", str(tmp_path / "cache"))
    Machine().install(monkeypatch)  # its kernels answer nothing
    monkeypatch.setattr(soak_cuda, "SOAK", {"tiny": (tiny_config(), "bfloat16")})
    monkeypatch.setattr(soak_cuda, "FEW_WORKERS", 1)
    path = tmp_path / "soak.json"
    monkeypatch.setattr("sys.argv", ["soak_cuda.py", "--seconds", "0.1", "--seed", "5", "--json", str(path)])
    assert soak_cuda.main() == 1
    (piece,) = json.loads(path.read_text())["pieces"]
    assert piece["gpu"] == "NVIDIA H200" and piece["requests"] > 0
    assert piece["mismatches"] + piece["hangs"] == piece["requests"]
    assert piece["command"] == "python tests/soak_cuda.py --seconds 0.1 --seed 5"
    assert str(tmp_path) not in path.read_text()


def test_a_run_that_is_ended_early_writes_its_piece(
    weights: Weights, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engines = [Engine("first", False, Numpy(weights)), Engine("second", True, Numpy(weights))]
    model = Model("tiny", weights, engines)
    Machine().install(monkeypatch)
    monkeypatch.setattr(soak_cuda, "cuda_models", lambda: [model])
    path = tmp_path / "soak.json"
    monkeypatch.setattr("sys.argv", ["soak_cuda.py", "--seconds", "600", "--json", str(path)])
    before = signal.getsignal(signal.SIGTERM)
    run_one, requests = Soak.run_one, itertools.count(1)

    def run_one_of_five(soak: Soak) -> None:
        run_one(soak)
        if next(requests) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Soak, "run_one", run_one_of_five)
    try:
        assert soak_cuda.main() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    (piece,) = json.loads(path.read_text())["pieces"]
    assert piece["requests"] == 5 and piece["failures"] == []


def test_the_models_are_of_shapes_that_the_kernel_takes() -> None:
    for config, _ in soak_cuda.SOAK.values():
        assert most_workers(config, 132) > soak_cuda.FEW_WORKERS
        check_workers(config, soak_cuda.FEW_WORKERS, 132)
