"""The framework-free engine: runs checkpoints and engine files without torch."""
