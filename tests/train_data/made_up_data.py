"""Made-up texts and token streams for the tests beside this file."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from train.data.config import DataConfig
from train.data.documents import KeptDocument
from train.data.manifest import Manifest
from train.data.shard_writer import ShardWriter
from train.data.shards import TokenSplit

MakeConfig = Callable[..., DataConfig]
BOS, EOS = 0, 1


def made_up_code(seed: int) -> str:
    """A few functions with random names; every seed gives another text."""
    rng = random.Random(seed)
    names = ["total", "index", "value", "node", "left", "right", "queue", "größe"]
    functions = []
    for number in range(rng.randint(1, 8)):
        first, second = rng.sample(names, 2)
        functions.append(
            f"def {first}_{seed}_{number}({second}):\n"
            f"    for {first} in range({rng.randint(0, 99999)}):\n"
            f"        if {first} % {rng.randint(2, 9)} == 0:  # {rng.choice(names)}\n"
            f"            {second} += {first}\n"
            f"    return {second}\n\n\n"
        )
    return "".join(functions)


def write_split(folder: Path, documents: Sequence[Sequence[int]], shard_tokens: int) -> TokenSplit:
    """A validation split of these documents, given without BOS and EOS; each has three bytes a token."""
    manifest = Manifest("uint16", 2**16, BOS, EOS, "", {}, "")
    records = manifest.splits["validation"]
    writer = ShardWriter(folder, "validation", records, "uint16", shard_tokens, announce=lambda: None)
    for number, tokens in enumerate(documents):
        digest = hashlib.sha256(str(number).encode()).digest()
        writer.add(KeptDocument("", "", 3 * len(tokens), digest, "validation"), [BOS, *tokens, EOS])
    writer.close()
    return TokenSplit(folder, "validation", manifest)
