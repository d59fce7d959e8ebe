"""One engine in a process of its own, which runs requests and times them: a part of ``bench_compare.py``.

    bench_worker.py ENGINE MODEL --threads 2 --context 1024

Each line on standard input is a JSON object, and so is each answer on standard output:

    {"prompt": [1, 2], "new_tokens": 3}  ->  {"first_token_seconds": s, "decode_seconds": s, "tokens": [...]}
    {"bandwidth": true}                  ->  {"bytes_per_second": b}     only the engine "cpu" knows
    {"memory": true}                     ->  {"peak_resident_bytes": b}

The first answer comes unasked when the model is loaded: versions, bytes of weights, what else it says.
Requests are greedy.  Engines are imported where they are used, for the interpreter that has llama.cpp need
not have ours.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass
class Loaded:
    """An engine with its model."""

    generate: Callable[[list[int], int], Iterator[int]]  # prompt and number of tokens
    packages: tuple[str, ...]
    weight_bytes: int  # read for one token
    details: dict[str, Any] = field(default_factory=dict)
    bandwidth: Callable[[], float] | None = None


def load_laneformer(kind: str, model: Path, threads: int, context: int) -> Loaded:
    """Our back ends ``cpu`` and ``numpy``, and our PyTorch model in ``pytorch-TYPE``, on a checkpoint."""
    sys.path.insert(0, str(ROOT))
    from infer.request import Request
    from infer.weights import open_model

    backend: Any
    details: dict[str, Any] = {}
    packages = ["numpy"]
    if kind.startswith("pytorch-"):
        import torch

        from laneformer import LaneformerForCausalLM
        from train.torch_backend import TorchBackend

        torch.set_num_threads(threads)
        torch_model = LaneformerForCausalLM.from_pretrained(model, dtype=_torch_type(kind)).eval()
        backend = TorchBackend(torch_model)
        backend.chunk_size = context  # the whole prompt at once is what PyTorch is fastest with
        weight_bytes = _parameter_bytes(torch_model)
        packages.append("torch")
    else:
        weights, _ = open_model(model)
        if kind == "cpu":
            from infer.backends.cpu_backend import CpuBackend

            lanes = weights.config.num_lanes
            backend = CpuBackend(weights, threads=threads, workers_per_lane=-(-threads // lanes))
            details = {"workers": len(backend.plan.workers), "threads": backend.threads}
        else:
            from infer.backends.numpy_backend import NumpyBackend

            backend = NumpyBackend(weights)
        weight_bytes = backend.weight_bytes_per_token

    def generate(prompt: list[int], new_tokens: int) -> Iterator[int]:
        for token, _ in backend.decode(Request(tuple(prompt), max_new_tokens=new_tokens)):
            yield token

    bandwidth = getattr(backend, "read_bandwidth", None)
    return Loaded(generate, tuple(packages), weight_bytes, details, bandwidth)


def load_transformers(kind: str, model: Path, threads: int, context: int) -> Loaded:
    """Hugging Face's LlamaForCausalLM in ``transformers-TYPE``, on a checkpoint of one lane."""
    sys.path.insert(0, str(ROOT))
    import torch
    import transformers

    from laneformer.checkpoint import Checkpoint
    from laneformer.importing.dense import is_turned
    from laneformer.importing.huggingface import their_name

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    weights = Checkpoint(model)
    config = weights.config
    if config.num_lanes != 1 or config.rope_scaling is not None or config.qk_norm:
        raise SystemExit("transformers: expected one lane, no rotary scaling, no query and key norm")
    network = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_size,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    state = {}
    for name in weights.names:
        values = weights.float32(name)
        values = values[0] if values.ndim == 3 else values  # the axis of lanes
        if is_turned(name):  # their rotary embedding wants each head's even rows first, then the odd ones
            pairs = values.reshape(-1, config.head_size // 2, 2, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        state[their_name(name)] = torch.tensor(values)
    absent, unknown = network.load_state_dict(state, strict=False)
    if unknown or set(absent) > {"lm_head.weight"}:
        raise SystemExit(f"transformers: tensors that do not fit: {absent} {unknown}")
    network = network.to(_torch_type(kind)).eval()

    @torch.inference_mode()
    def generate(prompt: list[int], new_tokens: int) -> Iterator[int]:
        # The loop itself: `model.generate` does the same and more around it.
        ids, cache = torch.tensor([prompt]), None
        for _ in range(new_tokens):
            output = network(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            ids = output.logits[:, -1].argmax(dim=-1, keepdim=True)
            yield int(ids)

    return Loaded(generate, ("transformers", "torch"), _parameter_bytes(network))


def load_llama_cpp(kind: str, model: Path, threads: int, context: int) -> Loaded:
    """llama.cpp on a GGUF file, through its C functions: none of the Python package's own work is timed."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    weights = llama_cpp.llama_model_load_from_file(
        str(model).encode(), llama_cpp.llama_model_default_params()
    )
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = context
    settings.n_threads = settings.n_threads_batch = threads
    state = llama_cpp.llama_init_from_model(weights, settings)
    if not weights or not state:
        raise SystemExit("llama.cpp could not load the model")
    greedy = llama_cpp.llama_sampler_init_greedy()

    def generate(prompt: list[int], new_tokens: int) -> Iterator[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(state), True)
        ids = prompt
        for _ in range(new_tokens):
            array = (ctypes.c_int32 * len(ids))(*ids)
            if llama_cpp.llama_decode(state, llama_cpp.llama_batch_get_one(array, len(ids))):
                raise SystemExit("llama_decode failed")
            ids = [llama_cpp.llama_sampler_sample(greedy, state, -1)]
            yield ids[0]

    details = {"system_info": llama_cpp.llama_print_system_info().decode().strip(" |")}
    size = llama_cpp.llama_model_size(weights)
    return Loaded(generate, ("llama_cpp_python",), size, details)


def load(kind: str, model: Path, threads: int, context: int) -> Loaded:
    """The engine called ``kind``."""
    if kind == "llama.cpp":
        return load_llama_cpp(kind, model, threads, context)
    if kind.startswith("transformers-"):
        return load_transformers(kind, model, threads, context)
    return load_laneformer(kind, model, threads, context)


def answer(engine: Loaded, asked: dict[str, Any]) -> dict[str, Any]:
    """Do what one line asks for."""
    if "bandwidth" in asked:
        return {"bytes_per_second": engine.bandwidth() if engine.bandwidth else None}
    if "memory" in asked:
        return {"peak_resident_bytes": peak_resident_bytes()}
    start = time.perf_counter()
    generated = engine.generate(asked["prompt"], asked["new_tokens"])
    tokens = [next(generated)]
    first = time.perf_counter()
    tokens += generated
    end = time.perf_counter()
    return {"first_token_seconds": first - start, "decode_seconds": end - first, "tokens": tokens}


def peak_resident_bytes() -> int | None:
    """As in ``infer/bench/machine.py``, which another interpreter may not find.  None where not on Linux."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peaks[0]) * 1024 if peaks else None


def main() -> int:
    """Load, say so, and answer until standard input ends."""
    parser = argparse.ArgumentParser(description="One engine of bench_compare.py.")
    parser.add_argument("engine")
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="most tokens of prompt and answer")
    arguments = parser.parse_args()
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)  # libraries print what they like
        engine = load(arguments.engine, arguments.model, arguments.threads, arguments.context)
        ready = {
            "packages": {name: importlib.metadata.version(name) for name in engine.packages},
            "weight_bytes": engine.weight_bytes,
            "details": engine.details,
        }
        print(json.dumps(ready), file=replies, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(engine, json.loads(line))), file=replies, flush=True)
    return 0


def _torch_type(kind: str) -> Any:
    import torch

    return getattr(torch, kind.split("-")[1])


def _parameter_bytes(model: Any) -> int:
    """All parameters once, a tied embedding as the head that it is."""
    unique = {parameter.data_ptr(): parameter.nbytes for parameter in model.parameters()}
    return sum(unique.values())


if __name__ == "__main__":
    raise SystemExit(main())
