"""A short soak in every run of the tests; ``python tests/soak_cpu.py`` is the long one."""

from __future__ import annotations

from tests.soak_cpu import soak


def test_no_wrong_token_and_no_hang() -> None:
    result = soak(tokens=2000)
    assert result["tokens"] >= 2000
    assert result["cancelled"] > 0
