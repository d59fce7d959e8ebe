"""What a user is told where the CUDA back end cannot run, through the engine and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infer.backends.cuda_backend import CudaBackend
from infer.engine import Engine
from laneformer.cli import main
from laneformer.errors import LaneformerError, RequestError
from laneformer.parameters import parameter_shapes
from tests.infer.fake_cuda import Machine
from tests.infer.rounded import Rounded
from tests.tiny_models import RandomWeights, tiny_config, write_checkpoint


def write_model(folder: Path, dtype: str = "bfloat16", **changes: Any) -> Path:
    config = tiny_config(**changes)
    return write_checkpoint(folder, config, dtypes=dict.fromkeys(parameter_shapes(config), dtype))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up cubins are kept apart from real ones."""
    monkeypatch.setenv("LANEFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


PROBLEMS = {
    "no CuPy": (Machine(cupy=False), r"needs CuPy \(.*\): pip install 'laneformer\[cuda\]'"),
    "no NVRTC": (
        Machine(nvrtc="failed to load\n  libnvrtc.so.13"),
        r"NVRTC is not here \(failed to load libnvrtc\.so\.13\): install the CUDA toolkit or nvidia-cuda-",
    ),
    "no driver": (Machine(driver=False), "no GPU that .* can use: no NVIDIA driver is installed"),
    "no GPU": (
        Machine(gpus=0),
        r"no GPU that .*: the NVIDIA driver shows none \(CUDA_VISIBLE_DEVICES can hide",
    ),
    "old driver": (
        Machine(driver_cuda=12040),
        r"driver is too old, it supports CUDA 12\.4 and this CuPy has CUDA 13\.2: update the driver",
    ),
    "another architecture": (
        Machine(name="NVIDIA A100", capability=(8, 0)),
        r"NVIDIA A100 has compute capability 8\.0: .* is written for 9\.0 \(H100, H200\)",
    ),
    "few multiprocessors": (
        Machine(multiprocessors=3),
        "4 lanes need a GPU of more than 3 multiprocessors",
    ),
    "little memory": (
        Machine(free_memory=50_000, memory=80_000_000_000),
        r"does not fit: weights 0\.00 GB, keys and values .*, and 0\.00 of 80\.00 GB are free on NVIDIA "
        "H200; a shorter context needs less",
    ),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_is_missing_is_told_in_one_line(
    problem: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, message = PROBLEMS[problem]
    machine.install(monkeypatch)
    with pytest.raises(LaneformerError, match=message) as caught:
        Engine(model, backend="cuda")
    assert main(["generate", str(model), "--backend", "cuda", "--token-ids", "1,2"]) == 2
    assert capsys.readouterr().err == f"error: {caught.value}\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float32"}, r"weights are stored as float32: .* `laneformer export --dtype bfloat16`"),
        ({"hidden_size": 34, "head_dim": 4}, "needs a hidden_size in fours, found 34"),
        ({"head_dim": 130}, "head sizes up to 128, found 130"),
        (
            {"num_lanes": 1, "num_key_value_heads": 1, "num_attention_heads": 9, "head_dim": 4},
            "up to 8 query heads per key head, found 9",
        ),
    ],
)
def test_models_that_the_kernel_does_not_take(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(gpus=0).install(monkeypatch)  # the model is looked at first, whatever the machine
    with pytest.raises(LaneformerError, match=message):
        Engine(write_model(tmp_path / "model", **changes), backend="cuda")


def test_nothing_is_packed_before_the_machine_is_known_to_run_it(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine in (Machine(cupy=False), Machine(nvrtc="not here"), Machine(gpus=0)):
        machine.install(monkeypatch)
        with pytest.raises(LaneformerError):
            Engine(model, backend="cuda")
    assert not cache.exists()


def test_prompts_that_do_not_fit_the_context(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Machine().install(monkeypatch)
    engine = Engine(model, backend="cuda")
    with pytest.raises(RequestError, match="65 token ids exceed the context of 64"):
        engine.generate([1] * 65, max_new_tokens=1)
    with pytest.raises(
        RequestError, match="prompt has 64 tokens and the context is 64: no room for a new token"
    ):
        engine.generate([1] * 64, max_new_tokens=1)
    ids = ",".join(["1"] * 64)
    assert main(["generate", str(model), "--backend", "cuda", "--token-ids", ids]) == 2
    assert "no room for a new token; shorten the prompt to at most 63" in capsys.readouterr().err


def test_a_context_that_is_shorter_than_the_model_s_is_what_requests_are_held_against(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Machine().install(monkeypatch)
    weights = Rounded(RandomWeights(tiny_config()))
    engine = Engine.from_backend(CudaBackend(weights, context=20))
    with pytest.raises(RequestError, match="prompt has 20 tokens and the context is 20"):
        engine.generate([1] * 20, max_new_tokens=1)
    with pytest.raises(RequestError, match="21 token ids exceed the context of 20"):
        engine.logits([1] * 21)
    assert engine.config.max_position_embeddings == CudaBackend(weights, context=20).context == 20
    assert CudaBackend(weights, context=1000).context == 64


def test_a_kernel_that_the_gpu_gave_up_is_an_error_and_not_waited_for(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Machine(kernel_error="cudaErrorIllegalAddress: an illegal\n memory access").install(monkeypatch)
    message = (
        "the GPU gave up the kernel (cudaErrorIllegalAddress: an illegal memory access); this process can "
        "use it no more"
    )
    engine = Engine(model, backend="cuda")
    with pytest.raises(LaneformerError) as caught:
        next(engine.generate([1, 2], max_new_tokens=3))
    assert str(caught.value) == message
    with pytest.raises(LaneformerError, match="the GPU gave up the kernel"):
        engine.logits([1, 2])
    assert main(["generate", str(model), "--backend", "cuda", "--token-ids", "1,2"]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
