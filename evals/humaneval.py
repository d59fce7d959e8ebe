"""Runs HumanEval: problems -> completions -> programs -> verdicts -> pass@k.

    result = evaluate_humaneval(EngineGenerator(engine), load_problems())
    print(result.pass_at_k[1])

While the model writes the next completion, a pool of threads judges those that it has written.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.extract import extract_program
from evals.generate import CanonicalGenerator, Completion, Generator, complete, sample_seed
from evals.passk import mean_pass_at_k
from evals.problems import Problem, answer_locations, fingerprint
from evals.records import RunFolder, Sample
from evals.sandbox.runner import NO_CODE, STATUSES, Limits, Sandbox, Verdict
from laneformer.errors import EvaluationError

_MOST_SECONDS = 86_400
# An interpreter with a few modules of the standard library needs the least; kernels count the most.
_LEAST_BYTES = 1 << 27
_MOST_BYTES = 1 << 40


@dataclass(frozen=True)
class HumanEvalResult:
    """What a run found."""

    pass_at_k: dict[int, float]
    """k -> mean pass@k over the problems, in [0, 1]."""
    status_counts: dict[str, int]
    """Status -> number of samples, for every status."""
    samples: list[Sample]
    """By problem, then by sample."""
    isolation: dict[str, bool]
    """Which kinds of isolation were active."""
    tokens_per_second: float | None
    """Generation speed in this call; None when the generator does not tell or nothing was generated."""


def evaluate_humaneval(
    generator: Generator | CanonicalGenerator,
    problems: Sequence[Problem],
    *,
    samples_per_problem: int = 1,
    temperature: float = 0.0,
    top_p: float = 1.0,
    max_new_tokens: int = 512,
    ks: Sequence[int] = (1,),
    seed: int = 0,
    timeout_seconds: float = 10.0,
    memory_bytes: int = 2 << 30,
    workers: int | None = None,
    output_dir: str | Path | None = None,
    model: str = "",
    model_sha256: str | None = None,
    hidden_paths: Sequence[Path] = (),
    progress: bool = True,
) -> HumanEvalResult:
    """Samples, judges and scores.

    ``workers`` programs run at once (default: one per processor).  With ``output_dir``, samples are
    written as they finish, and a folder of an interrupted run with the same settings is continued;
    ``model`` names the model there, and ``model_sha256`` (:func:`evals.model_hash.model_sha256`) tells it
    from another of the same name.  ``hidden_paths`` are kept from the programs besides the
    default problems.

    Raises EvaluationError when the request cannot give a right number: sampling options that no model
    takes (``temperature`` below 0, ``top_p`` outside of (0, 1], ...), fewer samples than the largest k,
    identical samples (temperature 0) counted as several, a folder with other settings, no prompt
    that the model can take, or a machine without a working sandbox.
    """
    check_sampling(temperature, top_p, max_new_tokens, seed)
    _check_request(problems, samples_per_problem, temperature, ks, timeout_seconds, memory_bytes, workers)
    settings = {
        "model": model,
        "model_sha256": model_sha256,
        "problems": len(problems),
        "problems_sha256": fingerprint(problems),
        "samples_per_problem": samples_per_problem,
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "timeout_seconds": timeout_seconds,
        "memory_bytes": memory_bytes,
    }
    folder = None if output_dir is None else RunFolder(Path(output_dir), settings)
    limits = Limits(timeout_seconds=timeout_seconds, memory_bytes=memory_bytes)
    sandbox = Sandbox(limits, hidden_paths=[*answer_locations(), *hidden_paths])
    isolation = sandbox.isolation()

    samples = {(sample.task_id, sample.sample): sample for sample in (folder.finished if folder else ())}
    pending = [
        (problem_index, sample_index)
        for problem_index, problem in enumerate(problems)
        for sample_index in range(samples_per_problem)
        if (problem.task_id, sample_index) not in samples
    ]
    with _Judges(sandbox, folder, workers or _processors(), len(pending), progress) as judges:
        for problem_index, sample_index in pending:
            problem = problems[problem_index]
            own_seed = sample_seed(seed, problem_index, sample_index)
            completion = complete(
                generator,
                problem,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                seed=own_seed,
            )
            judges.submit(problem, sample_index, completion, own_seed)
        judged = judges.results()
    samples.update({(sample.task_id, sample.sample): sample for sample in judged})

    ordered = [
        samples[problem.task_id, index] for problem in problems for index in range(samples_per_problem)
    ]
    if all(sample.status == "no-code" and sample.detail != NO_CODE for sample in ordered):
        raise EvaluationError(f"the model could not take any of the prompts: {ordered[0].detail}")
    passed = Counter(sample.task_id for sample in ordered if sample.status == "passed")
    counts = [(samples_per_problem, passed[problem.task_id]) for problem in problems]
    statuses = Counter(sample.status for sample in ordered)
    result = HumanEvalResult(
        pass_at_k={k: mean_pass_at_k(counts, k) for k in sorted(set(ks))},
        status_counts={status: statuses[status] for status in STATUSES},
        samples=ordered,
        isolation=isolation,
        tokens_per_second=_tokens_per_second(generator),
    )
    if folder is not None:
        folder.write_summary({"complete": True, **_summary(result)})
    return result


class _Judges:
    """A pool of threads, each waiting for one sandboxed program at a time."""

    def __init__(
        self, sandbox: Sandbox, folder: RunFolder | None, workers: int, total: int, progress: bool
    ) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="judge")
        self._waiting: deque[Future[Sample]] = deque()
        self._done: list[Sample] = []
        self._bar = _progress_bar(total, progress)

    def __enter__(self) -> _Judges:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an interruption, programs that run already are still judged and written down.
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if self._bar is not None:
            self._bar.close()

    def submit(self, problem: Problem, index: int, completion: Completion, seed: int) -> None:
        """Extracts the program and queues it."""
        program = extract_program(problem.prompt, completion.text, problem.entry_point)
        self._waiting.append(self._pool.submit(self._judge, problem, index, completion, program, seed))
        while self._waiting and self._waiting[0].done():
            # An error in the sandbox ends the run here, not after all has been generated.
            self._done.append(self._waiting.popleft().result())

    def results(self) -> list[Sample]:
        """All samples submitted, when the last has been judged."""
        self._done += [future.result() for future in self._waiting]
        self._waiting.clear()
        return self._done

    def _judge(
        self, problem: Problem, index: int, completion: Completion, program: str | None, seed: int
    ) -> Sample:
        if completion.refusal:
            verdict = Verdict("no-code", completion.refusal, 0.0)
        else:
            verdict = self._sandbox.run(program, problem)
        sample = Sample(
            task_id=problem.task_id,
            sample=index,
            prompt_sha256=hashlib.sha256(problem.prompt.encode()).hexdigest(),
            completion=completion.text,
            program=program,
            status=verdict.status,
            detail=verdict.detail,
            seconds=round(verdict.seconds, 4),
            seed=seed,
        )
        if self._folder is not None:
            self._folder.add(sample)
        if self._bar is not None:
            self._bar.update()
        return sample


def check_sampling(temperature: float, top_p: float, max_new_tokens: int, seed: int) -> None:
    """EvaluationError for options that a model would refuse with every prompt, as if those were at fault."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise EvaluationError(f"temperature must be 0 (greedy) or more, found {temperature:g}")
    if not 0 < top_p <= 1:
        raise EvaluationError(f"top-p must be above 0 and at most 1, found {top_p:g}")
    if max_new_tokens < 1:
        raise EvaluationError(f"max new tokens must be at least 1, found {max_new_tokens}")
    if seed < 0:
        raise EvaluationError(f"seed must be 0 or more, found {seed}")


