"""Write the golden cases that the project ships: tiny checkpoints with right answers in ``tests/golden``.

The answers come from ``tests/plain_reference.py``, plain loops in float64 that share nothing with the
PyTorch model or the engine but the configuration and the names of tensors.  The files are committed; run
this only to add a case, and look at the diff:

    python scripts/make_golden.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from laneformer.config import LaneformerConfig  # noqa: E402
from tests.plain_reference import reference_logits  # noqa: E402
from tests.tiny_models import RandomWeights, write_checkpoint  # noqa: E402

SHAPE: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 36,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "num_lanes": 3,
}
CASES: dict[str, dict[str, Any]] = {
    "delayed_sliding": {"broadcast_delay": 2, "sliding_window": 5, "sliding_layers": (0, 2, 4)},
    "lane_head_split_comm": {
        "broadcast_delay": 1,
        "lm_head_type": "lane",
        "use_mlp_comm": False,
        "head_dim": 6,
    },
    "no_delay_vocab_parallel_tied": {
        "lm_head_type": "vocab_parallel",
        "tie_word_embeddings": True,
        "replicated_rmsn_scale": False,
    },
}
PROMPT_LENGTH, NEW_TOKENS = 8, 24


def main() -> None:
    """Write every case."""
    for seed, (name, changes) in enumerate(CASES.items(), start=11):
        config = LaneformerConfig(**(SHAPE | changes))
        tensors = RandomWeights(config, seed).tensors
        ids = np.random.default_rng(seed).integers(0, config.vocab_size, (2, 20))
        greedy = ids[0, :PROMPT_LENGTH].tolist()
        smallest_gap = np.inf
        for _ in range(NEW_TOKENS):
            last = np.sort(reference_logits(config, tensors, greedy)[-1])
            smallest_gap = min(smallest_gap, last[-1] - last[-2])
            greedy.append(int(reference_logits(config, tensors, greedy)[-1].argmax()))
        folder = ROOT / "tests" / "golden" / name
        write_checkpoint(folder, config, tensors=tensors)
        answers = {
            "input_ids": ids.astype(np.int64),
            "logits": np.stack([reference_logits(config, tensors, row.tolist()) for row in ids]).astype(
                np.float32
            ),
            "greedy": np.array(greedy, dtype=np.int64),
        }
        save_file(answers, folder / "golden.safetensors")
        largest = float(np.abs(answers["logits"]).max())
        print(f"{name}: largest logit {largest:.2f}, smallest gap of the two best {smallest_gap:.4f}")


if __name__ == "__main__":
    main()
