"""Finding a compiler, compiling once, and what happens where that does not work."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from infer.backends import cpu_compile as cpu_compile_module
from infer.backends import select_backend
from infer.backends.cpu_backend import CpuBackend
from infer.backends.cpu_compile import CompileError, compiled_library
from tests.tiny_models import RandomWeights, tiny_config


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANEFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def counting_compiler(folder: Path) -> Path:
    """A compiler that writes a line for each compilation and copies its own script as the library."""
    return script(
        folder / "cxx",
        f'[ "$1" = --version ] && cat {folder}/version && exit 0\n'
        f"echo x >> {folder}/calls\nwhile [ $# -gt 0 ]; do out=$1; shift; done; echo library > $out",
    )


def test_compiled_once_for_shape_flags_and_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    (tmp_path / "version").write_text("one")
    monkeypatch.setenv("CXX", str(counting_compiler(tmp_path)))

    def compilations() -> int:
        return len((tmp_path / "calls").read_text().splitlines())

    first = compiled_library(tiny_config())
    assert compiled_library(tiny_config(broadcast_delay=1)) == first  # the same shapes
    assert compilations() == 1
    compiled_library(tiny_config(vocab_size=321))
    compiled_library(tiny_config(), isa="portable")
    assert compilations() == 3
    monkeypatch.setenv("LANEFORMER_CXXFLAGS", "-g")
    compiled_library(tiny_config())
    assert compilations() == 4
    monkeypatch.delenv("LANEFORMER_CXXFLAGS")
    (tmp_path / "version").write_text("two")
    compiled_library(tiny_config())
    assert compilations() == 5
    assert len(list((cache / "compiled").iterdir())) == 5  # nothing left over


def test_without_a_compiler_auto_warns_once_and_runs_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(
        "infer.backends.find_driver", lambda: None
    )  # where there is a GPU, it has its own word
    weights = RandomWeights(tiny_config())
    with pytest.warns(UserWarning, match=r"needs a C\+\+ compiler.*numpy") as warned:
        assert select_backend("auto")(weights).name == "numpy"
    assert len(warned) == 1
    with pytest.raises(CompileError, match=r"needs a C\+\+ compiler.*g\+\+, clang\+\+"):
        select_backend("cpu")(weights)


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(CompileError, match=r"CXX names '/nowhere/c\+\+', which is not there"):
        compiled_library(tiny_config())


def test_a_compiler_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    text = '[ "$1" = --version ] && exit 0\necho warning: old >&2; echo error: too old >&2; exit 1'
    monkeypatch.setenv("CXX", str(script(tmp_path / "cxx", text)))
    with pytest.raises(CompileError, match="cannot compile the CPU back end: error: too old") as raised:
        compiled_library(tiny_config())
    assert "\n" not in str(raised.value)
    assert list((cache / "compiled").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANEFORMER_CACHE", str(tmp_path / "file"))
    with pytest.raises(CompileError, match="LANEFORMER_CACHE"):
        compiled_library(tiny_config())


def test_a_library_that_is_damaged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text("one")
    monkeypatch.setenv("CXX", str(counting_compiler(tmp_path)))
    with pytest.raises(CompileError, match="does not load"):
        CpuBackend(RandomWeights(tiny_config()))


def test_an_unknown_instruction_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEFORMER_CPU_ISA", "mmx")
    with pytest.raises(CompileError, match="expected one of avx512, avx2, portable"):
        compiled_library(tiny_config())


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ("fpu avx2 fma f16c avx512f", "avx512"),
        ("fpu avx2 fma f16c", "avx2"),
        ("fpu sse2", "portable"),
    ],
)
def test_the_widest_instruction_set_is_chosen(monkeypatch: pytest.MonkeyPatch, flags: str, isa: str) -> None:
    monkeypatch.delenv("LANEFORMER_CPU_ISA", raising=False)
    monkeypatch.setattr(cpu_compile_module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor : 0\nflags : {flags}\n")
    assert cpu_compile_module.chosen_isa() == isa
