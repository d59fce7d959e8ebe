"""The CUDA kernel itself, played on a processor: see ``played.py``.

Whatever the order in which threads run, tokens and logits are the same to the bit, and right.  What this
cannot show is what depends on a GPU's memory: writes that are seen late, and fences that are missing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infer.backends import cuda_backend
from infer.backends.cuda_compile import kernel_sources
from infer.backends.cuda_device import Device
from infer.backends.numpy_backend import NumpyBackend
from infer.export import write_engine_file
from infer.request import Request
from laneformer import cli
from laneformer.config import LaneformerConfig
from laneformer.errors import LaneformerError
from tests.infer.cuda_kernels import SHAPES, last_logits, shape_config
from tests.infer.played import PlayedMachine, without_assembly
from tests.infer.rounded import Rounded, rounded_cache
from tests.sanitize_cuda import BARRIER
from tests.tiny_models import RandomWeights, tiny_config

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

STALL_SECONDS = 60.0  # a processor plays some thousand threads
CLOSE = 0.03  # of the largest logit: a prompt in chunks has 16-bit inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are compiled, and tapes packed, once."""
    return tmp_path_factory.mktemp("played")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[PlayedMachine]:
    monkeypatch.setenv("LANEFORMER_CACHE", str(folder))
    played = PlayedMachine()
    played.play_on(monkeypatch, folder)
    yield played


def engine(config: LaneformerConfig, **options: Any) -> cuda_backend.CudaBackend:
    weights = Rounded(RandomWeights(config))
    options = {"workers_per_lane": 2, "stall_seconds": STALL_SECONDS} | options
    return cuda_backend.CudaBackend(weights, **options)


def some_ids(config: LaneformerConfig, count: int) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(1).integers(config.vocab_size, size=count))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(machine: PlayedMachine, name: str) -> None:
    config = shape_config(name)
    weights = Rounded(RandomWeights(config))
    ids = some_ids(config, 150)
    exact = NumpyBackend(weights).logits(ids)
    with rounded_cache():
        same_cache = NumpyBackend(weights).logits(ids[:12])
    scale = float(np.abs(exact).max())
    backend = engine(config)
    rest = float(np.abs(backend.logits(ids[:12]) - same_cache).max())
    cache_error = float(np.abs(same_cache - exact[:12]).max())
    print(f"{name}: {rest:.2e} of {scale:.1f}, of the cache's rounding {cache_error:.2e}")
    assert rest < cache_error + 1e-3 * scale
    for length in (2, 9, 129, 150):
        error = float(np.abs(last_logits(backend, ids[:length]) - exact[length - 1]).max())
        assert error < CLOSE * scale, length


@pytest.mark.slow
def test_long_contexts_are_merged_by_shares(machine: PlayedMachine) -> None:
    """1,030 positions are 5 runs of blocks, one more than every worker merges for itself."""
    config = shape_config("attention merged by shares", 1152)
    weights = Rounded(RandomWeights(config))
    ids = some_ids(config, 1030)
    exact = NumpyBackend(weights).logits(ids)[-1]
    found = [last_logits(engine(config, workers_per_lane=workers), ids) for workers in (1, 3)]
    np.testing.assert_array_equal(found[1], found[0])
    assert float(np.abs(found[0] - exact).max()) < CLOSE * float(np.abs(exact).max())


@pytest.mark.slow
@pytest.mark.parametrize("checksums", [False, True])
def test_no_order_of_threads_changes_a_bit(machine: PlayedMachine, checksums: bool) -> None:
    config = tiny_config(max_position_embeddings=192)
    ids = some_ids(config, 139)
    request = Request(ids, max_new_tokens=4)
    wanted = list(engine(config, workers_per_lane=1).decode(request))
    backend = engine(config, checksums=checksums)
    logits = []
    for machine.seed in range(6):
        found = list(backend.decode(request))
        assert [token for token, _ in found] == [token for token, _ in wanted]
        logits.append(backend._arrays["logits"].get())
    for each in logits[1:]:
        np.testing.assert_array_equal(each, logits[0])


@pytest.mark.slow
def test_no_number_of_workers_changes_a_bit(machine: PlayedMachine) -> None:
    """Of logits after a prompt in chunks, and after tokens alone."""
    config = tiny_config(max_position_embeddings=256, hidden_size=64, intermediate_size=128)
    ids = some_ids(config, 139)
    engines = [engine(config, workers_per_lane=workers) for workers in (1, 2, 3, 4)]
    in_chunks = [last_logits(each, ids) for each in engines]
    alone = [each.logits(ids[:20]) for each in engines]
    for each in range(1, 4):
        np.testing.assert_array_equal(in_chunks[each], in_chunks[0])
        np.testing.assert_array_equal(alone[each], alone[0])


