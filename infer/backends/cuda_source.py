"""The header ``model.cuh`` with which ``kernels/cuda`` is compiled: model and workers as constants."""

from __future__ import annotations

from dataclasses import dataclass

from infer.plan.phases import sends
from laneformer.config import LaneformerConfig, Module

HEAD_TYPES = {"replicate": "REPLICATE", "lane": "LANE", "vocab_parallel": "VOCAB_PARALLEL"}
SHARED_BYTES = 232_448  # of one block on compute capability 9.0; a device that is there is asked


@dataclass(frozen=True)
class Kernel:
    """What a kernel is compiled for, beside the model."""

    workers_per_lane: int
    context: int  # positions that the cache has room for
    splits: int
    chunk: int = 128  # tokens of a prompt at once
    in_flight_bytes: int = 72 * 1024
    prefetch_bytes: int = 128 * 1024  # into the L2 cache, ahead of the ring
    piece_cycles: int = 200  # between pieces of 4 KB of it: about a worker's share of an H200's memory
    checksums: bool = False
    float16: bool = False
    shared_bytes: int = SHARED_BYTES
    # For tests: a worker that publishes no residual rows and raises no flag; one that rests before it reads
    # which tokens are best; copies into shared memory by ordinary loads and stores.
    silent_worker: int = -1
    late_worker: int = -1
    plain_copies: bool = False


def split_count(config: LaneformerConfig) -> int:
    """Tasks per key head into which positions are split, a power of two.

    It depends on the model alone, so that sums, and tokens, do not depend on the number of workers: as many
    as keep 128 workers busy, at most 32.
    """
    return 1 << (min(32, max(1, 128 // config.num_key_value_heads)).bit_length() - 1)


def model_header(config: LaneformerConfig, kernel: Kernel) -> str:
    """The text of ``model.cuh``."""
    layers, lanes = config.num_hidden_layers, config.num_lanes
    modules: tuple[Module, Module] = ("attention", "feed_forward")
    modes = [[config.residual_mode(layer, module).name for layer in range(layers)] for module in modules]
    sent = [[sends(config, layer, module) for layer in range(layers)] for module in modules]
    windows = [config.window(layer) or 0 for layer in range(layers)]
    head_type = "LANES_SUMMED" if config.pre_norm_lane_agg else HEAD_TYPES[config.lm_head_type]
    constants = {
        "LANES": lanes,
        "LAYERS": layers,
        "WORKERS": kernel.workers_per_lane,
        "HIDDEN": config.hidden_size,
        "QUERY_HEADS": config.num_attention_heads // lanes,
        "KEY_HEADS": config.num_key_value_heads // lanes,
        "HEAD_SIZE": config.head_size,
        "UNITS": config.intermediate_size // lanes,
        "VOCABULARY": config.vocab_size,
        "DELAY": config.broadcast_delay,
        "SPLITS": kernel.splits,
        "CONTEXT": kernel.context,
        "SLIDING_WINDOW": config.sliding_window or 0,
        "CHUNK": kernel.chunk,
        "IN_FLIGHT_BYTES": kernel.in_flight_bytes,
        "PREFETCH_BYTES": kernel.prefetch_bytes,
        "PIECE_CYCLES": kernel.piece_cycles,
        "SHARED_BYTES": kernel.shared_bytes,
        "SILENT_WORKER": kernel.silent_worker,
        "LATE_WORKER": kernel.late_worker,
    }
    lines = [f"#define LANEFORMER_FLOAT16 {int(kernel.float16)}", "namespace laneformer {"]
    lines += ["enum class HeadType { REPLICATE, LANE, VOCAB_PARALLEL, LANES_SUMMED };"]
    lines += ["enum class Mode : signed char { PRESENT, PAST, INDEPENDENT };"]
    lines += [f"constexpr int {name} = {value};" for name, value in constants.items()]
    lines += [f"constexpr HeadType HEAD_TYPE = HeadType::{head_type};"]
    lines += [f"constexpr bool QUERY_KEY_NORM = {str(config.qk_norm).lower()};"]
    lines += [f"constexpr bool CHECKSUMS = {str(kernel.checksums).lower()};"]
    lines += [f"constexpr bool PLAIN_COPIES = {str(kernel.plain_copies).lower()};"]
    rows = ", ".join("{" + ", ".join(f"Mode::{mode}" for mode in row) + "}" for row in modes)
    lines += [f"__constant__ const Mode MODE[2][LAYERS] = {{{rows}}};"]
    rows = ", ".join("{" + ", ".join(str(value).lower() for value in row) + "}" for row in sent)
    lines += [f"__constant__ const bool SENDS[2][LAYERS] = {{{rows}}};"]
    lines += [f"__constant__ const int WINDOW[LAYERS] = {{{', '.join(map(str, windows))}}};"]
    return "\n".join([*lines, "}  // namespace laneformer", ""])
