"""The CUDA back end on a GPU, against numpy on the same rounded weights.

Keys and values are kept in 16 bits, which is most of the difference from numpy; against numpy with the same
rounding, little is left: packets carry 16 bits of mantissa, so a key or value sometimes rounds the other way.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from infer.backends import select_backend
from infer.backends.numpy_backend import NumpyBackend
from infer.engine import Engine
from infer.request import Request
from infer.sampling import Sampler
from infer.weights import open_model
from laneformer.errors import ConfigError, LaneformerError
from tests.golden_cases import CASES, answers
from tests.infer.cuda_kernels import SHAPES, last_logits, shape_config
from tests.infer.rounded import Rounded, rounded_cache
from tests.tiny_models import RandomWeights, tiny_config

cupy = pytest.importorskip("cupy", reason="no CuPy")


def no_gpu() -> str:
    try:
        cupy.cuda.runtime.getDeviceProperties(0)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU: {error}"
    return ""


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(no_gpu()), reason=no_gpu() or "there is one")]


def backend(weights, **options):  # type: ignore[no-untyped-def]
    from infer.backends.cuda_backend import CudaBackend

    return CudaBackend(weights, **options)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with pytest.MonkeyPatch.context() as patch:
        if (
            "LANEFORMER_CACHE" not in os.environ
        ):  # where it is named, compiled kernels are kept for the next run
            patch.setenv("LANEFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def tokens(engine, request: Request) -> list[int]:  # type: ignore[no-untyped-def]
    return [token for token, _ in engine.decode(request)]


def worst(found: np.ndarray, wanted: np.ndarray) -> float:
    assert np.isfinite(found).all()
    return float(np.abs(found - wanted).max())


def torch_bfloat16_error(folder: Path, ids: list[int], exact: np.ndarray) -> float:
    """Error of PyTorch's own bfloat16 forward pass of the same rounded weights."""
    torch = pytest.importorskip("torch")
    from laneformer.pretrained import load_model

    model = load_model(folder, torch.bfloat16)
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0].float().numpy()
    return float(np.abs(logits - exact).max())


@pytest.mark.parametrize("folder", CASES)
def test_golden_cases(folder: Path) -> None:
    weights = Rounded(open_model(folder)[0])
    ids = [int(token) for token in answers(folder)["input_ids"][0]]
    exact = NumpyBackend(weights).logits(ids)
    with rounded_cache():
        same_cache = NumpyBackend(weights).logits(ids)
    one, two = backend(weights, workers_per_lane=1), backend(weights, workers_per_lane=2)
    logits = one.logits(ids)
    error, cache_error = worst(logits, exact), worst(same_cache, exact)
    rest = worst(logits, same_cache)
    print(f"{folder.name}: {error:.2e} of {np.abs(exact).max():.1f}, without the cache's {rest:.2e}")
    assert rest < 0.5 * cache_error
    torch_error = torch_bfloat16_error(folder, ids, exact)
    assert error < torch_error
    # Prompts in chunks, whose products have 16-bit inputs.
    lengths = range(2, len(ids) + 1)
    in_chunks = max(worst(last_logits(one, ids[:length]), exact[length - 1]) for length in lengths)
    print(f"in chunks {in_chunks:.2e}, PyTorch {torch_error:.2e}")
    assert in_chunks < torch_error
    np.testing.assert_array_equal(two.logits(ids), logits)  # to the bit, whatever the number of workers
    request = Request(tuple(ids[:12]), max_new_tokens=20)
    first = list(one.decode(request))
    assert list(one.decode(request)) == first
    same_tokens(list(two.decode(request)), first)
    follows_numpy(weights, request, [token for token, _ in first], 2 * error)


def same_tokens(found: list[tuple[int, float]], wanted: list[tuple[int, float]]) -> None:
    """Equal tokens; log-probabilities are summed over shares of the vocabulary, so their last bits differ."""
    assert [token for token, _ in found] == [token for token, _ in wanted]
    np.testing.assert_allclose([value for _, value in found], [value for _, value in wanted], atol=1e-5)


