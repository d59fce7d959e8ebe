"""``laneformer import``: a dense model of the Llama family becomes a Laneformer checkpoint."""

from __future__ import annotations

import argparse

from laneformer.importing.convert import IMPORT_DTYPES, KEEP, import_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("source", metavar="SOURCE", help="Hugging Face folder, or GGUF file")
    parser.add_argument("out", metavar="OUT", help="checkpoint folder to write")
    parser.add_argument(
        "--lanes",
        type=int,
        default=1,
        metavar="L",
        help="lanes, which exchange without delay: the function stays the same (default: 1)",
    )
    parser.add_argument(
        "--dtype",
        choices=IMPORT_DTYPES,
        default=KEEP,
        help="type of the weights (default: keep; quantized blocks become float32)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the checkpoint OUT where it exists")


def run(arguments: argparse.Namespace) -> int:
    """Write the checkpoint and say what it holds."""
    summary = import_checkpoint(
        arguments.source,
        arguments.out,
        lanes=arguments.lanes,
        dtype=arguments.dtype,
        overwrite=arguments.overwrite,
    )
    lanes = summary.config.num_lanes
    ids = "no tokenizer" if summary.tokenizer_ids is None else f"tokenizer of {summary.tokenizer_ids} ids"
    print(
        f"{summary.path}: {summary.kind}, {summary.parameters / 1e6:.1f} M parameters, "
        f"{lanes} lane{'s' if lanes > 1 else ''}, {summary.tensors} tensors, {summary.size / 1e6:.1f} MB, "
        f"{summary.dtype}, {ids}"
    )
    return 0
