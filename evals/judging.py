"""A pool of threads that judge completions while the model writes the next one."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from evals.problems import Problem
from evals.records import CompletionRecord, Sample
from evals.sandbox.runner import Sandbox, Verdict
from laneformer.errors import EvaluationError
from laneformer.machine import free_memory_bytes, processors

# Of the interpreters that judge one program: 170 MB were measured for an evaluation with two workers
# (docs/results/humaneval_verdicts.json).
_OWN_BYTES = 1 << 26
_WAIT_SECONDS = 60.0


def pool_size(memory_bytes: int, workers: int | None = None, *, must_run: bool = False) -> int:
    """How many programs, of which each may take ``memory_bytes``, are run at once.

    ``workers`` is taken as it is, with a warning on standard error where their limits together are more than
    the free memory.  Without it: one per processor, and no more than there is memory for.  Where there is
    not enough for one, waits a minute for it; then raises EvaluationError or, with ``must_run``, warns and
    goes on with one.
    """
    each = memory_bytes + _OWN_BYTES
    free = free_memory_bytes()
    if workers is not None:
        if free < workers * each:
            _warn(f"{workers} programs at once may take {_gib(workers * each)}, and {_gib(free)} are free")
        return workers
    if free < each:
        _warn(f"a program may take {_gib(each)} of memory, and {_gib(free)} are free: waiting for more")
        deadline = time.monotonic() + _WAIT_SECONDS
        while free < each and time.monotonic() < deadline:
            time.sleep(1.0)
            free = free_memory_bytes()
    if free < each:
        lacking = f"a program may take {_gib(each)} of memory, and only {_gib(free)} are free"
        if not must_run:
            raise EvaluationError(
                f"{lacking}: free some, give --memory-gb less, or --workers 1 to go on anyway"
            )
        _warn(f"{lacking}; going on, one program at a time")
        return 1
    return min(processors(), free // each)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


class Judges:
    """``workers`` threads, each waiting for one sandboxed program at a time.

    ``keep`` is called, in those threads, with every sample when it has been judged.  A context manager: at
    the end, programs that run already are still judged and kept.
    """

    def __init__(self, sandbox: Sandbox, workers: int, keep: Callable[[Sample], None]) -> None:
        self._sandbox = sandbox
        self._keep = keep
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="judge")
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


def progress_bar(total: int, name: str, progress: bool) -> Any:
    """A bar of samples on standard error; None where it is not wanted or tqdm is not installed."""
    if not progress:
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit="sample", desc=name, disable=None)
