"""Makes several completions at once, for generators that can.

for item, completion in overlapped(complete_one, pending, concurrency=8):
    ...
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def overlapped(
    make: Callable[[Item], Result], items: Iterable[Item], concurrency: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yields ``(item, make(item))`` as results come, with up to ``concurrency`` calls at once.

    With a concurrency of 1, each call is made when its result is asked for, in order.  An exception of one
    call ends the iteration after the results that are there already.  Then, and when the iterator is closed,
    no further calls begin, and those under way are not waited for.
    """
    if concurrency == 1:
        for item in items:
            yield item, make(item)
        return
    source = iter(items)
    taking = threading.Lock()
    stop = threading.Event()
    done: queue.SimpleQueue[tuple[Item, Result] | BaseException | None] = queue.SimpleQueue()

    def take() -> list[Item]:
        with taking:
            return list(islice(source, 1))

    def work() -> None:
        try:
            while not stop.is_set() and (taken := take()):
                done.put((taken[0], make(taken[0])))
            done.put(None)
        except BaseException as error:
            stop.set()
            done.put(error)

    # Daemons, so that a call that waits for a silent server does not keep an interrupted program alive.
    for _ in range(concurrency):
        threading.Thread(target=work, daemon=True, name="complete").start()
    running = concurrency
    try:
        while running:
            entry = done.get()
            if entry is None:
                running -= 1
            elif isinstance(entry, BaseException):
                yield from _finished(done)
                raise entry
            else:
                yield entry
    finally:
        stop.set()


def _finished(
    done: queue.SimpleQueue[tuple[Item, Result] | BaseException | None],
) -> Iterator[tuple[Item, Result]]:
    while not done.empty():
        entry = done.get()
        if isinstance(entry, tuple):
            yield entry
