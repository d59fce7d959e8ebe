"""The comparison with other engines: tables from results, the F16 GGUF file, the script on a tiny model."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laneformer.checkpoint import Checkpoint
from laneformer.importing import import_checkpoint
from laneformer.tensors import FLOAT_TYPES
from scripts import bench_compare, bench_worker, results_table
from tests.importing.dense_models import dense_config, dense_tensors
from tests.importing.gguf_files import BYTE_LEVEL, write_gguf

ROOT = Path(__file__).parents[2]
HAVE_TORCH = importlib.util.find_spec("torch") is not None


def run(tokens: range, seconds: float, first: float = 0.5) -> dict[str, Any]:
    return {"first_token_seconds": first, "decode_seconds": seconds, "tokens": list(tokens)}


def example() -> dict[str, Any]:
    """A result of two engines, made by the script's own functions from made-up times."""
    ready = {"weight_bytes": 2_000_000_000, "packages": {"numpy": "2.0"}, "details": {}}
    times = {
        "cpu": {
            "decode": [run(range(11), second) for second in (1.0, 2.0, 0.5)],
            "prompt": [run(range(1), 0.0, first=2.0)] * 3,
        },
        "llama.cpp": {
            "decode": [run(range(11), second) for second in (4.0, 2.0, 5.0)],
            "prompt": [run(range(1), 0.0, first=3.0)] * 3,
        },
    }
    arguments = bench_compare.parser().parse_args(["--threads", "2", "--runs", "3", "--new-tokens", "11"])
    bandwidth = [25e9, 24e9, 26e9]
    engines = [
        bench_compare.summary(name, ready, times[name], times, bandwidth) | {"peak_resident_bytes": 3e8}
        for name in times
    ]
    return bench_compare.describe(arguments, "Some-1B.Q4_1.gguf", list(times), 0.1) | {
        "read_bandwidth": {"median": 25e9, "min": 24e9, "max": 26e9, "raw": bandwidth},
        "engines": engines,
        "missing": {"transformers-float32": "not installed: transformers"},
    }


def test_committed_pages_are_what_the_result_gives() -> None:
    result = results_table.read_result()
    for page in results_table.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "begins -->" in text
        assert results_table.with_tables(text, result) == text, (
            f"{page} is out of date: run `python scripts/results_table.py`"
        )


