"""The engine's interface: what it yields, when it ends, what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infer import Engine, GeneratedToken
from infer.backends import backend_names, select_backend
from laneformer.errors import CheckpointError, ConfigError, LaneformerError, RequestError, TokenizerError
from tests.tiny_models import ScriptedBackend, byte_fallback_tokenizer, byte_level_tokenizer, tiny_config

TOKENIZER = byte_level_tokenizer()
EOS = TOKENIZER.eos_id


def scripted(text: str | list[int], **config: Any) -> Engine:
    """An engine whose model says ``text``, in single-byte tokens, then end of text for ever."""
    if isinstance(text, str):
        # Ids 0 to 255 are the alphabet of ByteLevel, in sorted order; BPE of one character is one id.
        ids = [token_id for letter in text for token_id in TOKENIZER.encode(letter, add_bos=False)]
    else:
        ids = text
    return Engine.from_backend(ScriptedBackend(tiny_config(**config), ids + [EOS] * 99), TOKENIZER)


def answer(engine: Engine, **options: Any) -> tuple[str, str | None, int]:
    """Text, finish reason and number of tokens; only the last may carry a reason."""
    tokens = list(engine.generate([1, 2], **({"max_new_tokens": 50} | options)))
    assert all(token.finish_reason is None for token in tokens[:-1])
    return "".join(token.text for token in tokens), tokens[-1].finish_reason, len(tokens)


def test_greedy_is_the_best_logit_each_time(checkpoint: Path) -> None:
    engine = Engine(checkpoint, backend="numpy")
    assert engine.backend_name == "numpy"
    assert engine.tokenizer is not None
    prompt = engine.tokenizer.encode("hello")
    tokens = list(engine.generate(prompt, max_new_tokens=12))
    ids = [*prompt, *(token.token_id for token in tokens)]
    logits = engine.logits(ids)
    assert logits.dtype == np.float32
    assert logits.shape == (len(ids), engine.config.vocab_size)
    assert logits.argmax(axis=1).tolist()[len(prompt) - 1 : -1] == ids[len(prompt) :]
    shifted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for place, token in enumerate(tokens, start=len(prompt) - 1):
        assert token.logprob == pytest.approx(shifted[place, token.token_id], abs=1e-5)
    assert "".join(token.text for token in tokens) == engine.tokenizer.decode(ids[len(prompt) :])


def test_without_a_tokenizer_text_is_empty(checkpoint_without_tokenizer: Path) -> None:
    engine = Engine(checkpoint_without_tokenizer, backend="numpy")
    assert engine.tokenizer is None
    tokens = list(engine.generate(np.array([1, 2, 3]), max_new_tokens=5))
    assert [token.text for token in tokens] == [""] * 5
    assert [token.finish_reason for token in tokens] == [None] * 4 + ["length"]


def test_seed_decides(checkpoint_without_tokenizer: Path) -> None:
    engine = Engine(checkpoint_without_tokenizer)

    def ids(seed: int) -> list[int]:
        tokens = engine.generate([1], max_new_tokens=20, temperature=1.0, seed=seed)
        return [token.token_id for token in tokens]

    assert ids(4) == ids(4)
    assert ids(4) != ids(5)


def test_end_of_text_of_the_tokenizer_stops_and_does_not_show() -> None:
    assert answer(scripted("hello")) == ("hello", "stop", 6)


def test_end_of_text_of_the_configuration_stops_and_does_not_show() -> None:
    letter = TOKENIZER.encode("l", add_bos=False)[0]
    assert answer(scripted("hello", eos_token_id=(300, letter))) == ("he", "stop", 3)


def test_length() -> None:
    assert answer(scripted("hello"), max_new_tokens=3) == ("hel", "length", 3)
    assert list(scripted("hello").generate([1], max_new_tokens=0)) == []


def test_context_ends_as_length() -> None:
    assert answer(scripted("hello" * 9, max_position_embeddings=10)) == ("hellohel", "length", 8)


def test_half_a_character_at_the_end_is_shown_broken() -> None:
    assert answer(scripted("hé"), max_new_tokens=2) == ("h\ufffd", "length", 2)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("lo", ("hel", "stop", 5)),
        (["zzz", "ell"], ("h", "stop", 4)),
        (["o w", "orld"], ("hell", "stop", 7)),
        ("hello world!", ("hello world", "stop", 12)),  # held back to the end, then let go
        ("d", ("hello worl", "stop", 11)),
    ],
)
def test_stop_texts(stop: Any, expected: tuple[str, str, int]) -> None:
    engine = scripted("hello world")
    assert answer(engine, stop=stop) == expected
    assert engine.backend.closed  # type: ignore[attr-defined]


def test_stop_text_is_held_back_from_its_first_letter() -> None:
    tokens = list(scripted("abcab").generate([1], max_new_tokens=50, stop=["abx"]))
    assert [token.text for token in tokens] == ["", "", "abc", "", "", "ab"]


def test_stop_tokens_and_sequences() -> None:
    e, l = (TOKENIZER.encode(letter, add_bos=False)[0] for letter in "el")  # noqa: E741
    assert answer(scripted("hello"), stop=e) == ("h", "stop", 2)
    assert answer(scripted("hello"), stop=[np.int64(e)]) == ("h", "stop", 2)
    assert answer(scripted("hello"), stop=[(l, l)]) == ("he", "stop", 4)
    assert answer(scripted("helo"), stop=[(l, l)]) == ("helo", "stop", 5)
    assert answer(scripted("hello"), stop=[(l, l), "he"]) == ("", "stop", 2)


def test_single_stop_tokens_reach_the_back_end() -> None:
    engine = scripted("hello")
    answer(engine, stop=[7, (8,), (9, 10)])
    assert engine.backend.request.stop_token_ids == {7, 8, EOS}  # type: ignore[attr-defined]


def test_a_stop_text_that_turns_up_at_the_very_end_counts() -> None:
    """A line break is a byte token in Llama-2's tokenizer: its text is known only when the run ends."""
    tokenizer = byte_fallback_tokenizer()
    line_break, word = 3 + 0x0A, 260
    engine = Engine.from_backend(ScriptedBackend(tiny_config(), [word, line_break]), tokenizer)
    assert answer(engine, max_new_tokens=2, stop="\n") == ("a", "stop", 2)


