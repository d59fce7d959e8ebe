"""The CUDA back end: one kernel launch answers a whole request.

Weights are streamed as they are stored, 16 bits each; keys and values are kept in the same type; sums and the
residual stream are float32.  See ``docs/engine.md`` and ``kernels/cuda``.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from infer.backends.cpu_tables import head_norm_table, norm_table
from infer.backends.cuda_compile import ENTRY, compile_kernel, nvrtc_version
from infer.backends.cuda_device import Device, Launch
from infer.backends.cuda_request import OUTCOMES, PLACES, REQUEST, Outcome
from infer.backends.cuda_source import Kernel, split_count
from infer.plan import equal_shares, make_plan
from infer.request import Request
from infer.tape import TileIndex, open_tape
from infer.tape.tile_layout import TILE, ceil_div
from infer.tape.tiles import head_rows, matrix_type
from infer.weights import Weights
from laneformer.config import LaneformerConfig
from laneformer.errors import ConfigError, LaneformerError
from laneformer.parameters import EMBEDDING, parameter_shapes
from laneformer.rope import rotation_table

STALL_SECONDS = 2.0  # longest step of one token; a chunk of a prompt takes a few milliseconds
POLL_SECONDS = 20e-6  # between two looks at the tokens; one takes about a millisecond
LAST_EPOCH = 1 << 32
MOST_LANES = 32  # packets that a thread waits for at once


class CudaBackend:
    """Runs :class:`infer.weights.Weights` of one 16-bit type on one GPU.

    ``workers_per_lane`` is the number of multiprocessors that serve a lane (default: as many as there are),
    ``context`` the positions that keys and values have room for (default: the model's), ``checksums``
    verifies every packet.  A request in which a step takes longer than ``stall_seconds`` is given up.
    ``kernel_changes`` are fields of :class:`Kernel` that tests want otherwise.  Raises
    :class:`CudaCompileError`, :class:`CheckpointError`, :class:`ConfigError`, and :class:`LaneformerError`
    where there is no GPU that can run it or not enough memory.
    """

    name = "cuda"

    def __init__(
        self,
        weights: Weights,
        *,
        workers_per_lane: int | None = None,
        context: int | None = None,
        checksums: bool = False,
        stall_seconds: float = STALL_SECONDS,
        kernel_changes: Mapping[str, Any] | None = None,
    ) -> None:
        config = weights.config
        check_model(weights)
        self._device = device = Device()
        nvrtc_version()  # before weights are packed: a compiler that is missing is told at once
        workers = workers_per_lane or most_workers(config, device.multiprocessors)
        check_workers(config, workers, device.multiprocessors)
        self.plan = make_plan(config, equal_shares(config, workers))
        # A request is checked against the positions that there is room for.
        self.context = min(context or config.max_position_embeddings, config.max_position_embeddings)
        self.config = replace(config, max_position_embeddings=self.context)
        self.tape = tape = open_tape(weights, self.plan, TileIndex)
        kernel = Kernel(
            workers_per_lane=workers,
            context=self.context,
            splits=split_count(config),
            checksums=checksums,
            float16=tape.index.dtype == "float16",
            shared_bytes=device.shared_bytes,
        )
        self.kernel = replace(kernel, **(kernel_changes or {}))
        start = time.perf_counter()
        cubin = compile_kernel(config, self.kernel)
        self.compile_seconds = time.perf_counter() - start
        self._stall_seconds = stall_seconds
        self.weight_bytes_per_token: int | None = tape.index.streamed_bytes
        self._load(cubin)

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits of every position, float32 ``[sequence, vocab]``.  The ids have been checked."""
        logits = self._device.empty(len(token_ids) * self.config.vocab_size, np.float32)
        for _ in self._run(Request(tuple(token_ids), max_new_tokens=0), 0, logits):
            pass
        found: np.ndarray = logits.get()
        return found.reshape(len(token_ids), -1)

    def decode(self, request: Request) -> Generator[tuple[int, float], None, None]:
        """Yield (token id, log-probability) as tokens are chosen; closing the iterator cancels.

        Raises :class:`LaneformerError` where logits are not finite, where the GPU gave up the kernel and,
        naming worker, layer and place, where a worker waited too long or, with checksums, found a packet that
        is not whole.
        """
        limit = request.new_token_limit(self.config)
        if limit > 0:
            yield from self._run(request, limit, None)

    def read_bandwidth(self) -> float:
        """Bytes per second that all multiprocessors read from memory together: the wall for decoding."""
        return self._device.read_bandwidth()

    @property
    def device_name(self) -> str:
        """The GPU, as its driver names it."""
        return self._device.name

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes of device memory by what they hold."""
        return {name: array.nbytes for name, array in self._arrays.items()}

    def _load(self, cubin: Any) -> None:
        """Everything that stays on the device."""
        device, config = self._device, self.config
        module = device.module(cubin)
        self._function = device.function(module, ENTRY, self.kernel.shared_bytes)
        (
            packet_bytes,
            chunk_bytes,
            histogram_bytes,
            full_bytes,
            sliding_bytes,
            self._threads,
            request_bytes,
        ) = device.sizes(module)
        if request_bytes != REQUEST.itemsize:
            raise LaneformerError(f"Request has {request_bytes} bytes in the kernel, {REQUEST.itemsize} here")
        layers = range(config.num_hidden_layers)
        cache_bytes = [sliding_bytes if config.window(layer) else full_bytes for layer in layers]
        cache_offsets = np.cumsum([0, *cache_bytes])[:-1].astype(np.int64)
        sizes = {"weights": self.tape.index.size, "keys and values": sum(cache_bytes)}
        sizes |= {"packets": packet_bytes, "chunk": chunk_bytes, "histograms": histogram_bytes}
        device.check_memory(sizes)
        self._arrays: dict[str, Any] = {name: device.zeros(size) for name, size in sizes.items()}
        norms = norm_table(config, self.tape)[:, :, : config.hidden_size]
        tables = {
            "run_offset": self.tape.index.run_offsets,
            "norms": np.ascontiguousarray(norms),
            "head_norms": _padded_head_norms(config, head_norm_table(config, self.tape)),
            "rotation": _rotation(config, self.context),
            "cache_offset": cache_offsets,
        }
        self._arrays |= {name: device.upload(table) for name, table in tables.items() if table is not None}
        for name in ("logits", "scores"):
            self._arrays[name] = device.zeros(config.vocab_size * 4)
        self._arrays["flags"] = device.zeros(8 * len(self.plan.workers))
        self._arrays["control"] = device.zeros(16)
        device.upload_into(self._arrays["weights"], self.tape.bytes)
        self._host = device.host_words(self.context + 1)  # tokens, then the word that cancels
        self._epoch = 0
        self._running = False

    def _run(self, request: Request, limit: int, all_logits: Any) -> Generator[tuple[int, float], None, None]:
        if self._running:  # it owns the words that the host reads, and everything on the device
            raise LaneformerError(
                "the back end answers a request already: read it to its end or close it first"
            )
        self._running = True
        try:
            yield from self._launched(request, limit, all_logits)
        finally:
            self._running = False

    def _launched(
        self, request: Request, limit: int, all_logits: Any
    ) -> Generator[tuple[int, float], None, None]:
        device, words, address = self._device, self._host, self._device.address
        prompt = device.upload(np.array(request.token_ids, np.int32))
        stops = [stop for stop in sorted(request.stop_token_ids) if stop < self.config.vocab_size]
        stop_ids = device.upload(np.array(stops or [-1], np.int32))
        # The best alone is left of top-k 1, to the bit.
        temperature = 0.0 if request.top_k == 1 else request.temperature
        sampled = temperature > 0 and limit > 0
        uniforms = device.upload(np.random.default_rng(request.seed).random(limit)) if sampled else None
        words[:] = 0
        values = np.zeros((), REQUEST)
        for name, array in self._pointers().items():
            values[name] = address(array)
        values["prompt"], values["stop_ids"] = address(prompt), address(stop_ids)
        values["uniforms"], values["all_logits"] = address(uniforms), address(all_logits)
        values["tokens"] = words.ctypes.data
        values["cancel"] = words[-1:].ctypes.data
        values["prompt_count"], values["limit"], values["stop_count"] = len(prompt), limit, len(stops)
        values["stall_nanoseconds"] = int(self._stall_seconds * 1e9)
        values["first_epoch"] = self._first_epoch(len(prompt) + limit + 2)
        values["norm_epsilon"] = self.config.norm_eps
        values["temperature"] = temperature
        for name in ("repetition_penalty", "top_p", "min_p"):
            values[name] = getattr(request, name)
        values["top_k"] = min(request.top_k, self.config.vocab_size)
        if sampled:
            self._arrays["histograms"].fill(0)
        blocks = len(self.plan.workers)
        launch = device.launch(self._function, blocks, self._threads, values, self.kernel.shared_bytes)
        try:
            yield from self._tokens(limit, launch)
            launch.wait()
        finally:
            words[-1] = 1  # cancels what has not ended; the memory above must outlive the kernel
            launch.wait()
            status = int(self._arrays["control"][:8].get().view(np.uint64)[0])
            if status & 0xFF not in (Outcome.FINISHED, Outcome.CANCELLED):
                # NaN among old keys and values would reach the next request, for 0 times NaN is NaN.
                self._arrays["keys and values"].fill(0)
        self._check(status)

    def _first_epoch(self, steps: int) -> int:
        """The epoch at which a request begins; where epochs would wrap in it, packets are forgotten first."""
        epochs = steps * (self.config.num_hidden_layers + 2)
        wraps = self._epoch + epochs >= LAST_EPOCH
        if self.kernel.checksums or wraps:
            self._arrays["packets"].fill(0)
            self._arrays["flags"].fill(0)
        self._arrays["control"].fill(0)
        first = 0 if wraps else self._epoch
        self._epoch = first + epochs
        return first

    def _tokens(self, limit: int, launch: Launch) -> Generator[tuple[int, float], None, None]:
        for place in range(limit):
            while not (word := int(self._host[place])):
                if launch.ended() and not int(self._host[place]):
                    return
                time.sleep(POLL_SECONDS)
            log_probability = np.array(word >> 32, np.uint32).view(np.float32)
            yield (word & 0xFFFFFFFF) - 1, float(log_probability)

    def _pointers(self) -> dict[str, Any]:
        """Fields of ``Request`` that are the same for every request."""
        arrays = self._arrays
        embedding = next((entry for entry in self.tape.index.shared if entry.name == EMBEDDING), None)
        weights = arrays["weights"]
        return {
            "tape": weights,
            "embedding": None if embedding is None else weights[embedding.offset :],
            "head_norms": arrays.get("head_norms"),
            "cache": arrays["keys and values"],
            "chunk_memory": arrays["chunk"],
            **{
                name: arrays[name]
                for name in (
                    *("run_offset", "norms", "rotation", "cache_offset", "packets", "logits", "scores"),
                    *("histograms", "flags", "control"),
                )
            },
        }

    def _check(self, status: int) -> None:
        outcome = Outcome(status & 0xFF)
        if outcome == Outcome.NOT_FINITE:
            raise LaneformerError(
                "the model's logits are not finite: its weights are too large for float32 sums"
            )
        if outcome in (Outcome.STALLED, Outcome.TORN):
            worker, layer, place = status >> 8 & 0xFFFF, status >> 24 & 0xFFFF, status >> 40
            lane = min(worker // self.kernel.workers_per_lane, self.config.num_lanes - 1)
            raise LaneformerError(
                f"worker {worker} (lane {lane}), layer {layer}, {PLACES[place]}: {OUTCOMES[outcome]}; "
                "the request was given up"
            )


def most_workers(config: LaneformerConfig, multiprocessors: int) -> int:
    """Workers per lane: as many as there are multiprocessors for, each with rows of every output."""
    lanes = config.num_lanes
    tiles = min(ceil_div(config.hidden_size, TILE), ceil_div(config.intermediate_size // lanes, TILE // 2))
    return max(1, min(multiprocessors // lanes, tiles))


def check_model(weights: Weights) -> None:
    """What the kernel is written for: :class:`ConfigError` for shapes, :class:`CheckpointError` for types."""
    config = weights.config
    if config.hidden_size % 4:
        raise ConfigError(f"the cuda back end needs a hidden_size in fours, found {config.hidden_size}")
    if config.num_lanes > MOST_LANES:
        raise ConfigError(f"the cuda back end has up to {MOST_LANES} lanes, found {config.num_lanes}")
    if config.head_size > 128:
        raise ConfigError(f"the cuda back end has head sizes up to 128, found {config.head_size}")
    if config.queries_per_key > 8:
        raise ConfigError(
            f"the cuda back end has up to 8 query heads per key head, found {config.queries_per_key}"
        )
    matrix_type(config, {name: weights.dtype(name) for name in parameter_shapes(config)})


def check_workers(config: LaneformerConfig, workers: int, multiprocessors: int) -> None:
    """:class:`ConfigError` for numbers of workers that do not fit the model or the device."""
    most = most_workers(config, multiprocessors)
    if config.num_lanes * most > multiprocessors:
        raise ConfigError(
            f"{config.num_lanes} lanes need a GPU of more than {multiprocessors} multiprocessors"
        )
    if not 1 <= workers <= most:
        raise ConfigError(f"workers per lane must be 1 to {most} for this model and GPU, found {workers}")


def _rotation(config: LaneformerConfig, context: int) -> np.ndarray:
    """Cosine and sine of each pair, float32 ``[context, padded head]``."""
    cosines, sines = rotation_table(config, np.arange(context))
    table = np.zeros((context, head_rows(config)), np.float32)
    table[:, 0 : config.head_size : 2], table[:, 1 : config.head_size : 2] = cosines, sines
    return table


def _padded_head_norms(config: LaneformerConfig, norms: np.ndarray | None) -> np.ndarray | None:
    if norms is None:
        return None
    wide = np.zeros((*norms.shape[:2], head_rows(config)), np.float32)
    wide[:, :, : config.head_size] = norms
    return wide
