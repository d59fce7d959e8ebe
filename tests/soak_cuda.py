"""Soak the CUDA back end: random requests, options, workers and cancels, each token compared.

    python tests/soak_cuda.py --seconds 240 --seed 1

Three small models run with few and with all workers, more than a third of the requests with checksums.  A
request's answer is recorded once, uncancelled; every later token must be that of the record, greedy ones
whatever the workers.  Of each model a few greedy records are held against numpy.  What was done is added, as
a piece, to ``docs/results/cuda_soak.json``, so that several runs add up.  Ends with exit code 1 where a token
was wrong or a request was given up or hung; the piece is written then too, and when the run is ended early
(SIGTERM).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from infer.atomic_file import atomic_file  # noqa: E402
from infer.backends.cuda_backend import CudaBackend, most_workers  # noqa: E402
from infer.backends.cuda_compile import compile_kernel  # noqa: E402
from infer.backends.cuda_device import Device  # noqa: E402
from infer.backends.numpy_backend import NumpyBackend  # noqa: E402
from infer.bench import commit, host_cpu  # noqa: E402
from infer.bench.machine import versions  # noqa: E402
from infer.request import Request  # noqa: E402
from infer.weights import Weights  # noqa: E402
from laneformer.errors import LaneformerError  # noqa: E402
from tests.infer.cuda_kernels import SOAK, kernel_for  # noqa: E402
from tests.infer.rounded import Rounded  # noqa: E402
from tests.tiny_models import RandomWeights  # noqa: E402

RESULT = ROOT / "docs" / "results" / "cuda_soak.json"
FEW_WORKERS = 3
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"repetition_penalty": 1.2},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.5, "top_k": 200, "top_p": 0.8, "repetition_penalty": 1.1},
)
CHECKSUM_SHARE = 1 / 2  # of choices of an engine; greedy records are made without, so of requests it is less
CANCEL_SHARE = 0.4
NEW_SHARE = 0.2  # of requests that are made up and recorded rather than repeated
NUMPY_RECORDS = 4  # of each model
# A greedy token's logit against numpy's best, over the largest: a prompt in chunks has 16-bit inputs, and
# the worst of a long answer counts.  test_cuda_backend.py allows one token 0.03; a term that is left out
# costs 0.1 or more.
CLOSE = 0.05
SCALE = 0.05  # of weights with 512 columns
HANG_SECONDS = 60.0
TELL_SECONDS = 30.0
MOST_FAILURES_TOLD = 5


@dataclass(frozen=True)
class Engine:
    """One back end of a model."""

    label: str
    checksums: bool
    backend: Any


@dataclass(frozen=True)
class Record:
    """A request and its answer; ``engine`` is the only one that may repeat it, None where all may."""

    request: Request
    tokens: list[int]
    engine: Engine | None


@dataclass(frozen=True)
class Model:
    """One model on several engines; the first records greedy answers."""

    name: str
    weights: Weights
    engines: Sequence[Engine]


class Soak:
    """Random requests to several models, and what came of them."""

    def __init__(self, models: Sequence[Model], seed: int) -> None:
        self.random = random.Random(seed)
        self.models = models
        self.records: dict[str, list[Record]] = {model.name: [] for model in models}
        self.numpy_records = dict.fromkeys(self.records, 0)
        self.failures: list[str] = []
        self.counts = dict.fromkeys(
            ("requests", "with_checksums", "cancelled", "tokens", "numpy_tokens", "mismatches", "hangs"), 0
        )
        self.running_seconds = 0.0
        self.began: float | None = None  # when the request now running was begun
        self.ended_early = False

    def run(self, seconds: float) -> None:
        """Requests until ``seconds`` have passed, or :meth:`end_early` was called."""
        start = told = time.monotonic()
        while not self.ended_early and time.monotonic() - start < seconds:
            self.run_one()
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                print(f"{told - start:.0f} s: {self.counts}", file=sys.stderr, flush=True)

    def end_early(self, *_: object) -> None:
        """After the request now running; a signal handler."""
        self.ended_early = True

    def run_one(self) -> None:
        """A request of one model: recorded now, or repeated and compared."""
        model = self.random.choice(self.models)
        records = self.records[model.name]
        if not records or self.random.random() < NEW_SHARE:
            self._record(model)
        else:
            self._repeat(model, self.random.choice(records))

    def _record(self, model: Model) -> None:
        options = self.random.choice(OPTIONS)
        greedy = not options.get("temperature")
        engine = model.engines[0] if greedy else self._engine(model)
        config = model.weights.config
        length = self.random.randrange(1, config.max_position_embeddings - 1)
        prompt = tuple(self.random.randrange(config.vocab_size) for _ in range(length))
        limit = self.random.randrange(1, config.max_position_embeddings)
        request = Request(prompt, max_new_tokens=limit, seed=self.random.randrange(1 << 30), **options)
        tokens = self._answer(engine, request, None)
        if tokens is None:
            return
        if len(tokens) != request.new_token_limit(config):
            self._mismatch(model, engine, request, f"{len(tokens)} tokens")
            return
        self.records[model.name].append(Record(request, tokens, None if greedy else engine))
        if options == {} and self.numpy_records[model.name] < NUMPY_RECORDS:
            self.numpy_records[model.name] += 1
            self._hold_against_numpy(model, engine, request, tokens)

    def _repeat(self, model: Model, record: Record) -> None:
        engine = record.engine or self._engine(model)
        wanted = len(record.tokens)
        cancelled = self.random.random() < CANCEL_SHARE
        if cancelled:
            wanted = self.random.randrange(1, wanted + 1)
        tokens = self._answer(engine, record.request, wanted if cancelled else None)
        if tokens is not None and tokens != record.tokens[:wanted]:
            right = [a == b for a, b in zip(tokens, record.tokens, strict=False)]
            place = right.index(False) if False in right else len(right)
            self._mismatch(model, engine, record.request, f"differs at {place} of {wanted}")
        self.counts["cancelled"] += cancelled

    def _engine(self, model: Model) -> Engine:
        checksums = self.random.random() < CHECKSUM_SHARE
        return self.random.choice([each for each in model.engines if each.checksums == checksums])

    def _answer(self, engine: Engine, request: Request, cancel_at: int | None) -> list[int] | None:
        """The tokens, up to where the request is cancelled; None where it was given up."""
        tokens: list[int] = []
        start = self.began = time.monotonic()
        stream = engine.backend.decode(request)
        try:
            for token, _ in stream:
                tokens.append(token)
                if len(tokens) == cancel_at:
                    time.sleep(self.random.random() * 1e-3)  # so that it ends at any place of a step
                    break
            stream.close()
        except LaneformerError as error:
            self.counts["hangs"] += 1
            self._tell(f"{engine.label}: {error}")
            return None
        finally:
            self.began = None
            self.running_seconds += time.monotonic() - start
            self.counts["requests"] += 1
            self.counts["with_checksums"] += engine.checksums
            self.counts["tokens"] += len(tokens)
        return tokens

    def _hold_against_numpy(self, model: Model, engine: Engine, request: Request, tokens: list[int]) -> None:
        ids = [*request.token_ids, *tokens]
        logits = NumpyBackend(model.weights).logits(ids[:-1])[len(request.token_ids) - 1 :]
        behind = logits.max(-1) - logits[np.arange(len(tokens)), tokens]
        self.counts["numpy_tokens"] += len(tokens)
        if float(behind.max()) > CLOSE * float(np.abs(logits).max()):
            self._mismatch(model, engine, request, f"numpy differs at {int(behind.argmax())}")

    def _mismatch(self, model: Model, engine: Engine, request: Request, what: str) -> None:
        self.counts["mismatches"] += 1
        self._tell(
            f"{model.name}, {engine.label}: {what}; prompt of {len(request.token_ids)}, "
            f"temperature {request.temperature}, seed {request.seed}"
        )

    def _tell(self, failure: str) -> None:
        print(failure, file=sys.stderr, flush=True)
        if len(self.failures) < MOST_FAILURES_TOLD:
            self.failures.append(failure)

    @property
    def failed(self) -> bool:
        """Whether anything was wrong."""
        return bool(self.counts["mismatches"] or self.counts["hangs"])


def cuda_models() -> list[Model]:
    """:data:`SOAK` on the GPU, with all workers and with few, plain and with checksums."""
    multiprocessors = Device().multiprocessors
    wanted = [
        (name, workers, checksums)
        for name, (config, _) in SOAK.items()
        for workers in (most_workers(config, multiprocessors), FEW_WORKERS)
        for checksums in (False, True)
    ]
    with ThreadPoolExecutor() as pool:  # NVRTC lets go of Python's lock

        def compiled(entry: tuple[str, int, bool]) -> Path:
            config, dtype = SOAK[entry[0]]
            float16 = dtype == "float16"
            return compile_kernel(config, kernel_for(config, entry[1], checksums=entry[2], float16=float16))

        list(pool.map(compiled, wanted))
    found = []
    for name, (config, dtype) in SOAK.items():
        weights = Rounded(RandomWeights(config, scale=SCALE), dtype)
        engines = [
            Engine(
                f"{workers} workers{', checksums' if checksums else ''}",
                checksums,
                CudaBackend(weights, workers_per_lane=workers, checksums=checksums),
            )
            for model, workers, checksums in wanted
            if model == name
        ]
        found.append(Model(name, weights, engines))
    return found


def watch(soak: Soak, hung: Callable[[], None], hang_seconds: float = HANG_SECONDS) -> None:
    """Call ``hung`` once when a request has run for ``hang_seconds``.  Runs in a thread until then."""
    while True:
        time.sleep(hang_seconds / 20)
        began = soak.began
        if began is not None and time.monotonic() - began > hang_seconds:
            soak.counts["hangs"] += 1
            soak.failures.append(f"a request did not end in {hang_seconds:g} seconds")
            hung()
            return


def piece(soak: Soak, about: Mapping[str, Any]) -> dict[str, Any]:
    """What one run did."""
    done = {"gpu_seconds": round(soak.running_seconds, 1)} | soak.counts
    return {**about, **done, "failures": list(soak.failures)}


def add_piece(path: Path, new: Mapping[str, Any]) -> dict[str, Any]:
    """Append to the pieces in ``path`` and add them up; returns the sums."""
    pieces = json.loads(path.read_text(encoding="utf-8"))["pieces"] if path.exists() else []
    pieces.append(new)
    summed = ("gpu_seconds", *(name for name in new if isinstance(new[name], int) and name != "seed"))
    total = {name: round(sum(each[name] for each in pieces), 1) for name in summed}
    text = json.dumps({"benchmark": "cuda soak", "total": total, "pieces": pieces}, indent=1)
    with atomic_file(path) as file:
        file.write((text + "\n").encode())
    return total


def main() -> int:
    """Soak, write, and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="how long to send requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=RESULT, metavar="FILE", help="where pieces add up")
    arguments = parser.parse_args()
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python tests/soak_cuda.py --seconds {arguments.seconds:g} --seed {arguments.seed}",
        "commit": commit(),
        "gpu": Device().name,
        "host_cpu": host_cpu(),
        "packages": versions(("numpy", "cupy-cuda13x")),
        "seed": arguments.seed,
    }
    soak = Soak(cuda_models(), arguments.seed)

    def hung() -> None:
        add_piece(arguments.json, piece(soak, about))
        os._exit(1)  # the thread that waits for the GPU cannot be ended

    signal.signal(signal.SIGTERM, soak.end_early)
    threading.Thread(target=watch, args=(soak, hung), daemon=True).start()
    soak.run(arguments.seconds)
    done = piece(soak, about)
    print(json.dumps({"this run": done, "total": add_piece(arguments.json, done)}, indent=1))
    return 1 if soak.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
