"""The CPU back end: a compiled library that answers a whole request on threads of its own.

Weights stay as they are stored and are widened in registers; everything else is float32, summed in one
order, so that the number of workers, the chunks of a prompt and the instruction set change no bit.
See ``docs/engine.md``.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from infer.backends.cpu_compile import CHUNK, compiled_library
from infer.backends.cpu_library import CRequest, CResult, CSampling, CTables, address, load_library
from infer.backends.cpu_memory import in_huge_pages
from infer.backends.cpu_tables import (
    STORED,
    check_context,
    head_norm_table,
    head_type_code,
    norm_table,
    plan_tables,
    rotation_tables,
)
from infer.plan import equal_shares, make_plan
from infer.plan.phases import mailbox_slots
from infer.request import Request
from infer.tape import open_tape
from infer.weights import Weights
from laneformer.errors import LaneformerError
from laneformer.machine import processors
from laneformer.parameters import EMBEDDING

FINISHED, CANCELLED, DEADLINE, STALLED, NOT_FINITE = range(5)
STALL_SECONDS = 60.0  # longest wait of one worker for another; a chunk of a prompt takes a fraction of it
POLL_SECONDS = 0.1  # how soon Ctrl-C is noticed; tokens wake the reader at once


class CpuBackend:
    """Runs :class:`infer.weights.Weights` on all cores that this process may use.

    ``workers_per_lane`` defaults to what keeps every core busy, ``threads`` to the cores; threads beyond the
    workers would have nothing to do.  ``chunk`` is how many tokens of a prompt run at once.
    ``deadline_seconds`` limits a whole request.  Requests run one
    after the other.  Raises :class:`CompileError`, :class:`CheckpointError`.
    """

    name = "cpu"

    def __init__(
        self,
        weights: Weights,
        *,
        workers_per_lane: int | None = None,
        threads: int | None = None,
        isa: str | None = None,
        chunk: int = CHUNK,
        deadline_seconds: float = 0.0,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self.config = config = weights.config
        check_context(config)
        cores = processors()
        self.plan = make_plan(config, equal_shares(config, workers_per_lane or -(-cores // config.num_lanes)))
        self.threads = min(threads or cores, len(self.plan.workers))
        self._library = load_library(compiled_library(config, isa, chunk))
        self.tape = tape = open_tape(weights, self.plan)
        self._deadline_seconds, self._stall_seconds = deadline_seconds, stall_seconds
        self._silent_worker = -1  # tests set it
        norms, head_norms = norm_table(config, tape), head_norm_table(config, tape)
        self.weight_bytes_per_token: int | None = tape.index.streamed_bytes + norms.nbytes
        self._keep, self._tables = self._c_tables(in_huge_pages(tape.bytes), norms, head_norms)
        self._open()

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits of every position, float32 ``[sequence, vocab]``.  The ids have been checked."""
        logits = np.empty((len(token_ids), self.config.vocab_size), np.float32)
        job = _Job(Request(tuple(token_ids), max_new_tokens=0), 0)
        job.request.all_logits = address(logits)
        for _ in self._run(job):
            pass
        return logits

    def decode(self, request: Request) -> Generator[tuple[int, float], None, None]:
        """Yield (token id, log-probability) as tokens are chosen; closing the iterator cancels.

        Raises :class:`LaneformerError` where the logits are not finite, where the deadline has passed, and,
        naming worker, layer and phase, where a worker waited too long for another.
        """
        limit = request.new_token_limit(self.config)
        if limit > 0:
            yield from self._run(_Job(request, limit))

    def read_bandwidth(self, megabytes: int = 512, rounds: int = 5) -> float:
        """Bytes per second that this back end's threads read from memory together: the wall for decoding."""
        data = np.zeros(megabytes * 1_000_000, np.uint8)
        data[:: 4096 // 2] = 1  # or all of it is one page of zeros
        found: float = self._library.laneformer_read_bandwidth(
            data.ctypes.data, data.nbytes, self.threads, rounds
        )
        return found

    def _run(self, job: _Job) -> Generator[tuple[int, float], None, None]:
        if self._process != os.getpid():  # threads do not follow into a forked process
            self._open()
        job.request.deadline_seconds = self._deadline_seconds
        job.request.stall_seconds = self._stall_seconds
        job.request.silent_worker = self._silent_worker
        library, engine, result = self._library, self._engine, job.result
        number = library.laneformer_start(engine, ctypes.byref(job.request))
        if number == 0:
            raise LaneformerError("not enough memory for the keys and values of this request")
        have = 0
        try:
            over = False
            while not over:
                over = bool(library.laneformer_wait(engine, number, ctypes.byref(result), have, POLL_SECONDS))
                for place in range(have, result.tokens):
                    have = place + 1
                    yield int(job.tokens[place]), float(job.log_probabilities[place])
        finally:
            library.laneformer_cancel(engine, number)  # also waits until nothing touches the job's memory
        if result.outcome != FINISHED:
            raise LaneformerError(self._failure(result))

    def _failure(self, result: CResult) -> str:
        if result.outcome == NOT_FINITE:
            return "the model's logits are not finite: its weights are too large for float32"
        if result.outcome == DEADLINE:
            return f"the deadline of {self._deadline_seconds:g} s passed after {result.tokens} tokens"
        if result.outcome == STALLED:
            worker, phase = self.plan.workers[result.worker], self.plan.phases[result.phase]
            where = "outside the layers" if phase.layer < 0 else f"layer {phase.layer}"
            return (
                f"worker {worker.index} (lane {worker.lane}) waited more than {self._stall_seconds:g} s for "
                f"worker {result.writer} in {where}, phase {phase.op.name.lower()}: the request was given up"
            )
        return "the request was cancelled"

    def _open(self) -> None:
        """Start the threads."""
        self._process = os.getpid()
        self._engine = self._library.laneformer_open(ctypes.byref(self._tables))
        if not self._engine:
            raise LaneformerError(f"not enough memory, or no {self.threads} threads, for the CPU back end")
        weakref.finalize(self, _close, self._library, self._engine, self._process, self._keep)

    def _c_tables(
        self, weights: np.ndarray, norms: np.ndarray, head_norms: np.ndarray | None
    ) -> tuple[list[Any], CTables]:
        """The tables that C reads, and what must live as long as they do."""
        config, tape, tables = self.config, self.tape, plan_tables(self.plan, self.tape)
        windows = [config.window(layer) or 0 for layer in range(config.num_hidden_layers)]
        window = np.array(windows, np.int32)
        cosines, sines = rotation_tables(config)
        embedding = next((entry for entry in tape.index.shared if entry.name == EMBEDDING), None)
        c_tables = CTables(
            workers=len(self.plan.workers),
            phases=len(self.plan.phases),
            layers=config.num_hidden_layers,
            threads=self.threads,
            context=config.max_position_embeddings,
            mailbox_slots=mailbox_slots(config),
            head_type=head_type_code(config),
            tied=embedding is None,
            pin=self.threads <= processors(),
            norm_epsilon=config.norm_eps,
            embedding_stored=STORED[embedding.dtype] if embedding else 0,
            embedding_offset=embedding.offset if embedding else -1,
            tape=address(weights),
            phase=address(tables.phase),
            lane=address(tables.lane),
            share=address(tables.share),
            page=address(tables.page),
            wait_start=address(tables.wait_start),
            wait_writer=address(tables.wait_writer),
            window=address(window),
            norm=address(norms),
            head_norm=address(head_norms),
            cosines=address(cosines),
            sines=address(sines),
        )
        return [weights, tables, window, norms, head_norms, cosines, sines], c_tables


class _Job:
    """One request's memory, shared with the library until the request is over."""

    def __init__(self, request: Request, limit: int) -> None:
        self._prompt = np.array(request.token_ids, np.int32)
        self._stop_ids = np.array(sorted(request.stop_token_ids), np.int64)
        self._stop_ids = self._stop_ids[self._stop_ids <= np.iinfo(np.int32).max].astype(np.int32)
        random = np.random.default_rng(request.seed)
        self._uniforms = random.random(limit) if request.temperature > 0 else None
        self.tokens = np.zeros(limit, np.int32)
        self.log_probabilities = np.zeros(limit, np.float64)
        self.result = CResult()
        self.request = CRequest(
            prompt=address(self._prompt),
            prompt_count=len(self._prompt),
            limit=limit,
            sampling=CSampling(
                temperature=request.temperature,
                top_p=request.top_p,
                min_p=request.min_p,
                repetition_penalty=request.repetition_penalty,
                top_k=min(request.top_k, np.iinfo(np.int32).max),
            ),
            uniforms=address(self._uniforms),
            stop_ids=address(self._stop_ids),
            stop_count=len(self._stop_ids),
            tokens=address(self.tokens),
            log_probabilities=address(self.log_probabilities),
            result=ctypes.pointer(self.result),
        )


def _close(library: ctypes.CDLL, engine: int, process: int, keep: list[Any]) -> None:
    """End the threads, then let go of what they read."""
    if process == os.getpid():
        library.laneformer_close(engine)
    keep.clear()
