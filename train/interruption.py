"""SIGINT and SIGTERM ask a run to stop; it finishes its step, saves and leaves."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """``signal_name`` is set once a signal came."""

    signal_name: str | None = None

    @property
    def pending(self) -> bool:
        """Whether the run should stop at the next safe point."""
        return self.signal_name is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Collect SIGINT and SIGTERM while the block runs.  A second SIGINT interrupts at once."""
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.pending and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal_name = signal.Signals(number).name

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
