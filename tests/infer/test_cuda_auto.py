"""``auto`` takes the GPU where it can, says once why not, and ``laneformer doctor`` says what is missing."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest

from infer.backends import select_backend
from laneformer.cli import main
from laneformer.nvidia_driver import Driver, Gpu, find_driver
from tests.infer.fake_cuda import Machine
from tests.infer.rounded import Rounded
from tests.tiny_models import RandomWeights, tiny_config


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up cubins are kept apart from real ones."""
    monkeypatch.setenv("LANEFORMER_CACHE", str(tmp_path / "cache"))


def auto(**changes: int | bool) -> str:
    return select_backend("auto")(Rounded(RandomWeights(tiny_config(**changes)))).name


def test_auto_is_the_gpu_where_everything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine().install(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert auto() == "cuda"


@pytest.mark.parametrize("machine", [Machine(driver=False), Machine(gpus=0)], ids=["no driver", "no GPU"])
def test_without_a_gpu_auto_has_nothing_to_say(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install(monkeypatch)
    monkeypatch.setitem(sys.modules, "cupy", None)  # not even asked for
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert auto() == "cpu"


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (Machine(cupy=False), r"needs CuPy .*; running on the CPU, not on NVIDIA H200"),
        (Machine(nvrtc="no libnvrtc"), r"NVRTC is not here \(no libnvrtc\)"),
        (Machine(driver_cuda=12080), r"driver is too old, it supports CUDA 12\.8"),
        (Machine(name="NVIDIA L4", capability=(8, 9)), r"compute capability 8\.9: .*, not on NVIDIA L4"),
        (Machine(free_memory=0), "does not fit"),
    ],
    ids=["no CuPy", "no NVRTC", "old driver", "another architecture", "no memory"],
)
def test_auto_says_once_why_a_gpu_is_not_used(
    machine: Machine, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install(monkeypatch)
    with pytest.warns(UserWarning, match=message) as warned:
        assert auto() == "cpu"
    assert len(warned) == 1


def test_auto_says_which_weights_and_shapes_a_gpu_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine().install(monkeypatch)
    with pytest.warns(UserWarning, match="weights are stored as float32.*running on the CPU"):
        assert select_backend("auto")(RandomWeights(tiny_config())).name == "cpu"
    with pytest.warns(UserWarning, match="head sizes up to 128, found 130"):
        assert auto(head_dim=130) == "cpu"


def test_the_driver_is_asked_for_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(gpus=2, driver_cuda=13010).install(monkeypatch)
    gpu = Gpu("NVIDIA H200", (9, 0), 150_000_000_000)
    assert find_driver() == Driver((13, 1), (gpu, gpu))
    assert str(gpu) == "NVIDIA H200, compute capability 9.0, 150.0 GB"
    Machine(gpus=0).install(monkeypatch)
    assert find_driver() == Driver((13, 0), ())
    broken = Machine().driver_library("libcuda.so.1")
    broken.cuDeviceGetCount = lambda count: 999
    monkeypatch.setattr("laneformer.nvidia_driver.load_library", lambda name: broken)
    assert find_driver() == Driver((13, 0), (), "CUDA error 999")
    Machine(driver=False).install(monkeypatch)
    assert find_driver() is None


@pytest.mark.parametrize(
    ("machine", "state", "parts"),
    [
        (
            Machine(),
            "yes",
            [
                "NVIDIA H200, compute capability 9.0, 150.0 GB",
                "CuPy 14",
                "NVRTC 13.5",
                "140.0 of 150.0 GB free",
            ],
        ),
        (
            Machine(cupy=False, driver=False),
            "no",
            ["missing an NVIDIA driver; CuPy (pip install 'laneformer[cuda]')"],
        ),
        (Machine(gpus=0), "no", ["missing a GPU that the driver shows (found: CuPy 14"]),
        (Machine(nvrtc="none"), "no", ["missing NVRTC (pip install nvidia-cuda-nvrtc", "found: NVIDIA H200"]),
        (
            Machine(driver_cuda=12040),
            "no",
            ["a driver that runs CuPy: cudaErrorInsuff", "supports CUDA 12.4"],
        ),
        (
            Machine(name="NVIDIA L4", capability=(8, 9)),
            "no",
            ["missing a GPU of compute capability 9.0 (H100, H200) (found: NVIDIA L4, compute capability"],
        ),
    ],
    ids=["all there", "nothing there", "no GPU", "no NVRTC", "old driver", "another architecture"],
)
def test_doctor_says_what_the_cuda_back_end_lacks(
    machine: Machine,
    state: str,
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine.install(monkeypatch)
    assert main(["doctor", "--json"]) == 0
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    found = findings["engine (cuda)"]
    assert found["state"] == state
    for part in parts:
        assert part in found["detail"]
    assert "\n" not in found["detail"]
