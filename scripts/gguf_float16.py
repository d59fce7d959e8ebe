"""Write a checkpoint's weights as an F16 GGUF file, with the metadata of the GGUF file it was imported from.

So llama.cpp and our engine run the same 16-bit numbers:

    laneformer import model.Q4_1.gguf checkpoint --dtype float16
    python scripts/gguf_float16.py model.Q4_1.gguf checkpoint model.F16.gguf
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from laneformer.checkpoint import Checkpoint  # noqa: E402
from laneformer.importing.gguf_source import their_name  # noqa: E402

ARCHITECTURE, FILE_TYPE = "general.architecture", "general.file_type"
# Described by the new file itself, or no longer true of it.
NOT_COPIED = (ARCHITECTURE, FILE_TYPE, "general.quantization_version")


def write_float16_gguf(source: Path, checkpoint: Path, out: Path) -> None:
    """Write ``out``: matrices of ``checkpoint`` in float16, norms in float32, as llama.cpp expects them.

    ``checkpoint`` is a one-lane import of ``source``, a file of architecture ``llama``, whose order of rows
    it has kept.  Raises :class:`SystemExit` for another architecture or more lanes.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields[ARCHITECTURE].contents()
    weights = Checkpoint(checkpoint)
    if architecture != "llama" or weights.config.num_lanes != 1:
        raise SystemExit(
            f"expected architecture llama in one lane, found {architecture} in {weights.config.num_lanes}"
        )
    writer = gguf.GGUFWriter(out, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in NOT_COPIED:
            continue
        kind, *rest = field.types
        writer.add_key_value(field.name, field.contents(), kind, sub_type=rest[-1] if rest else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name in weights.names:
        values = weights.float32(name)
        values = values[0] if values.ndim == 3 else values  # the axis of lanes
        writer.add_tensor(their_name(name), values if values.ndim == 1 else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    """Write one file."""
    parser = argparse.ArgumentParser(description="Write a checkpoint's weights as an F16 GGUF file.")
    parser.add_argument("source", type=Path, metavar="GGUF", help="the file that was imported")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="its import, in one lane")
    parser.add_argument("out", type=Path, metavar="OUT", help="GGUF file to write")
    arguments = parser.parse_args()
    write_float16_gguf(arguments.source, arguments.checkpoint, arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
