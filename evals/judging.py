"""A pool of threads that judge completions while the model writes the next one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from evals.problems import Problem
from evals.records import CompletionRecord, Sample
from evals.sandbox.runner import Sandbox, Verdict


class Judges:
    """``workers`` threads, each waiting for one sandboxed program at a time.

    ``keep`` is called, in those threads, with every sample when it has been judged.  A context manager: at
    the end, programs that run already are still judged and kept.
    """

    def __init__(self, sandbox: Sandbox, workers: int | None, keep: Callable[[Sample], None]) -> None:
        self._sandbox = sandbox
        self._keep = keep
        self._pool = ThreadPoolExecutor(workers or processors(), thread_name_prefix="judge")
        self._waiting: deque[Future[Sample]] = deque()
        self._done: list[Sample] = []

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def submit(self, problem: Problem, completion: CompletionRecord, program: str | None) -> None:
        """Queues the program of ``completion``; None where it holds none."""
        self._waiting.append(self._pool.submit(self._judge, problem, completion, program))
        while self._waiting and self._waiting[0].done():
            # An error in the sandbox ends the run here, not after all has been generated.
            self._done.append(self._waiting.popleft().result())

    def results(self) -> list[Sample]:
        """All samples submitted, when the last has been judged."""
        self._done += [future.result() for future in self._waiting]
        self._waiting.clear()
        return self._done

    def _judge(self, problem: Problem, completion: CompletionRecord, program: str | None) -> Sample:
        if completion.refusal:
            verdict = Verdict("no-code", completion.refusal, 0.0)
        else:
            verdict = self._sandbox.run(program, problem)
        sample = Sample(
            task_id=completion.task_id,
            sample=completion.sample,
            prompt_sha256=completion.prompt_sha256,
            completion=completion.completion,
            program=program,
            status=verdict.status,
            detail=verdict.detail,
            seconds=round(verdict.seconds, 4),
            seed=completion.seed,
            tokens=completion.tokens,
        )
        self._keep(sample)
        return sample


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def progress_bar(total: int, name: str, progress: bool) -> Any:
    """A bar of samples on standard error; None where it is not wanted or tqdm is not installed."""
    if not progress:
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit="sample", desc=name, disable=None)