def test_committed_results_tell_nothing_about_the_machine_but_its_hardware() -> None:
    for path in (ROOT / "docs" / "results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert "/tmp/" not in text, path
        assert "/home/" not in text, path
        assert "hostname" not in text, path
        assert "+changes" not in text, f"{path} was made by code that is in no commit"
        json.loads(text)


def test_summary_and_ratios() -> None:
    cpu, llama = example()["engines"]
    assert cpu["tokens_per_second"] == {"median": 10.0, "min": 5.0, "max": 20.0}
    assert llama["tokens_per_second"]["median"] == 2.5
    assert cpu["times_llama_cpp"] == {"decode": 4.0, "prompt": 1.5}
    assert llama["times_llama_cpp"] == {"decode": 1.0, "prompt": 1.0}
    assert cpu["gigabytes_per_second"] == 20.0
    assert cpu["share_of_read_bandwidth"] == 0.8
    assert cpu["first_tokens_as_cpu"] == llama["first_tokens_as_cpu"] == 11
    assert cpu["raw"]["decode"][1] == {"first_token_seconds": 0.5, "decode_seconds": 2.0}


def test_first_difference_is_counted() -> None:
    times = {"decode": [run(range(5), 1.0)]}
    other = copy.deepcopy(times)
    other["decode"][0]["tokens"][3] = 9
    assert bench_compare._agreement(other, times) == 3
    assert bench_compare._agreement(times, None) is None


def test_tables() -> None:
    result = json.loads(json.dumps(example()))
    page = "# Title\n"
    for name in results_table.TABLES:
        page += f"<!-- {name} begins -->\nold\n<!-- {name} ends -->\nkept\n"
    made = results_table.with_tables(page, result)
    assert "old" not in made
    assert made.count("kept") == 2
    assert "| Laneformer, `cpu` | float16 | 10.0 | 2.00 s | 4.00, prompt 1.50 |" in made
    assert "| llama.cpp | float16 | 2.5 (2.0-5.0) | 2000 | 5.0 | 20% | 3.00 (3.00-3.00) | 300 | 11 |" in made
    assert "`cpu` reads weights at 80% of the read bandwidth" in made.replace("\n", " ")
    assert "Left out: transformers-float32, not installed: transformers." in made
    assert results_table.with_tables(made, result) == made
    assert results_table.NOT_YET in results_table.with_tables(page, None)
    with pytest.raises(ValueError, match="has no"):
        results_table.with_tables("<!-- cpu_decode summary begins -->\n", result)


def test_result_without_llama_cpp_and_bandwidth() -> None:
    result = example()
    result["read_bandwidth"] = None
    for engine in result["engines"]:
        engine |= {"times_llama_cpp": None, "share_of_read_bandwidth": None, "peak_resident_bytes": None}
    assert "| 2.00 s | n/a |" in results_table.summary(result)
    assert "| n/a | 2.00 (2.00-2.00) | n/a | 11 |" in results_table.details(result)


def test_command_names_no_places() -> None:
    arguments = ["--gguf", "/secret/m.gguf", "--llama-python", "/secret/python", "--json", "/secret/r.json"]
    parsed = bench_compare.parser().parse_args(
        [*arguments, "--threads", "2", "--engines", "cpu", "llama.cpp"]
    )
    assert bench_compare.command(parsed) == (
        "python scripts/bench_compare.py --engines cpu llama.cpp --threads 2 --runs 5 --decode-prompt 16 "
        "--new-tokens 128 --prompt 512 --pause 0.5"
    )


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized GGUF file with a tokenizer."""
    config = dense_config(tie_word_embeddings=True)
    path = tmp_path_factory.mktemp("gguf") / "Tiny.Q8_0.gguf"
    return write_gguf(path, config, dense_tensors(config), kind="Q8_0", **BYTE_LEVEL)


def test_float16_gguf_comes_back_as_it_was(tiny_gguf: Path, tmp_path: Path) -> None:
    """Imported, written as F16, imported again: the same tensors, configuration and tokenizer."""
    import_checkpoint(tiny_gguf, tmp_path / "first", dtype="float16")
    bench_compare.write_float16_gguf(tiny_gguf, tmp_path / "first", tmp_path / "F16.gguf")
    summary = import_checkpoint(tmp_path / "F16.gguf", tmp_path / "second")
    assert summary.dtype == "float16"
    first, second = Checkpoint(tmp_path / "first"), Checkpoint(tmp_path / "second")
    assert first.config == second.config
    assert list(first.names) == list(second.names)
    for name in first.names:
        assert np.array_equal(first.raw(name), second.raw(name)), name
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_float16_gguf_refuses_lanes(tiny_gguf: Path, tmp_path: Path) -> None:
    import_checkpoint(tiny_gguf, tmp_path / "lanes", lanes=2, dtype="float16")
    with pytest.raises(SystemExit, match="found llama in 2"):
        bench_compare.write_float16_gguf(tiny_gguf, tmp_path / "lanes", tmp_path / "F16.gguf")


@pytest.mark.parametrize("with_torch", [False, True])
def test_comparison_of_a_tiny_model(tiny_gguf: Path, tmp_path: Path, with_torch: bool) -> None:
    """The script itself, end to end, on engines of this repository."""
    if with_torch and not HAVE_TORCH:
        pytest.skip("torch is not installed")
    engines = ["numpy", *(["pytorch-float32"] if with_torch else [])]
    file = tmp_path / "result.json"
    command = [sys.executable, "scripts/bench_compare.py", "--gguf", str(tiny_gguf), "--json", str(file)]
    command += ["--engines", *engines, "--threads", "1", "--runs", "2", "--new-tokens", "5", "--pause", "0"]
    command += ["--decode-prompt", "3", "--prompt", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    assert str(tmp_path) not in file.read_text()
    assert sys.executable not in file.read_text()
    assert {engine["name"] for engine in result["engines"]} == set(engines)
    assert result["model"] == tiny_gguf.name
    for engine in result["engines"]:
        assert len(engine["raw"]["decode"]) == len(engine["raw"]["prompt"]) == 2
        assert engine["weight_bytes_per_token"] > 0
    results_table.summary(result)
    results_table.details(result)


def test_engine_that_dies_tells_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"numpy ended; its last words:\n(.*\n)*.*Error"):
        bench_compare.Worker("numpy", sys.executable, tmp_path, 1, 8, tmp_path / "log")


def test_engine_that_is_asked_for_and_missing() -> None:
    assert bench_compare.missing_modules(sys.executable, ("json", "no_such_module")) == ["no_such_module"]
    assert bench_compare.missing_modules(sys.executable, ()) == []


@pytest.mark.parametrize("kind", ["transformers-float32", "llama.cpp"])
def test_other_engines_choose_our_tokens(tiny_gguf: Path, tmp_path: Path, kind: str) -> None:
    """What is compared computes the same function; skipped where the package is not installed."""
    module = "llama_cpp" if kind == "llama.cpp" else "transformers"
    pytest.importorskip(module, reason=f"{module} is not installed")
    models = bench_compare.make_models(tiny_gguf, tmp_path)
    reference = bench_worker.load("numpy", models["checkpoint"], 1, 32)
    other = bench_worker.load(kind, models[bench_compare.KINDS[kind].reads], 1, 32)
    assert list(other.generate([1, 2, 3], 12)) == list(reference.generate([1, 2, 3], 12))


def test_types_of_the_table_are_ones_that_we_know() -> None:
    known = {name for _, name in FLOAT_TYPES.values()}
    assert {kind.weights for kind in bench_compare.KINDS.values()} <= known