def follows_numpy(weights, request: Request, found: list[int], error: float) -> None:  # type: ignore[no-untyped-def]
    """Each token is numpy's, given those before, or one whose logit is as close as the measured error."""
    reference = NumpyBackend(weights)
    ids = list(request.token_ids)
    for token in found:
        logits = reference.logits(ids)[-1]
        assert logits.max() - logits[token] <= error
        ids.append(token)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, dtype: str) -> None:
    config = shape_config(name)
    weights = Rounded(RandomWeights(config), dtype)
    ids = [int(token) for token in np.random.default_rng(1).integers(config.vocab_size, size=180)]
    engine = backend(weights)
    with rounded_cache(dtype):
        reference = NumpyBackend(weights)
        wanted = reference.logits(ids)
    exact = NumpyBackend(weights).logits(ids)
    logits = engine.logits(ids)
    scale = float(np.abs(exact).max())
    rest, cache_error = worst(logits, wanted), worst(wanted, exact)
    print(f"{name}, {dtype}: {rest:.2e} of {scale:.1f}, of the cache's rounding {cache_error:.2e}")
    assert rest < cache_error + 1e-3 * scale  # a term left out costs a tenth of the scale or more
    # The same prompt in chunks: 16-bit inputs of products, so less exact than a token alone.
    for length in (2, 3, 9, 10, 17, 66, 128, 129, 130, 131, 180):
        step = next(engine.decode(Request(tuple(ids[:length]), max_new_tokens=1)))
        best = exact[length - 1]
        assert best.max() - best[step[0]] < 0.03 * scale, length


@pytest.mark.parametrize("window", [6, 300])
def test_long_contexts_are_merged_by_shares(window: int) -> None:
    """1,300 positions are 6 runs of blocks: first every worker merges all of them, later each a share."""
    config = shape_config("attention merged by shares", 1300, sliding_window=window)
    weights = Rounded(RandomWeights(config))
    ids = [int(token) for token in np.random.default_rng(3).integers(config.vocab_size, size=1300)]
    engines = [backend(weights, workers_per_lane=workers) for workers in (1, 4)]
    found = [engine.logits(ids) for engine in engines]
    np.testing.assert_array_equal(found[1], found[0])
    exact = NumpyBackend(weights).logits(ids)
    with rounded_cache():
        wanted = NumpyBackend(weights).logits(ids)
    scale, cache_error = float(np.abs(exact).max()), worst(wanted, exact)
    assert worst(found[0], wanted) < cache_error + 1e-3 * scale
    # The same from a prompt in chunks on, whose keys and values other workers wrote.
    request = Request(tuple(ids[:1000]), max_new_tokens=250)
    first = list(engines[0].decode(request))
    same_tokens(list(engines[1].decode(request)), first)
    follows_numpy(weights, request, [token for token, _ in first[:3]], 0.03 * scale)


def test_a_prompt_in_chunks_has_the_same_tokens_for_any_number_of_workers() -> None:
    config = tiny_config(max_position_embeddings=256, hidden_size=64, intermediate_size=128)
    weights = Rounded(RandomWeights(config))
    ids = tuple(int(token) for token in np.random.default_rng(2).integers(config.vocab_size, size=150))
    found = [
        list(backend(weights, workers_per_lane=workers).decode(Request(ids, max_new_tokens=30)))
        for workers in (1, 2, 3, 4)
    ]
    for each in found[1:]:
        same_tokens(each, found[0])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 2.0, "min_p": 0.1},
        {"temperature": 50.0, "top_p": 0.99},
        {"temperature": 0.01, "top_p": 0.9},
        {"temperature": 0.9, "top_p": 0.5, "repetition_penalty": 1.3},
        {"temperature": 1.0, "top_k": 1},
    ],
    ids=str,
)
def test_sampling_is_that_of_the_reference(options: dict[str, float]) -> None:
    weights = Rounded(RandomWeights(tiny_config()))
    engine = backend(weights)
    for seed in range(10):
        request = Request((1, 2, 3 + seed), max_new_tokens=1, seed=seed, **options)  # type: ignore[arg-type]
        [(token, log_probability)] = engine.decode(request)
        logits = engine._arrays["logits"].get().view(np.float32)
        wanted, wanted_log_probability = Sampler(request, len(logits)).choose(logits)
        assert token == wanted
        assert log_probability == pytest.approx(wanted_log_probability, abs=1e-4)


def test_repetition_penalty_and_stops() -> None:
    weights = Rounded(RandomWeights(tiny_config()))
    engine = backend(weights)
    free = tokens(engine, Request((1, 2), max_new_tokens=12))
    stopped = tokens(engine, Request((1, 2), max_new_tokens=12, stop_token_ids=frozenset({free[5]})))
    assert stopped == free[: free.index(free[5]) + 1]
    strict = tokens(engine, Request((1, 2), max_new_tokens=40, repetition_penalty=1000.0))
    assert len(set(strict)) == len(strict)


def test_a_full_context_and_many_requests() -> None:
    config = tiny_config()
    engine = backend(Rounded(RandomWeights(config)))
    full = tokens(engine, Request(tuple(range(10)), max_new_tokens=1000))
    assert len(full) == config.max_position_embeddings - 10
    for length in (1, 63, 5, 40, 2):
        again = tokens(engine, Request(tuple(range(10)), max_new_tokens=length % 20 + 1))
        assert again == full[: len(again)]


