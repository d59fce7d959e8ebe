"""Evaluation: problem suites, the sandbox that judges programs, and reports."""