@pytest.mark.slow
def test_checksums_tell_of_a_torn_packet(
    monkeypatch: pytest.MonkeyPatch, folder: Path, machine: PlayedMachine
) -> None:
    """One bit of its values changed when it is stored: nobody else would notice."""
    sources, store = kernel_sources(), "const unsigned d = seal(epoch, a, b, c);"
    assert sources["packets.cuh"].count(store) == 1
    sources["packets.cuh"] = sources["packets.cuh"].replace(store, f"{store} a ^= epoch % 16 == 5;")
    machine.play_on(monkeypatch, folder, sources)
    request = Request((1, 2), max_new_tokens=6)
    assert len(list(engine(tiny_config()).decode(request))) == 6
    with pytest.raises(LaneformerError, match="found a packet whose checksum does not fit"):
        list(engine(tiny_config(), checksums=True).decode(request))


@pytest.mark.slow
def test_a_torn_choice_is_not_told(
    monkeypatch: pytest.MonkeyPatch, folder: Path, machine: PlayedMachine
) -> None:
    """What worker 5 says is its best, in the second step, is made the best of all on its way."""
    config, request = tiny_config(), Request((1, 2), max_new_tokens=6)
    wanted = list(engine(config, checksums=True).decode(request))
    sources, store = kernel_sources(), "const unsigned d = seal(epoch, a, b, c);"
    which = "epoch == 2 * EPOCHS_PER_STEP + LAYERS + 1 && device::block() == 5 && device::thread() == 0"
    assert sources["packets.cuh"].count(store) == 1
    sources["packets.cuh"] = sources["packets.cuh"].replace(
        store, f"{store} constexpr unsigned EPOCHS_PER_STEP = LAYERS + 2; if ({which}) a = 0x42c80000u;"
    )
    machine.play_on(monkeypatch, folder, sources)
    torn = engine(config, checksums=True)
    for machine.seed in range(5):
        told = []
        torn._epoch = 0
        with pytest.raises(LaneformerError, match="checksum"):
            for each in torn.decode(request):
                told.append(each)
        assert told == wanted[:1]


@pytest.mark.slow
def test_what_a_worker_chose_by_a_torn_packet_is_not_told(
    monkeypatch: pytest.MonkeyPatch, folder: Path, machine: PlayedMachine
) -> None:
    """One worker reads a sum torn, looks for tokens in the wrong place, and others choose without them."""
    config = tiny_config()
    request = Request((1, 2), max_new_tokens=6, seed=3, temperature=2.0, top_p=0.9, min_p=0.01)
    wanted = list(engine(config, checksums=True).decode(request))
    sources, heard = kernel_sources(), "if (!heard || found[0].words[2])"
    assert sources["sampling.cuh"].count(heard) == 1
    sources["sampling.cuh"] = sources["sampling.cuh"].replace(
        heard,
        "const bool torn = round == UPPER && epoch() == 2 * EPOCHS_PER_STEP + LAYERS + 1"
        " && w.index == 1 && w.thread == 0;"
        "if (torn) { w.patience(AT_CHOICE).torn(); found[0].words[1] ^= 2; }"
        "if (torn || !heard || found[0].words[2])",
    )
    machine.play_on(monkeypatch, folder, sources)
    torn = engine(config, checksums=True)
    for machine.seed in range(8):
        told = []
        torn._epoch = 0
        with pytest.raises(LaneformerError, match="checksum"):
            for each in torn.decode(request):
                told.append(each)
        assert told == wanted[:1]


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_sampling_is_that_of_any_number_of_workers(machine: PlayedMachine, penalty: float) -> None:
    config = tiny_config(max_position_embeddings=64)
    options = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "repetition_penalty": penalty}
    request = Request((1, 2, 3), max_new_tokens=12, seed=7, **options)  # type: ignore[arg-type]
    one, two = engine(config, workers_per_lane=1), engine(config)
    found = list(one.decode(request))
    assert [token for token, _ in two.decode(request)] == [token for token, _ in found]
    token, log_probability = found[-1]
    logits = one._arrays["logits"].get().view(np.float32).astype(np.float64)
    # Of the logit itself, whatever the penalty.
    assert log_probability == pytest.approx(logits[token] - np.log(np.exp(logits).sum()), abs=1e-4)


@pytest.mark.slow
def test_lanes_that_wait_for_no_other_leave_a_late_worker_its_tokens(machine: PlayedMachine) -> None:
    config = tiny_config(
        broadcast_delay=0, use_attention_comm=False, use_mlp_comm=False, lm_head_type="vocab_parallel"
    )
    request = Request((1, 2), max_new_tokens=6)
    late = engine(config, kernel_changes={"late_worker": 3})
    assert list(late.decode(request)) == list(engine(config).decode(request))


