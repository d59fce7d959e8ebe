"""What PyTorch reaches for one request: a dense Transformer of the same sizes, compiled, in CUDA graphs.

    python scripts/baseline_cuda_graph.py --shape release --json -

The model is a plain one in bfloat16 with a static cache as long as the context asked for.  A step, from token
to next token, is compiled by ``torch.compile(mode="reduce-overhead")``, which replays it as a CUDA graph.
Before anything is timed, its logits are held against float32: they must be as close as those of the model
before compilation.  Keys and values of the prompt are made up, so prompts are not timed.  Tokens stay on the
GPU until the end of a run; an engine that shows them as they come has more to do.

Needs torch; ``scripts/bench_cuda.py --baseline`` runs this in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from laneformer.config import LaneformerConfig  # noqa: E402
from scripts.bench_cuda import SHAPES  # noqa: E402
from scripts.dense_transformer import DenseTransformer  # noqa: E402

CUDA_GRAPHS = "reduce-overhead"  # a mode of torch.compile
CHECKED_TOKENS = 8
WARM_UP_TOKENS = 8  # CUDA graphs are recorded in the second and third of them
# How much further from float32 than the eager model the compiled one may be: it rounds at other places.
MARGIN = 1.5
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def measure(
    config: LaneformerConfig,
    contexts: Sequence[int] = (256, 1024, 4096),
    *,
    new_tokens: int = 200,
    runs: int = 3,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    mode: str = CUDA_GRAPHS,
    time_limit: float = 90.0,
) -> dict[str, Any]:
    """Tokens per second at each context, prompt and answer together, the answer being ``new_tokens`` long.

    No context is begun after ``time_limit`` seconds; those left out are listed.  Raises :class:`RuntimeError`
    where the compiled step is less right than it should be, or does not run as a CUDA graph where it should.
    """
    start = time.perf_counter()
    found: list[dict[str, Any]] = []
    left_out: list[int] = []
    weight_bytes = 0
    for context in contexts:
        if time.perf_counter() - start > time_limit:
            left_out.append(context)
            continue
        model = build(config, context, device, dtype)
        weight_bytes = model.weight_bytes_per_token()
        compiled, seconds = _compiled(model, context - new_tokens, mode)
        errors = check(model, compiled, context - new_tokens)
        rates = [rate(model, compiled, new_tokens) for _ in range(runs)]
        found.append({"context": context, "tokens_per_second": rates, "compile_seconds": seconds} | errors)
        print(
            f"  baseline, context {context}: {statistics.median(rates):.1f} tokens/s "
            f"({min(rates):.1f}-{max(rates):.1f}), compiled in {seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {
        "model": "dense Transformer, torch.compile",
        "mode": mode,
        "dtype": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "device": name,
        "weight_bytes_per_token": weight_bytes,
        "new_tokens": new_tokens,
        "decode": found,
        "contexts_left_out_by_time_limit": left_out,
        "seconds": time.perf_counter() - start,
    }


def build(config: LaneformerConfig, context: int, device: str, dtype: torch.dtype) -> DenseTransformer:
    """The model with random weights and a full cache."""
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = DenseTransformer(config, context).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(default)
    model.fill_cache(seed=1)
    return model


def check(model: DenseTransformer, compiled: Step, start: int) -> dict[str, float]:
    """Errors of the eager and the compiled step against wider numbers, relative to the logits' size."""
    wider = torch.float64 if model.embedding.dtype == torch.float32 else torch.float32
    exact = _logits(copy.deepcopy(model).to(wider), start)
    size = exact.norm()
    eager = float((_logits(copy.deepcopy(model), start) - exact).norm() / size)
    error = float((_logits(compiled, start, model) - exact).norm() / size)
    if not error <= MARGIN * eager:  # also where it is not a number
        raise RuntimeError(
            f"the compiled model's logits are wrong: relative error {error:.2e}, and {eager:.2e} without "
            "compilation"
        )
    return {"eager_error": eager, "compiled_error": error}


@torch.no_grad()
def rate(model: DenseTransformer, step: Step, new_tokens: int) -> float:
    """Greedy tokens per second after the first, up to the end of the context."""
    token, position = _start(model, model.context - new_tokens)
    token = step(token, position)[0].clone()
    _wait(model)
    start = time.perf_counter()
    for _ in range(new_tokens - 1):
        position += 1
        token = step(token, position)[0].clone()  # the graph writes the next one to the same place
    _wait(model)
    return (new_tokens - 1) / (time.perf_counter() - start)


def _compiled(model: DenseTransformer, start: int, mode: str) -> tuple[Step, float]:
    """The compiled step, warm, and the seconds that this took."""
    torch._dynamo.reset()  # what was compiled for another length of the cache
    counters.clear()
    step: Step = torch.compile(model, mode=mode, fullgraph=True, dynamic=False)
    begun = time.perf_counter()
    _logits(step, start, model, WARM_UP_TOKENS)
    _wait(model)
    if skipped := counters["inductor"]["cudagraph_skips"]:
        raise RuntimeError(f"the compiled step does not run as a CUDA graph: {skipped} were skipped")
    return step, time.perf_counter() - begun


@torch.no_grad()
def _logits(
    step: Step | DenseTransformer,
    start: int,
    model: DenseTransformer | None = None,
    count: int = CHECKED_TOKENS,
) -> Tensor:
    """Logits ``[count, vocab]`` in float64 of made-up tokens from position ``start`` on."""
    if model is None:
        assert isinstance(step, DenseTransformer)
        model = step
    model.fill_cache(seed=1)  # earlier tokens are there no longer
    token, position = _start(model, start)
    rows = []
    for number in range(count):
        token = (token * 31 + number) % model.config.vocab_size
        rows.append(step(token, position)[1].double())
        position = position + 1
    return torch.cat(rows)


def _start(model: DenseTransformer, position: int) -> tuple[Tensor, Tensor]:
    device = model.embedding.device
    return torch.tensor([1], device=device), torch.tensor([position], device=device)


def _wait(model: DenseTransformer) -> None:
    if model.embedding.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    """Measure and write; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="release")
    parser.add_argument("--contexts", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=90.0, metavar="SECONDS")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here; - is standard output")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no CUDA device")
    if not CHECKED_TOKENS <= arguments.new_tokens < min(arguments.contexts):
        parser.error(f"--new-tokens must be {CHECKED_TOKENS} or more and less than every context")
    result = measure(
        LaneformerConfig(**SHAPES[arguments.shape]),
        arguments.contexts,
        new_tokens=arguments.new_tokens,
        runs=arguments.runs,
        time_limit=arguments.time_limit,
    )
    text = json.dumps({"shape": arguments.shape} | result, indent=1)
    if arguments.json == "-":
        print(text)
    elif arguments.json:
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
