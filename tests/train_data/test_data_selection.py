"""Selection: what is dropped and counted, where it ends, and a split that depends on content alone."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from train.data.config import DataConfig
from train.data.documents import Document, Selection

CONFIG = DataConfig(min_document_bytes=2, max_document_bytes=10, held_out_fraction=0.25)


def select(texts: list[str | None], config: DataConfig = CONFIG) -> tuple[list[str], dict[str, int]]:
    selection = Selection([Document(str(number), text) for number, text in enumerate(texts)], config)
    return [document.text for document in selection], selection.counts


def test_dropped_documents_are_counted_by_reason() -> None:
    texts = ["first", "x", None, "first", "12345678901", "\ud800lone", "second", "first", "éééééé"]
    kept, counts = select(texts)
    assert kept == ["first", "second"]
    assert counts == {"kept": 2, "duplicate": 2, "too_short": 1, "too_long": 2, "unreadable": 2}


def test_sizes_are_in_bytes_and_limits_inclusive() -> None:
    assert select(["é", "ééééé"])[0] == ["é", "ééééé"]
    [document] = Selection([Document("name", "éé")], CONFIG)
    assert document.num_bytes == 4


def test_limits_are_never_exceeded() -> None:
    texts: list[str | None] = ["aaaa", "aaaa", "bbbb", "cc"]
    assert select(texts, replace(CONFIG, max_documents=2))[0] == ["aaaa", "bbbb"]
    assert select(texts, replace(CONFIG, max_bytes=8))[0] == ["aaaa", "bbbb"]
    assert select(texts, replace(CONFIG, max_bytes=7))[0] == ["aaaa"]


@given(st.lists(st.text(min_size=2, max_size=5), unique=True), st.randoms())
def test_split_depends_on_content_alone(texts: list[str], rng: random.Random) -> None:
    def splits(order: list[str]) -> dict[str, str]:
        documents = [Document(f"{place}", text) for place, text in enumerate(order)]
        return {document.text: document.split for document in Selection(documents, CONFIG)}

    whole = splits(texts)
    part = rng.sample(texts, rng.randint(0, len(texts)))
    assert splits(part).items() <= whole.items()


def test_held_out_fraction_is_the_share_of_documents() -> None:
    documents = [Document("", f"{number:04d}") for number in range(4000)]
    held_out = sum(document.split == "validation" for document in Selection(documents, CONFIG))
    # 0.25 of 4000, within four standard deviations of a binomial.
    assert abs(held_out - 1000) < 4 * (4000 * 0.25 * 0.75) ** 0.5
