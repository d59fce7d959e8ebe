"""Compiling the CPU back end for one model with the compiler of this machine, and keeping the result.

The library is named by everything that goes into it: sources, shapes, flags, and the compiler with its
version.  A second process finds it in the cache; see :func:`infer.tape.cache_folder`.

    CXX                   compiler, with options if need be (default: g++, clang++ or c++ in PATH)
    LANEFORMER_CXXFLAGS   more options, such as -fsanitize=thread -g
    LANEFORMER_CPU_ISA    avx512, avx2 or portable (default: the widest that this machine has)
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from infer.tape import cache_folder
from laneformer.config import LaneformerConfig
from laneformer.errors import LaneformerError

# Nothing may reorder or fuse arithmetic behind our back: results are the same bits everywhere.
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "avx512": ("-DLANEFORMER_ISA=512", "-mavx512f", "-mavx2", "-mfma", "-mf16c"),
    "avx2": ("-DLANEFORMER_ISA=2", "-mavx2", "-mfma", "-mf16c"),
    "portable": ("-DLANEFORMER_ISA=0", "-O3"),  # its loops over 16 lanes become vectors
}
# Tokens of a prompt that run at once: weights are then read once for all of them.  Seconds of one Zen 4 core
# for a prompt of 512 on a model of 135M in bfloat16: 1.68 with 32, 1.49 with 64, 1.44 with 96, 1.41 with 128
# and with 192.
CHUNK = 128
COMPILERS = ("g++", "clang++", "c++")
COMPILE_SECONDS = 300


class CompileError(LaneformerError):
    """No compiler, or one that does not compile the CPU back end."""


def compiled_library(config: LaneformerConfig, isa: str | None = None, chunk: int = CHUNK) -> Path:
    """The library for ``config``, compiled where it is not in the cache.

    Raises :class:`CompileError` where there is no compiler, where it fails, and where the cache cannot be
    written.
    """
    compiler = find_compiler()
    flags = [*FLAGS, *ISA_FLAGS[chosen_isa(isa)], *shape_flags(config, chunk)]
    flags += shlex.split(os.environ.get("LANEFORMER_CXXFLAGS", ""))
    sources = {
        entry.name: entry.read_bytes()
        for entry in sorted((resources.files("kernels") / "cpu").iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith((".cpp", ".h"))
    }
    described = hashlib.sha256(repr((sources, flags, compiler, _version(compiler))).encode())
    path = cache_folder() / "compiled" / f"cpu-{described.hexdigest()[:32]}.so"
    if not path.exists():
        _compile(compiler, flags, sources, path)
    return path


def find_compiler() -> list[str]:
    """Command of the C++ compiler; :class:`CompileError` where there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[name] for name in COMPILERS]:
        if found := shutil.which(command[0]):
            return [found, *command[1:]]
    where = (
        f"CXX names {named[0]!r}, which is not there" if named else f"none of {', '.join(COMPILERS)} in PATH"
    )
    raise CompileError(f"the CPU back end needs a C++ compiler, and there is none: {where}")


def chosen_isa(isa: str | None = None) -> str:
    """The instruction set to compile for: as asked, as the environment says, or the widest one here."""
    isa = isa or os.environ.get("LANEFORMER_CPU_ISA") or _widest_isa()
    if isa not in ISA_FLAGS:
        raise CompileError(f"unknown instruction set {isa!r}: expected one of {', '.join(ISA_FLAGS)}")
    return isa


def shape_flags(config: LaneformerConfig, chunk: int) -> list[str]:
    """Compile-time constants of ``kernels/cpu/shape.h``."""
    lanes = config.num_lanes
    values = {
        "LANES": lanes,
        "HIDDEN": config.hidden_size,
        "QUERY_HEADS": config.num_attention_heads // lanes,
        "KEY_HEADS": config.num_key_value_heads // lanes,
        "HEAD_SIZE": config.head_size,
        "UNITS": config.intermediate_size // lanes,
        "VOCABULARY": config.vocab_size,
        "HEAD_COLUMNS": config.hidden_size * (lanes if config.lm_head_type == "lane" else 1),
        "CHUNK": chunk,
    }
    return [f"-DLANEFORMER_{name}={value}" for name, value in values.items()]


def _widest_isa() -> str:
    """From the flags that Linux reports; elsewhere portable, which on ARM is NEON."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return "portable"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "portable"
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    if flags >= {"avx512f", "avx2", "fma", "f16c"}:
        return "avx512"
    return "avx2" if flags >= {"avx2", "fma", "f16c"} else "portable"


def _version(compiler: list[str]) -> str:
    try:
        done = subprocess.run(
            [*compiler, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{compiler[0]} does not run ({error})") from None
    return done.stdout


def _compile(compiler: list[str], flags: list[str], sources: dict[str, bytes], path: Path) -> None:
    """Compile beside ``path`` and rename, so that a library there is always whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            for name, text in sources.items():
                (Path(folder) / name).write_bytes(text)
            built = Path(folder) / path.name
            command = [*compiler, *flags, "engine.cpp", "-o", built.name]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
            )
            if done.returncode != 0 or not built.exists():
                errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr[:300]]
                raise CompileError(f"{compiler[0]} cannot compile the CPU back end: {errors[0]}")
            os.replace(built, path)
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"{compiler[0]} took more than {COMPILE_SECONDS} s; the CPU back end is not built"
        ) from None
    except OSError as error:
        raise CompileError(
            f"{path}: the compiled back end cannot be written ({error.strerror}); LANEFORMER_CACHE names "
            "another folder"
        ) from None
