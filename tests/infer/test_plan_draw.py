"""The drawing of a plan and its command line."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from infer.plan import equal_shares, make_plan, roles
from infer.plan.cli import add_plan_arguments, run_plan
from infer.plan.draw import draw
from laneformer.errors import ConfigError, RequestError
from tests.tiny_models import tiny_config


def test_a_timeline_says_what_is_read_waited_for_and_sent() -> None:
    config = tiny_config(num_hidden_layers=8, sliding_layers=())
    text = draw(make_plan(config, equal_shares(config, 2)), worker=3)
    assert text.startswith("worker 3 of 8: lane 1 of 4, device 0 of 1, place 1 of 2 (all)")
    assert "layers 0 to 1, each" in text  # the early ones, with sums
    assert "layers 2 to 5, each" in text
    assert "layers 6 to 7, each" in text  # these send nothing: there is no receiver
    early, late = text.split("layers 2 to 5")
    assert "residual  [all]" in early
    assert "mail of 3 of layer -2" in late
    assert max(map(len, text.splitlines())) <= 125


def test_a_role_draws_what_it_leaves_to_others() -> None:
    config = tiny_config()
    text = draw(make_plan(config, roles(config, 1, 2)), worker=1)
    assert "place 0 of 2 (feed-forward)" in text
    assert "  project    -\n" in text


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_plan_arguments(parser)
    return run_plan(parser.parse_args(list(arguments)))


def test_command_line(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(checkpoint), "--workers", "3", "--devices", "2") == 0
    assert "12 workers in 4 lane(s) on 2 device(s)" in capsys.readouterr().out
    assert run(str(checkpoint / "config.json"), "--workers", "4", "--roles", "--draw", "--worker", "5") == 0
    assert "worker 5 of 16" in capsys.readouterr().out
    with pytest.raises(RequestError, match="workers 0 to 3"):
        run(str(checkpoint), "--draw", "--worker", "4")
    with pytest.raises(RequestError, match="--cluster needs --roles"):
        run(str(checkpoint), "--cluster", "2")
    with pytest.raises(ConfigError, match="at least one worker"):
        run(str(checkpoint), "--workers", "0")