@pytest.mark.slow
def test_bench_decode_and_generate_take_an_engine_file(
    machine: PlayedMachine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Device, "read_bandwidth", lambda self: 2e9)  # its kernel is another
    model, result = tmp_path / "model.laneformer", tmp_path / "result.json"
    weights = RandomWeights(tiny_config(hidden_size=16))
    write_engine_file(weights, model, dtype="bfloat16")
    words = ["bench", "decode", str(model), "--backend", "cuda", "--prompt-tokens", "3", "--context", "12"]
    assert cli.main([*words, "--new-tokens", "4", "--runs", "2", "--json", str(result)]) == 0
    found = json.loads(result.read_text())
    assert found["backend"] == "cuda" and found["read_bandwidth"]["raw"] == [2e9, 2e9]
    assert found["device"] in capsys.readouterr().out.splitlines()[0]
    assert found["device_bytes"]["weights"] >= found["weight_bytes_per_token"]
    assert [each["prompt_tokens"] for each in found["results"]] == [3, 8]
    # Two numbers of 2 bytes for each of 4 keys and 4 values; three layers see 5 and 10 positions on average,
    # two 5 and 6.
    assert [each["key_value_bytes_per_token"] for each in found["results"]] == [25 * 32, 42 * 32]
    for each in found["results"]:
        read = found["weight_bytes_per_token"] + each["key_value_bytes_per_token"]
        rate = each["tokens_per_second"]["median"]
        assert each["share_of_read_bandwidth"] == pytest.approx(read * rate / 2e9)
        assert each["share_of_weight_wall"] == pytest.approx(found["weight_bytes_per_token"] * rate / 2e9)
    capsys.readouterr()
    words = ["generate", str(model), "--token-ids", "1,2,3", "--max-new-tokens", "4"]
    tokens = {}
    for backend in ("cuda", "numpy"):
        assert cli.main([*words, "--backend", backend]) == 0
        tokens[backend] = capsys.readouterr().out
    assert tokens["cuda"] == tokens["numpy"] != ""


@pytest.mark.slow
@pytest.mark.parametrize("prompt_tokens", [1, 2, 150])
def test_a_missing_packet_or_flag_ends_the_request(machine: PlayedMachine, prompt_tokens: int) -> None:
    config = tiny_config(max_position_embeddings=192)
    backend = engine(config, kernel_changes={"silent_worker": 3}, stall_seconds=1.0)
    with pytest.raises(LaneformerError, match=r"worker \d+ \(lane \d\), layer \d, waiting .*given up"):
        list(backend.decode(Request((1,) * prompt_tokens, max_new_tokens=3)))


FAULTS = {  # a file, what stands there, and what instead
    "no barrier between inputs and their product": (
        "worker.cuh",
        BARRIER,
        BARRIER.replace("math_barrier();", ""),
    ),
    "a copy does not wait until a place is free": (
        "chunk_inputs.cuh",
        "if (runs_ >= COPIES) wait(&shared_.freed[place], (runs_ / COPIES - 1) & 1);",
        "",
    ),
    "a copy does not wait until inputs are there": (
        "chunk_inputs.cuh",
        "wait(&shared_.inputs_ready, products_++ & 1);",
        "",
    ),
    "a warp does not wait for a copy": (
        "chunk.cuh",
        "if (!barrier_done(copied, place.lap)) {",
        "if (false) {",
    ),
    "the loader does not wait for room": (
        "loader.cuh",
        "if (!wait_released()) return false;",
        "leaving_.advance(), ++released_, used_from_ = read(page_start(leaving_));",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_left_out_is_found(
    fault: str, monkeypatch: pytest.MonkeyPatch, folder: Path, machine: PlayedMachine
) -> None:
    """Wrong logits, not a number, or a request that is given up."""
    file, text, instead = FAULTS[fault]
    sources = kernel_sources()
    assert sources[file].count(text) == 1
    config = tiny_config(hidden_size=512, max_position_embeddings=192)
    ids = some_ids(config, 139)
    wanted = last_logits(engine(config, kernel_changes={"shared_bytes": 130 * 1024}), ids)
    sources[file] = sources[file].replace(text, instead)
    machine.play_on(monkeypatch, folder, sources)
    racing = engine(config, kernel_changes={"shared_bytes": 130 * 1024}, stall_seconds=2.0)
    for machine.seed in range(4):
        try:
            found = last_logits(racing, ids)
        except LaneformerError:
            return
        if not np.array_equal(found, wanted):
            return
    pytest.fail("nobody noticed")


def test_assembly_becomes_calls() -> None:
    text = 'asm volatile("bar.sync 1, %0;" ::"n"(A::B ? f(1, "x") : 2) : "memory"); x(":");'
    assert without_assembly(text) == 'device::bar_sync((A::B ? f(1, "x") : 2)); x(":");'
    with pytest.raises(AssertionError, match="no stand-in for 'nop'"):
        without_assembly('asm("nop");')
