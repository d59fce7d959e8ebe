"""Laneformer: the architecture, its configuration and its checkpoint layout.

Importing this package does not import torch; asking it for ``LaneformerForCausalLM`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneformer.config import LaneformerConfig

if TYPE_CHECKING:
    from laneformer.model import LaneformerForCausalLM

__version__ = "0.1.0"
__all__ = ["LaneformerConfig", "LaneformerForCausalLM", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LaneformerForCausalLM":
        from laneformer.model import LaneformerForCausalLM

        return LaneformerForCausalLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
