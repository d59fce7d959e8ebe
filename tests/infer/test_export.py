"""Engine files: what is in them, how they are written, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import infer.export
from infer import Engine
from infer.engine_file import EngineFile
from infer.export import export_engine_file, write_engine_file
from laneformer.checkpoint import Checkpoint
from laneformer.errors import CheckpointError, ConfigError, TokenizerError
from laneformer.tensors import bfloat16_to_float32, float32_to_bfloat16
from tests.tiny_models import RandomWeights, byte_level_tokenizer, tiny_config, write_checkpoint

WQ = "model.layers.0.attention.wq.weight"


@pytest.fixture
def engine_file(checkpoint: Path, tmp_path: Path) -> Path:
    return export_engine_file(checkpoint, tmp_path / "model.laneformer").path


def with_metadata(path: Path, **changes: str | None) -> Path:
    """Rewrite an engine file with other metadata; None removes an entry."""
    file = EngineFile(path)
    metadata = {name: value for name, value in (file.metadata | changes).items() if value is not None}
    save_file({name: np.array(file.raw(name)) for name in file.names}, path, metadata)
    return path


def test_weights_at_hand_are_written_like_a_checkpoint(tmp_path: Path) -> None:
    weights = RandomWeights(tiny_config())
    write_checkpoint(tmp_path / "checkpoint", weights.config)
    exported = export_engine_file(tmp_path / "checkpoint", tmp_path / "exported")
    written = write_engine_file(weights, tmp_path / "written")
    assert written.source_sha256 == exported.source_sha256
    assert written.path.read_bytes() == exported.path.read_bytes()
    with pytest.raises(CheckpointError, match="exists already"):
        write_engine_file(weights, tmp_path / "written")
    with pytest.raises(CheckpointError, match="dtype must be one of"):
        write_engine_file(weights, tmp_path / "other", dtype="float8")


def test_gives_the_model_back(checkpoint: Path, engine_file: Path) -> None:
    source, file = Checkpoint(checkpoint), EngineFile(engine_file)
    assert file.config == source.config
    assert file.names == source.names
    for name in source.names:
        assert file.dtype(name) == "float32"
        np.testing.assert_array_equal(file.raw(name), source.raw(name))
    before, after = Engine(checkpoint), Engine(engine_file)
    assert before.tokenizer is not None and after.tokenizer is not None
    assert after.tokenizer.fingerprint == before.tokenizer.fingerprint
    assert after.tokenizer.chat_template == before.tokenizer.chat_template is not None
    assert list(after.generate([1, 2], max_new_tokens=9)) == list(before.generate([1, 2], max_new_tokens=9))


def test_is_a_safetensors_file_with_documented_metadata(engine_file: Path, checkpoint: Path) -> None:
    with safe_open(engine_file, "np") as file:  # the library checks offsets and length
        metadata = file.metadata()
        np.testing.assert_array_equal(file.get_tensor(WQ), Checkpoint(checkpoint).raw(WQ))
    assert {name: metadata[name] for name in ("format", "version", "dtype")} == {
        "format": "laneformer-engine",
        "version": "1",
        "dtype": "float32",
    }
    assert json.loads(metadata["config"])["hidden_size"] == 32
    assert len(metadata["source_sha256"]) == 64
    assert json.loads(metadata["tokenizer"])["model"]["type"] == "BPE"
    assert json.loads(metadata["tokenizer_settings"])["eos_token"] == "</s>"
    assert int.from_bytes(engine_file.read_bytes()[:8], "little") % 64 == 56  # data begins on a cache line


def test_twice_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    first = export_engine_file(checkpoint, tmp_path / "a", dtype="bfloat16")
    second = export_engine_file(checkpoint, tmp_path / "b", dtype="bfloat16")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert first.source_sha256 == second.source_sha256
    assert first.size == (tmp_path / "a").stat().st_size


def test_hash_tells_sources_apart_and_not_the_export_type(checkpoint: Path, tmp_path: Path) -> None:
    tensors = RandomWeights(tiny_config()).tensors
    tensors[WQ][0, 0, 0] += 1
    other = write_checkpoint(tmp_path / "other", tiny_config(), tensors=tensors)
    hashes = [
        export_engine_file(source, tmp_path / str(i), dtype=dtype).source_sha256
        for i, (source, dtype) in enumerate([(checkpoint, "keep"), (checkpoint, "float16"), (other, "keep")])
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_types(checkpoint: Path, tmp_path: Path, dtype: str) -> None:
    file = EngineFile(export_engine_file(checkpoint, tmp_path / "m", dtype=dtype).path)
    assert file.metadata["dtype"] == file.config.dtype == dtype
    values = Checkpoint(checkpoint).float32(WQ)
    expected = {
        "float32": values,
        "bfloat16": bfloat16_to_float32(float32_to_bfloat16(values)),
        "float16": values.astype(np.float16).astype(np.float32),
    }[dtype]
    assert file.dtype(WQ) == dtype
    np.testing.assert_array_equal(file.float32(WQ), expected)
    assert np.isfinite(Engine(tmp_path / "m").logits([1, 2])).all()


def test_mixed_types_are_kept_aligned_and_widened(tmp_path: Path) -> None:
    # An odd number of 16-bit values first would put the float32 after it on an odd place.
    config = tiny_config(hidden_size=33, head_dim=4, vocab_size=5)
    dtypes = {"model.tok_embeddings.weight": "bfloat16", "model.norm.weight": "float16"}
    source = write_checkpoint(tmp_path / "mixed", config, dtypes=dtypes)
    kept = EngineFile(export_engine_file(source, tmp_path / "kept").path)
    assert kept.metadata["dtype"] == "mixed"
    for name in kept.names:
        assert kept.dtype(name) == dtypes.get(name, "float32")
        assert kept.raw(name).ctypes.data % kept.raw(name).itemsize == 0
        np.testing.assert_array_equal(kept.float32(name), Checkpoint(source).float32(name))
    wide = EngineFile(export_engine_file(source, tmp_path / "wide", dtype="float32").path)
    assert {wide.dtype(name) for name in wide.names} == {"float32"}
    np.testing.assert_array_equal(wide.float32("model.norm.weight"), kept.float32("model.norm.weight"))


def test_an_engine_file_can_be_exported_again(engine_file: Path, tmp_path: Path) -> None:
    again = export_engine_file(engine_file, tmp_path / "again", dtype="bfloat16")
    assert again.dtype == "bfloat16"
    assert Engine(again.path).tokenizer is not None


def test_existing_files_are_not_replaced_unasked(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("precious")
    with pytest.raises(CheckpointError, match="out: exists already; give another name or --overwrite"):
        export_engine_file(checkpoint, out)
    assert out.read_text() == "precious"
    export_engine_file(checkpoint, out, overwrite=True)
    EngineFile(out)
    assert os.listdir(tmp_path) == ["out"]


def test_places_that_cannot_be_written(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder"):
        export_engine_file(checkpoint, tmp_path, overwrite=True)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No such file"):
        export_engine_file(checkpoint, tmp_path / "no" / "out")
    with pytest.raises(
        CheckpointError, match="dtype must be one of keep, float32, float16, bfloat16, found 'int8'"
    ):
        export_engine_file(checkpoint, tmp_path / "out", dtype="int8")


def test_an_interrupted_export_leaves_the_old_file(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.write_text("old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(infer.export, "_converted", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_engine_file(checkpoint, out, overwrite=True)
    assert out.read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.nan, "keep", f"tensor {WQ} holds 1 values that are NaN or infinite"),
        (-np.inf, "bfloat16", f"tensor {WQ} holds 1 values that are NaN or infinite"),
        (-70000.0, "float16", f"tensor {WQ} holds 1 values too large for float16 .up to 70000.; export as"),
        (3.4e38, "bfloat16", f"tensor {WQ} holds 1 values too large for bfloat16"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, value: float, dtype: str, message: str) -> None:
    tensors = RandomWeights(tiny_config()).tensors
    tensors[WQ][0, 0, 0] = value
    source = write_checkpoint(tmp_path / "source", tiny_config(), tensors=tensors)
    with pytest.raises(CheckpointError, match=message):
        export_engine_file(source, tmp_path / "out", dtype=dtype)
    assert sorted(os.listdir(tmp_path)) == ["source"]


def test_a_tokenizer_that_does_not_fit(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", tiny_config(vocab_size=100), byte_level_tokenizer())
    with pytest.raises(TokenizerError, match="vocab_size is 100"):
        export_engine_file(source, tmp_path / "out")


def test_not_an_engine_file(engine_file: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not an engine file; give the checkpoint folder") as caught:
        EngineFile(checkpoint / "model.safetensors")
    assert "export FOLDER OUT" in str(caught.value)  # a name to copy would be that of the weights themselves
    text = tmp_path / "text"
    text.write_text("hello, this is no container at all")
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        EngineFile(text)


@pytest.mark.parametrize("keep", [0, 7, 200, -1])
def test_truncated(engine_file: Path, keep: int) -> None:
    whole = engine_file.read_bytes()
    engine_file.write_bytes(whole[:keep])
    with pytest.raises(CheckpointError, match="truncated"):
        Engine(engine_file)


def test_another_version(engine_file: Path) -> None:
    with_metadata(engine_file, version="2")
    with pytest.raises(CheckpointError, match="engine file version '2', this software reads version '1'"):
        EngineFile(engine_file)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"config": None}, CheckpointError, "metadata 'config' is missing"),
        ({"config": "{"}, CheckpointError, "metadata 'config': cannot be read as JSON"),
        ({"config": "[" * 10**5}, CheckpointError, "metadata 'config': .* nested too deep"),
        ({"config": "[]"}, CheckpointError, "metadata 'config': expected a JSON object, found list"),
        ({"config": "{}"}, ConfigError, "model.laneformer: required key missing"),
        ({"tokenizer": "{}"}, TokenizerError, "model.laneformer: not a tokenizer.json"),
        ({"tokenizer_settings": None}, CheckpointError, "metadata 'tokenizer_settings' is missing"),
    ],
)
def test_damaged_metadata(
    engine_file: Path, changes: dict[str, str | None], error: type[Exception], message: str
) -> None:
    with_metadata(engine_file, **changes)
    with pytest.raises(error, match=message):
        EngineFile(engine_file)


def test_tensors_are_held_against_the_configuration(engine_file: Path) -> None:
    config = EngineFile(engine_file).config.to_dict() | {"intermediate_size": 96}
    with_metadata(engine_file, config=json.dumps(config))
    with pytest.raises(CheckpointError, match=r"w1\.weight has shape \[4, 12, 32\], .* \[4, 24, 32\]"):
        EngineFile(engine_file)


def test_tied_copies_are_dropped(tmp_path: Path) -> None:
    config = tiny_config(tie_word_embeddings=True)
    tensors = RandomWeights(config).tensors
    tensors["lm_head.weight"] = tensors["model.tok_embeddings.weight"]
    source = write_checkpoint(tmp_path / "source", config, tensors=tensors)
    assert "lm_head.weight" not in EngineFile(export_engine_file(source, tmp_path / "out").path).names
    with safe_open(tmp_path / "out", "np") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118


def test_memory_is_that_of_a_few_tensors(tmp_path: Path) -> None:
    config = tiny_config(num_hidden_layers=24, hidden_size=64, intermediate_size=256)
    source = write_checkpoint(tmp_path / "source", config)
    largest = max(Checkpoint(source).raw(name).nbytes for name in Checkpoint(source).names)
    tracemalloc.start()
    try:
        size = export_engine_file(source, tmp_path / "out", dtype="bfloat16").size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * largest < size  # rounding to bfloat16 takes several arrays of the tensor's size


def test_mode_of_the_file_is_the_usual_one(engine_file: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    assert engine_file.stat().st_mode == plain.stat().st_mode
    shutil.copy(engine_file, tmp_path / "copy")  # readable, and complete on its own
    EngineFile(tmp_path / "copy")


def test_links_are_followed(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(CheckpointError, match="link: exists already"):  # although it points nowhere
        export_engine_file(checkpoint, link)
    for _ in range(2):  # a target that is not there yet, then one that is
        export_engine_file(checkpoint, link, overwrite=True)
        assert link.is_symlink()
        assert not target.is_symlink()
        EngineFile(target)
    assert os.listdir(tmp_path / "folder") == ["target"]


def test_what_is_no_plain_file_is_not_replaced(checkpoint: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "loop"):
        with pytest.raises(CheckpointError, match=f"{name}: is not a plain file"):
            export_engine_file(checkpoint, tmp_path / name, overwrite=True)
    assert (tmp_path / "pipe").is_fifo()
