"""Calls that overlap: every result once, errors at once, nothing begun after them."""

from __future__ import annotations

import threading

import pytest

from evals.overlap import overlapped


def test_one_at_a_time_is_lazy_and_in_order() -> None:
    made: list[int] = []
    results = overlapped(lambda item: made.append(item) or item * 10, [1, 2, 3], 1)
    assert next(results) == (1, 10)
    assert made == [1]
    assert list(results) == [(2, 20), (3, 30)]


@pytest.mark.parametrize("concurrency", [2, 3, 8])
def test_calls_overlap_and_every_result_comes_once(concurrency: int) -> None:
    # Each call waits until as many others are under way: would they not overlap, none would return.
    together = threading.Barrier(concurrency)

    def make(item: int) -> int:
        together.wait(30)
        return -item

    items = list(range(concurrency * 3))
    assert sorted(overlapped(make, items, concurrency)) == [(item, -item) for item in items]
    assert list(overlapped(make, [], concurrency)) == []


def test_an_error_comes_after_what_is_finished_and_begins_nothing_more() -> None:
    began: list[int] = []
    finished = threading.Event()
    blocked = threading.Event()

    def make(item: int) -> int:
        began.append(item)
        if item == 0:
            return 0
        if item == 1:
            finished.wait(30)
            raise KeyError("the second")
        blocked.wait(30)  # a call under way, which nobody waits for
        return item

    results = overlapped(make, range(100), 2)
    assert next(results) == (0, 0)
    finished.set()
    with pytest.raises(KeyError, match="the second"):
        list(results)
    assert set(began) <= {0, 1, 2}
    blocked.set()


def test_a_reader_that_leaves_ends_the_calls() -> None:
    began: list[int] = []
    go = threading.Semaphore(4)

    def make(item: int) -> int:
        began.append(item)
        go.acquire(timeout=30)
        return item

    results = overlapped(make, range(1000), 2)
    next(results)
    results.close()
    for thread in [thread for thread in threading.enumerate() if thread.name == "complete"]:
        go.release()
        go.release()
        thread.join(30)
        assert not thread.is_alive()
    assert len(began) < 20
