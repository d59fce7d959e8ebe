"""Runs a suite: problems -> completions -> programs -> verdicts -> pass@k.

    suite = load_suite("humaneval")
    result = evaluate_suite(EngineGenerator(engine), suite)
    print(result.pass_at_k[1])

While the model writes the next completion, a pool of threads judges those that it has written.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.generate import CanonicalGenerator, Generator, complete, sample_seed
from evals.judging import Judges, pool_size, progress_bar
from evals.overlap import overlapped
from evals.passk import mean_pass_at_k
from evals.problems import Problem, fingerprint
from evals.prompts import BaseFormat, PromptFormat
from evals.records import CompletionRecord, PromptRecord, RunFolder, Sample
from evals.sandbox.folders import hideable, remove_abandoned
from evals.sandbox.runner import NO_CODE, STATUSES, WALL_FACTOR, Limits, Sandbox
from evals.suites import Suite
from laneformer.errors import EvaluationError

_MOST_SECONDS = 86_400
# An interpreter with a few modules of the standard library needs the least; kernels count the most.
_LEAST_BYTES = 1 << 27
_MOST_BYTES = 1 << 40


@dataclass(frozen=True)
class SuiteResult:
    """What a run found."""

    pass_at_k: dict[int, float]
    """k -> mean pass@k over the problems, in [0, 1]."""
    status_counts: dict[str, int]
    """Status -> number of samples, for every status."""
    samples: list[Sample]
    """By problem, then by sample."""
    isolation: dict[str, bool]
    """Which kinds of isolation were active."""
    generated_tokens: int | None
    """Of all samples, those of earlier calls on one folder included; None where nobody counts."""
    generation_seconds: float
    """What those took, prompts included."""

    @property
    def tokens_per_second(self) -> float | None:
        """Generation speed; None when the generator does not tell or nothing was generated."""
        if not self.generated_tokens or not self.generation_seconds:
            return None
        return self.generated_tokens / self.generation_seconds


def evaluate_suite(
    generator: Generator | CanonicalGenerator,
    suite: Suite,
    *,
    prompt_format: PromptFormat | None = None,
    samples_per_problem: int = 1,
    temperature: float = 0.0,
    top_p: float = 1.0,
    max_new_tokens: int = 512,
    ks: Sequence[int] = (1,),
    seed: int = 0,
    timeout_seconds: float | None = None,
    wall_seconds: float | None = None,
    memory_bytes: int = 2 << 30,
    workers: int | None = None,
    must_run: bool = False,
    output_dir: str | Path | None = None,
    model: str = "",
    model_sha256: str | None = None,
    backend: str | None = None,
    progress: bool = True,
) -> SuiteResult:
    """Samples, judges and scores.

    ``prompt_format`` is by default the base format with the suite's number of solved examples, and
    ``timeout_seconds`` the suite's; for that and ``wall_seconds`` see :class:`evals.sandbox.runner.Limits`,
    for ``workers`` and ``must_run`` :func:`evals.judging.pool_size`.  With ``output_dir``, completions and
    samples are written as they come, and a folder of an interrupted run with the same settings is continued;
    ``model`` and ``backend`` name there what wrote, and ``model_sha256`` tells the model from another of the
    same name.

    Raises EvaluationError when the request cannot give a right number: sampling options that no model
    takes (``temperature`` below 0, ``top_p`` outside of (0, 1], ...), fewer samples than the largest k,
    identical samples (temperature 0) counted as several, a folder with other settings, no prompt
    that the model can take, or a machine without a working sandbox.
    """
    check_sampling(temperature, top_p, max_new_tokens, seed)
    problems = suite.problems
    if not problems:
        raise EvaluationError("there are no problems to evaluate")
    timeout_seconds = suite.timeout_seconds if timeout_seconds is None else timeout_seconds
    check_samples(samples_per_problem, temperature, ks)
    limits = checked_limits(timeout_seconds, wall_seconds, memory_bytes, workers)
    prompt_format = BaseFormat(suite.shots()) if prompt_format is None else prompt_format
    prompts = {problem.task_id: PromptRecord.of(problem, prompt_format) for problem in problems}
    settings = {
        "suite": suite.name,
        "split": suite.split,
        "prompt_format": prompt_format.name,
        "shots": prompt_format.shots,
        "model": model,
        "model_sha256": model_sha256,
        "backend": backend,
        "problems": len(problems),
        "problems_sha256": fingerprint(problems),
        "prompts_sha256": _prompts_sha256(prompts.values()),
        "samples_per_problem": samples_per_problem,
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "timeout_seconds": timeout_seconds,
        "wall_seconds": limits.clock_seconds,
        "memory_bytes": memory_bytes,
    }
    hidden = [*suite.answer_locations, *(() if output_dir is None else [hideable(Path(output_dir))])]
    remove_abandoned()
    sandbox = Sandbox(limits, hidden_paths=hidden)
    isolation = sandbox.isolation()
    workers = pool_size(memory_bytes, workers, must_run=must_run)
    # Only when programs can be judged: settings that cannot be used would stay in the folder.
    folder = None if output_dir is None else RunFolder(Path(output_dir), settings, prompts.values())

    samples = {(sample.task_id, sample.sample): sample for sample in (folder.finished if folder else ())}
    written = {(found.task_id, found.sample): found for found in (folder.completions if folder else ())}
    pending = [
        (problem_index, sample_index)
        for problem_index, problem in enumerate(problems)
        for sample_index in range(samples_per_problem)
        if (problem.task_id, sample_index) not in samples
    ]
    bar = progress_bar(len(pending), suite.name, progress)

    def keep(sample: Sample) -> None:
        if folder is not None:
            folder.add(sample)
        if bar is not None:
            bar.update()

    def completion_of(place: tuple[int, int]) -> CompletionRecord:
        problem_index, sample_index = place
        problem = problems[problem_index]
        found = written.get((problem.task_id, sample_index))
        if found is not None:
            return found
        own_seed = sample_seed(seed, problem_index, sample_index)
        made = complete(
            generator,
            problem,
            prompt_format,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=own_seed,
        )
        completion = CompletionRecord(
            task_id=problem.task_id,
            sample=sample_index,
            prompt_sha256=prompts[problem.task_id].prompt_sha256,
            completion=made.text,
            refusal=made.refusal,
            seed=own_seed,
            tokens=made.tokens,
            generation_seconds=round(made.seconds, 6),
        )
        if folder is not None:  # before it is judged, or waits for others: it may have cost minutes
            folder.add_completion(completion)
        return completion

    try:
        with (
            Judges(sandbox, workers, keep) as judges,
            closing(overlapped(completion_of, pending, getattr(generator, "concurrency", 1))) as completions,
        ):
            for (problem_index, sample_index), completion in completions:
                problem = problems[problem_index]
                written[problem.task_id, sample_index] = completion
                judges.submit(problem, completion, prompt_format.program(problem, completion.completion))
            judged = judges.results()
        samples.update({(sample.task_id, sample.sample): sample for sample in judged})
        ordered = [
            samples[problem.task_id, index] for problem in problems for index in range(samples_per_problem)
        ]
        if all(sample.status == "no-code" and sample.detail != NO_CODE for sample in ordered):
            raise EvaluationError(f"the model could not take any of the prompts: {ordered[0].detail}")
        result = _result(ordered, problems, samples_per_problem, ks, isolation, written.values())
        if folder is not None:
            retried = len({(retry.task_id, retry.sample) for retry in folder.retries})
            folder.write_summary({"complete": True, **_summary(result), "retried_timeouts": retried})
    finally:
        if bar is not None:
            bar.close()
        if folder is not None:
            folder.close()
    return result


def _result(
    samples: list[Sample],
    problems: Sequence[Problem],
    samples_per_problem: int,
    ks: Sequence[int],
    isolation: dict[str, bool],
    completions: Iterable[CompletionRecord],
) -> SuiteResult:
    passed = Counter(sample.task_id for sample in samples if sample.status == "passed")
    counts = [(samples_per_problem, passed[problem.task_id]) for problem in problems]
    statuses = Counter(sample.status for sample in samples)
    timed = [(found.tokens, found.generation_seconds) for found in completions if found.tokens is not None]
    return SuiteResult(
        pass_at_k={k: mean_pass_at_k(counts, k) for k in sorted(set(ks))},
        status_counts={status: statuses[status] for status in STATUSES},
        samples=samples,
        isolation=isolation,
        generated_tokens=sum(tokens for tokens, _ in timed) if timed else None,
        generation_seconds=sum(seconds for _, seconds in timed),
    )


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


def checked_limits(
    timeout_seconds: float, wall_seconds: float | None, memory_bytes: int, workers: int | None
) -> Limits:
    """The limits of one program; EvaluationError where they, or ``workers``, make no sense."""
    if workers is not None and workers < 1:
        raise EvaluationError(f"workers must be at least 1, found {workers}")
    if not 0 < timeout_seconds <= _MOST_SECONDS:
        raise EvaluationError(f"the timeout must be 0 to {_MOST_SECONDS} seconds, found {timeout_seconds:g}")
    if wall_seconds is not None and not 0 < wall_seconds <= WALL_FACTOR * _MOST_SECONDS:
        most = WALL_FACTOR * _MOST_SECONDS
        raise EvaluationError(f"the wall timeout must be 0 to {most:.0f} seconds, found {wall_seconds:g}")
    if not _LEAST_BYTES <= memory_bytes <= _MOST_BYTES:
        raise EvaluationError(f"the memory must be 0.125 GiB to 1024 GiB, found {memory_bytes / (1 << 30):g}")
    return Limits(timeout_seconds=timeout_seconds, wall_seconds=wall_seconds, memory_bytes=memory_bytes)


def check_samples(samples: int, temperature: float, ks: Sequence[int]) -> None:
    """EvaluationError where so many samples per problem, drawn so, give no pass@k."""
    if samples < 1:
        raise EvaluationError(f"samples per problem must be at least 1, found {samples}")
    if not ks or min(ks) < 1:
        raise EvaluationError("pass@k needs at least one k, each at least 1")
    if max(ks) > samples:
        raise EvaluationError(f"pass@{max(ks)} needs at least {max(ks)} samples per problem, found {samples}")
    if samples > 1 and temperature == 0.0:
        raise EvaluationError(
            f"temperature 0 would give {samples} identical samples: use 1, or a temperature"
        )


def _prompts_sha256(prompts: Iterable[PromptRecord]) -> str:
    """Over all prompts, in order: another template or other examples make another run."""
    return hashlib.sha256(json.dumps([prompt.prompt_sha256 for prompt in prompts]).encode()).hexdigest()


def _summary(result: SuiteResult) -> dict[str, Any]:
    return {
        "pass_at_k": {str(k): value for k, value in result.pass_at_k.items()},
        "status_counts": result.status_counts,
        "isolation": result.isolation,
        "generated_tokens": result.generated_tokens,
        "generation_seconds": round(result.generation_seconds, 3),
        "tokens_per_second": result.tokens_per_second,
    }