def test_cancelling_ends_the_request_and_the_next_one_runs() -> None:
    config = tiny_config(max_position_embeddings=4096)
    engine = Engine.from_backend(backend(Rounded(RandomWeights(config))))
    wanted = [token.token_id for token in engine.generate([1, 2], max_new_tokens=8)]
    for _ in range(5):
        running = engine.generate([1, 2], max_new_tokens=4000)
        assert [next(running).token_id for _ in range(3)] == wanted[:3]
        running.close()
    assert [token.token_id for token in engine.generate([1, 2], max_new_tokens=8)] == wanted


def test_checksums_change_nothing() -> None:
    weights = Rounded(RandomWeights(tiny_config()))
    request = Request((4, 5, 6), max_new_tokens=30)
    plain, checked = backend(weights), backend(weights, checksums=True)
    assert list(checked.decode(request)) == list(plain.decode(request))
    assert list(checked.decode(request)) == list(plain.decode(request))


@pytest.mark.parametrize("prompt_tokens", [1, 2, 400])
def test_a_missing_packet_or_flag_ends_with_worker_layer_and_place(prompt_tokens: int) -> None:
    config = tiny_config(max_position_embeddings=512)
    engine = backend(Rounded(RandomWeights(config)), kernel_changes={"silent_worker": 3}, stall_seconds=0.2)
    start = time.perf_counter()
    for _ in range(2):
        with pytest.raises(LaneformerError, match=r"worker \d+ \(lane \d\), layer \d, waiting .*given up"):
            tokens(engine, Request((1,) * prompt_tokens, max_new_tokens=4))
    print(f"{prompt_tokens} tokens: given up after {time.perf_counter() - start:.1f} s, twice")


def test_lanes_that_wait_for_no_other_leave_a_late_worker_its_tokens() -> None:
    config = tiny_config(
        broadcast_delay=0, use_attention_comm=False, use_mlp_comm=False, lm_head_type="vocab_parallel"
    )
    weights = Rounded(RandomWeights(config))
    request = Request((1, 2), max_new_tokens=20)
    late = backend(weights, kernel_changes={"late_worker": 3}, stall_seconds=2)
    assert tokens(late, request) == tokens(backend(weights), request)


def test_no_token_is_told_of_a_step_that_was_given_up() -> None:
    engine = backend(
        Rounded(RandomWeights(tiny_config())), kernel_changes={"silent_worker": 3}, stall_seconds=0.2
    )
    running = engine.decode(Request((1,), max_new_tokens=4))
    with pytest.raises(LaneformerError, match="given up"):
        next(running)


def test_a_request_after_one_that_was_not_finite_is_answered() -> None:
    config = tiny_config(max_position_embeddings=256)
    weights = Rounded(RandomWeights(config))
    engine = backend(weights)
    wanted = tokens(engine, Request((1, 2, 3), max_new_tokens=5))
    engine._arrays["keys and values"].fill(0xFF)  # NaN in bfloat16, as overflows leave them
    with pytest.raises(LaneformerError, match="not finite"):
        tokens(engine, Request((1, 2, 3), max_new_tokens=5))
    assert tokens(engine, Request((1, 2, 3), max_new_tokens=5)) == wanted


def test_epochs_begin_again_before_they_wrap() -> None:
    engine = backend(Rounded(RandomWeights(tiny_config())))
    request = Request((4, 5, 6), max_new_tokens=10)
    wanted = tokens(engine, request)
    engine._epoch = (1 << 32) - 20
    assert tokens(engine, request) == wanted
    assert engine._epoch < 1000
    assert tokens(engine, request) == wanted


def test_shapes_and_workers_that_do_not_fit_are_refused() -> None:
    weights = Rounded(RandomWeights(tiny_config()))
    with pytest.raises(ConfigError, match="workers per lane must be 1 to 2"):
        backend(weights, workers_per_lane=3)
    with pytest.raises(ConfigError, match="hidden_size in fours"):
        backend(Rounded(RandomWeights(tiny_config(hidden_size=34, head_dim=4))))
    with pytest.raises(
        LaneformerError, match=r"does not fit: weights 0\.00 GB, keys and values .* GB are free"
    ):
        backend(
            Rounded(
                RandomWeights(tiny_config(max_position_embeddings=1 << 24, sliding_layers=(), head_dim=128))
            )
        )


def test_auto_takes_this_gpu_and_says_so_where_it_cannot() -> None:
    weights = Rounded(RandomWeights(tiny_config()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = select_backend("auto")(weights)
    assert chosen.name == "cuda"
    request = Request((1, 2, 3), max_new_tokens=5)
    assert tokens(chosen, request) == tokens(backend(weights), request)
    with pytest.warns(UserWarning, match="H[12]00"):  # 32-bit weights
        assert select_backend("auto")(RandomWeights(tiny_config())).name != "cuda"


def test_bandwidth_is_that_of_a_gpu() -> None:
    assert 1e12 < backend(Rounded(RandomWeights(tiny_config()))).read_bandwidth() < 1e13
