"""``laneformer bench decode``: what it measures on tiny models, what it derives, what it refuses."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from infer import Engine, bench, cli
from infer.bench import decode, machine
from infer.bench.decode import Setting, key_value_bytes
from infer.request import Request
from laneformer.errors import RequestError
from tests.tiny_models import tiny_config


def run(model: Path, *arguments: object) -> int:
    parser = argparse.ArgumentParser()
    cli.add_bench_arguments(parser)
    return cli.run_bench(parser.parse_args(["decode", str(model), *map(str, arguments)]))


def measured(model: Path, folder: Path, *arguments: object) -> dict[str, Any]:
    assert run(model, *arguments, "--json", folder / "result.json") == 0
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_numpy(
    checkpoint_without_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--prompt-tokens", 4, 8, "--context", 20, "--new-tokens", 6, "--runs", 3, "--backend", "numpy"]
    result = measured(checkpoint_without_tokenizer, tmp_path, *options)
    table = capsys.readouterr().out.splitlines()
    assert "backend numpy" in table[0]
    assert [line.split()[:2] for line in table[2:-1]] == [["4", "10"], ["8", "14"], ["14", "20"]]
    assert table[-1].startswith("read bandwidth n/a GB/s in the same run, peak memory ")
    assert result["read_bandwidth"] is None
    assert result["packages"]["numpy"]
    for entry in result["results"]:
        rates = [5 / raw["decode_seconds"] for raw in entry["raw"]]
        assert len(rates) == 3
        spread = entry["tokens_per_second"]
        assert spread == pytest.approx({"median": sorted(rates)[1], "min": min(rates), "max": max(rates)})
        read = result["weight_bytes_per_token"] + entry["key_value_bytes_per_token"]
        assert entry["gigabytes_per_second"] == pytest.approx(spread["median"] * read / 1e9)
        assert entry["share_of_read_bandwidth"] is None
        first = entry["first_token_seconds"]["median"]
        assert entry["prompt_tokens_per_second"]["median"] == pytest.approx(entry["prompt_tokens"] / first)


def test_result_says_on_what_it_was_measured(checkpoint_without_tokenizer: Path, tmp_path: Path) -> None:
    options = ["--prompt-tokens", 4, "--new-tokens", 3, "--runs", 1, "--backend", "numpy"]
    result = measured(checkpoint_without_tokenizer, tmp_path, *options)
    assert {"date", "commit", "host_cpu", "cores", "packages", "config", "model", "python"} <= set(result)
    name = checkpoint_without_tokenizer.name
    assert result["command"] == (
        f"laneformer bench decode {name} --backend numpy --prompt-tokens 4 --new-tokens 3 --runs 1"
    )
    assert result["peak_resident_bytes"] > 10e6, "numpy alone takes more"
    assert str(tmp_path.parent) not in json.dumps(result), "a result that is shared tells no folders"


def test_cpu_back_end_measures_bandwidth_each_round(
    checkpoint_without_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from infer.backends.cpu_compile import CompileError

    try:
        options = ["--new-tokens", 4, "--runs", 2, "--backend", "cpu"]
        result = measured(checkpoint_without_tokenizer, tmp_path, *options)
    except CompileError as error:
        pytest.skip(str(error))
    raw = result["read_bandwidth"]["raw"]
    assert len(raw) == 2
    assert min(raw) > 1e8, "bytes per second"
    (entry,) = result["results"]
    assert entry["prompt_tokens"] == 32, "the default"
    share = entry["gigabytes_per_second"] * 1e9 / statistics.median(raw)
    assert entry["share_of_read_bandwidth"] == pytest.approx(share)
    assert result["threads"] >= 1
    assert "%" in capsys.readouterr().out


def test_rounds_take_turns(checkpoint_without_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round runs every setting, so that drift hits all alike; the first pass is not counted."""
    order: list[int] = []

    def note(_: object, request: Request) -> decode.Run:
        order.append(len(request.token_ids))
        return decode.Run(1.0, float(len(order)))

    monkeypatch.setattr(decode, "timed", note)
    engine = Engine(checkpoint_without_tokenizer, backend="numpy")
    found = bench.bench_decode(engine, [Setting(3, 2), Setting(5, 2)], runs=2)
    assert order == [3, 5, 3, 5, 3, 5]
    assert [run.decode_seconds for run in found.results[0].runs] == [3.0, 5.0]


def test_back_end_that_tells_no_sizes(checkpoint_without_tokenizer: Path) -> None:
    engine = Engine(checkpoint_without_tokenizer, backend="numpy")
    engine.backend.weight_bytes_per_token = None  # type: ignore[misc]
    found = bench.bench_decode(engine, [Setting(3, 2)], runs=1)
    assert found.results[0].gigabytes_per_second is None
    assert found.share_of_bandwidth(found.results[0]) is None
    assert found.share_of_weight_wall(found.results[0]) is None
    shown = bench.table(found).splitlines()[1].split()
    assert [shown[column] for column in (-5, -3, -2, -1)] == ["n/a"] * 4


def test_bytes_of_keys_and_values() -> None:
    """Counted by hand: 2 of 5 layers see at most 6 positions; 4 key heads of 4 numbers, values too."""
    config = tiny_config()
    per_position = 2 * 4 * 4 * 4
    # Tokens 2, 3 and 4 of the answer see 5, 6 and 7 positions.
    expected = per_position * (3 * (5 + 6 + 7) + 2 * (5 + 6 + 6)) / 3
    assert key_value_bytes(config, Setting(4, 4), 4) == pytest.approx(expected)
    assert key_value_bytes(config, Setting(4, 4), None) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--new-tokens", 1], "new-tokens must be at least 2"),
        (["--runs", 0], "runs must be at least 1"),
        (["--prompt-tokens", 0], "prompt-tokens 0 and new-tokens 64 must be positive"),
        (["--prompt-tokens", 60, "--new-tokens", 5], "together fit the context of 64"),
        (["--context", 65, "--new-tokens", 5], "together fit the context of 64"),
        (["--context", 5, "--new-tokens", 5], "context 5 must be above new-tokens 5"),
    ],
)
def test_refuses(checkpoint_without_tokenizer: Path, options: list[object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        run(checkpoint_without_tokenizer, "--backend", "numpy", *options)


def test_says_where_it_cannot_write(checkpoint_without_tokenizer: Path, tmp_path: Path) -> None:
    options = ["--prompt-tokens", 2, "--new-tokens", 2, "--runs", 1, "--backend", "numpy"]
    with pytest.raises(RequestError, match="file: cannot be written"):
        run(checkpoint_without_tokenizer, *options, "--json", tmp_path / "no" / "file")


def test_commit_of_another_repository_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_git", lambda *_: "/somewhere/else")
    assert machine.commit() == "n/a"
