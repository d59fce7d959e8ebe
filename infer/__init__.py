"""The framework-free engine: runs checkpoints and engine files without torch.

from infer import Engine
"""

from infer.engine import Engine, GeneratedToken

__all__ = ["Engine", "GeneratedToken"]
