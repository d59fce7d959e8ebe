"""Models behind an OpenAI-compatible HTTP endpoint, scored with the same suites as our own engine."""