def _check_request(
    problems: Sequence[Problem],
    samples: int,
    temperature: float,
    ks: Sequence[int],
    timeout_seconds: float,
    memory_bytes: int,
    workers: int | None,
) -> None:
    if not problems:
        raise EvaluationError("there are no problems to evaluate")
    if samples < 1:
        raise EvaluationError(f"samples per problem must be at least 1, found {samples}")
    if workers is not None and workers < 1:
        raise EvaluationError(f"workers must be at least 1, found {workers}")
    if not 0 < timeout_seconds <= _MOST_SECONDS:
        raise EvaluationError(f"the timeout must be 0 to {_MOST_SECONDS} seconds, found {timeout_seconds:g}")
    if not _LEAST_BYTES <= memory_bytes <= _MOST_BYTES:
        raise EvaluationError(f"the memory must be 0.125 GiB to 1024 GiB, found {memory_bytes / (1 << 30):g}")
    if not ks or min(ks) < 1:
        raise EvaluationError("pass@k needs at least one k, each at least 1")
    if max(ks) > samples:
        raise EvaluationError(f"pass@{max(ks)} needs at least {max(ks)} samples per problem, found {samples}")
    if samples > 1 and temperature == 0.0:
        raise EvaluationError(
            f"temperature 0 would give {samples} identical samples: use 1, or a temperature"
        )


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _progress_bar(total: int, progress: bool) -> Any:
    if not progress:
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit="sample", desc="humaneval", disable=None)


def _tokens_per_second(generator: Generator | CanonicalGenerator) -> float | None:
    tokens = getattr(generator, "generated_tokens", 0)
    seconds = getattr(generator, "generation_seconds", 0.0)
    return tokens / seconds if tokens and seconds else None


def _summary(result: HumanEvalResult) -> dict[str, Any]:
    return {
        "pass_at_k": {str(k): value for k, value in result.pass_at_k.items()},
        "status_counts": result.status_counts,
        "isolation": result.isolation,
        "tokens_per_second": result.tokens_per_second,
    }