def test_closing_cancels() -> None:
    engine = scripted("hello")
    tokens = engine.generate([1], max_new_tokens=50)
    assert next(tokens) == GeneratedToken(TOKENIZER.encode("h", add_bos=False)[0], "h", -1.0)
    assert not engine.backend.closed  # type: ignore[attr-defined]
    tokens.close()
    assert engine.backend.closed  # type: ignore[attr-defined]


def test_a_back_end_that_ends_early_is_a_bug() -> None:
    engine = Engine.from_backend(ScriptedBackend(tiny_config(), [1, 2]))
    with pytest.raises(RuntimeError, match="scripted ended before 5 tokens"):
        list(engine.generate([1], max_new_tokens=5))


@pytest.mark.parametrize(
    ("token_ids", "options", "message"),
    [
        ([], {}, "prompt is empty"),
        ([1, 320], {}, "token id 320 at position 1 is outside the vocabulary: expected 0 to 319"),
        (["a"], {}, "expected whole numbers, found 'a'"),
        ([1] * 65, {}, "65 token ids exceed the context of 64"),
        ([1] * 64, {}, "64 tokens and the context is 64"),
        ([1], {"temperature": -1}, "temperature must be 0"),
        ([1], {"stop": ""}, "stop: an empty text"),
        ([1], {"stop": [()]}, "stop: an empty text"),
        ([1], {"stop": [1.5]}, "stop: expected whole numbers, found 1.5"),
        ([1], {"stop": 1.5}, "stop: expected whole numbers, found 1.5"),
        ([1], {"stop": "x"}, "stop text 'x' needs a tokenizer"),
        ([1], {"stop": ["\udcff"]}, r"stop: '\\udcff' is not valid Unicode"),
    ],
)
def test_bad_requests_are_refused_at_the_call(
    checkpoint_without_tokenizer: Path, token_ids: list[Any], options: dict[str, Any], message: str
) -> None:
    engine = Engine(checkpoint_without_tokenizer)
    with pytest.raises(RequestError, match=message):
        engine.generate(token_ids, **({"max_new_tokens": 4} | options))


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [([], "empty"), ([-1], "token id -1 at position 0"), ([0] * 65, "context of 64")],
)
def test_logits_refuses_bad_ids(
    checkpoint_without_tokenizer: Path, token_ids: list[int], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        Engine(checkpoint_without_tokenizer).logits(token_ids)


def test_unknown_back_end(checkpoint: Path) -> None:
    assert backend_names() == ["auto", "cpu", "cuda", "numpy"]
    with pytest.raises(RequestError, match="unknown backend 'cudnn': expected one of auto, cpu, cuda, numpy"):
        Engine(checkpoint, backend="cudnn")
    with pytest.raises(RequestError, match="unknown backend ''"):
        select_backend("")


def test_models_that_cannot_be_opened(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing: no such file or folder; expected an engine file or"):
        Engine(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        Engine(tmp_path)
    broken = Path(shutil.copytree(checkpoint, tmp_path / "broken"))
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer\.json"):
        Engine(broken)


def test_a_tokenizer_that_does_not_fit() -> None:
    with pytest.raises(TokenizerError, match="vocab_size is 200"):
        Engine.from_backend(ScriptedBackend(tiny_config(vocab_size=200), []), TOKENIZER)


def test_errors_are_one_line(checkpoint: Path) -> None:
    for options in ({"temperature": -1}, {"stop": ""}, {"max_new_tokens": -1}):
        with pytest.raises(LaneformerError) as caught:
            Engine(checkpoint).generate([1], **({"max_new_tokens": 1} | options))
        assert "\n" not in str(caught.value)
