"""Write the golden cases of the import: tiny Hugging Face folders with the logits that transformers gives.

The files are committed in ``tests/importing/golden``, so that the tests need no transformers; run this only
to add a case, and look at the diff:

    pip install transformers
    python scripts/make_import_golden.py
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.numpy import save_file

FOLDER = Path(__file__).parents[1] / "tests" / "importing" / "golden"
SHAPE: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 36,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 6, "rope_parameters": LLAMA3, "tie_word_embeddings": False}, {}),
    "qwen3": ("Qwen3", {"head_dim": 10, "tie_word_embeddings": True}, {"max_shard_size": "12KB"}),
}


@torch.no_grad()
def main() -> None:
    """Write every case."""
    for seed, (name, (family, changes, saving)) in enumerate(CASES.items(), start=1):
        torch.manual_seed(seed)
        config = getattr(transformers, f"{family}Config")(**(SHAPE | changes), initializer_range=0.2)
        model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, **saving)
        ids = torch.randint(config.vocab_size, (2, 40))
        logits = model(ids).logits
        save_file({"input_ids": ids.numpy(), "logits": logits.numpy()}, folder / "expected.safetensors")
        print(f"{name}: largest logit {float(logits.abs().max()):.2f}")


if __name__ == "__main__":
    main()
