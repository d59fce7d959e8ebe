from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.evals.report.chromium import Chromium, find_chromium


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = find_chromium()
    if path is None:
        if os.environ.get("LANEFORMER_REQUIRE_CHROMIUM"):
            pytest.fail("LANEFORMER_REQUIRE_CHROMIUM is set, and no Chromium is installed")
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    return path


@pytest.fixture
def browser(chromium_path: str) -> Iterator[Chromium]:
    with Chromium(chromium_path) as browser:
        yield browser
        assert browser.console == []
