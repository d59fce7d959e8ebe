"""Soak the CPU back end: many requests with random workers, settings and cancels, each token checked.

    python tests/soak_cpu.py --tokens 200000 --json result.json

Every request is also answered by the numpy back end, once: answers are kept, since a model has few
prompts here.  Ends with exit code 1 at the first wrong token, and with a traceback where one hangs.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from infer.backends.cpu_backend import CpuBackend  # noqa: E402
from infer.backends.numpy_backend import NumpyBackend  # noqa: E402
from infer.bench import commit, host_cpu  # noqa: E402
from infer.request import Request  # noqa: E402
from tests.tiny_models import RandomWeights, tiny_config  # noqa: E402

HANG_SECONDS = 60
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.2},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9, "min_p": 0.01},
)
# (workers per lane, threads): fewer threads than workers, as many, more than cores.
SHARES = ((1, 1), (1, 2), (2, 2), (3, 2), (5, 2), (2, 5), (5, 20))


class Soak:
    """Random requests to one model on several back ends, held against numpy."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        weights = RandomWeights(tiny_config())
        self.config = weights.config
        self.reference = NumpyBackend(weights)
        self.backends = [CpuBackend(weights, workers_per_lane=w, threads=t) for w, t in SHARES]
        self.answers: dict[tuple[int, int, int], list[int]] = {}
        self.tokens = self.requests = self.cancelled = 0

    def run_one(self) -> None:
        """One request, compared with numpy up to where it was cancelled."""
        length, seed = self.random.choice((1, 5, 17, 40)), self.random.randrange(3)
        kind = self.random.randrange(len(SETTINGS))
        prompt = tuple((7 * place + seed) % self.config.vocab_size for place in range(length))
        request = Request(prompt, max_new_tokens=1000, seed=seed, **SETTINGS[kind])
        key = (length, seed, kind)
        if key not in self.answers:
            self.answers[key] = [token for token, _ in self.reference.decode(request)]
        expected = self.answers[key]
        wanted = self.random.choice((len(expected), len(expected), self.random.randrange(1, len(expected))))
        backend = self.random.choice(self.backends)
        stream, found = backend.decode(request), []
        for token, _ in stream:
            found.append(token)
            if len(found) == wanted:
                break
        stream.close()
        self.tokens += len(found)
        self.requests += 1
        self.cancelled += wanted < len(expected)
        if found != expected[:wanted]:
            workers = len(backend.plan.workers)
            raise SystemExit(
                f"wrong tokens with {workers} workers on {backend.threads} threads: {found} for {request}, "
                f"expected {expected[:wanted]}"
            )


def soak(tokens: int, seed: int = 0) -> dict[str, Any]:
    """Run until ``tokens`` tokens have been compared; what was done."""
    soak = Soak(seed)
    start = time.monotonic()
    while soak.tokens < tokens:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        soak.run_one()
    faulthandler.cancel_dump_traceback_later()
    return {
        "tokens": soak.tokens,
        "requests": soak.requests,
        "cancelled": soak.cancelled,
        "wrong_tokens": 0,
        "seconds": round(time.monotonic() - start, 1),
        "workers_and_threads": SHARES,
        "seed": seed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the result here")
    args = parser.parse_args()
    result = soak(args.tokens, args.seed) | {"commit": commit(), "host_cpu": host_cpu()}
    print(json.dumps(result))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
