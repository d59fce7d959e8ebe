"""Special tokens, chat templates and fingerprints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laneformer.errors import TokenizerError
from laneformer.tokenizer import Tokenizer
from tests.tiny_models import byte_level_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "[{{ message.role }}] {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
MESSAGES = [{"role": "user", "content": "hello"}]


def test_bos_is_added_once_and_only_if_asked() -> None:
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("hel")
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.encode("hel", add_bos=False) == ids[1:]
    assert tokenizer.encode("<s>hel") == ids


def test_plain_encoding_does_not_obey_the_text() -> None:
    tokenizer = byte_level_tokenizer()
    (ids,) = tokenizer.encode_plain(["a</s>b"])
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(ids) == "a</s>b"
    assert tokenizer.eos_id in tokenizer.encode("a</s>b")


def test_saved_folder_is_read_back(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(chat_template=TEMPLATE)
    tokenizer.save(tmp_path)
    loaded = Tokenizer.from_folder(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.chat_template == TEMPLATE
    assert (loaded.bos_token, loaded.eos_token) == ("<s>", "</s>")


def test_fingerprint_knows_the_special_tokens(tmp_path: Path) -> None:
    byte_level_tokenizer().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "</s>"}}))
    loaded = Tokenizer.from_folder(tmp_path)
    assert loaded.bos_token == "</s>"
    assert loaded.fingerprint != byte_level_tokenizer().fingerprint


def test_chat_template_forms(tmp_path: Path) -> None:
    byte_level_tokenizer().save(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    expected = "<s>[user] hello\n[assistant] "
    settings.write_text(json.dumps({"chat_template": TEMPLATE}))
    assert Tokenizer.from_folder(tmp_path).apply_chat_template(MESSAGES) == expected
    named = [
        {"name": "tool", "template": "x"},
        {"name": ["odd"], "template": 1},
        {"name": "default", "template": TEMPLATE},
    ]
    settings.write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.from_folder(tmp_path).apply_chat_template(MESSAGES) == expected
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert Tokenizer.from_folder(tmp_path).apply_chat_template(MESSAGES) == "hello"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for", "cannot be rendered"),
        ("{{ messages.append(1) }}", "cannot be rendered"),
        ("{{ 1 / 0 }}", "cannot be rendered: ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "cannot be rendered: TypeError"),
        ("{{ strftime_now(5) }}", "cannot be rendered: TypeError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot be rendered: RecursionError"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be rendered"),
    ],
)
def test_template_errors(template: str | None, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        byte_level_tokenizer(chat_template=template).apply_chat_template(MESSAGES)


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    byte_level_tokenizer().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    with pytest.raises(TokenizerError, match="eos_token '<end>' is not in the vocabulary"):
        Tokenizer.from_folder(tmp_path)


def test_larger_tokenizer_does_not_fit() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.check_fits(tokenizer.vocab_size)
    with pytest.raises(TokenizerError, match="do not belong together"):
        tokenizer.check_fits(tokenizer.vocab_size - 1)


def test_a_tokenizer_may_have_a_bos_that_texts_do_not_begin_with(tmp_path: Path) -> None:
    plain = byte_level_tokenizer()
    settings = plain.settings() | {"add_bos_token": False}
    tokenizer = Tokenizer.from_text(plain.to_text(), settings)
    assert tokenizer.bos_id == plain.bos_id
    assert tokenizer.encode("hello") == plain.encode("hello")[1:]
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again.settings() == tokenizer.settings()
    assert again.fingerprint == tokenizer.fingerprint != plain.fingerprint
    assert "add_bos_token" not in plain.settings()


def test_truncation_and_padding_of_the_file_are_not_obeyed() -> None:
    plain = byte_level_tokenizer()
    cutting = Tokenizer.from_text(plain.to_text())
    cutting.library_tokenizer.enable_truncation(2)
    cutting.library_tokenizer.enable_padding(length=9)
    written = cutting.to_text()
    assert json.loads(written)["truncation"]["max_length"] == 2
    loaded = Tokenizer.from_text(written)
    assert loaded.encode("abcdef") == plain.encode("abcdef")
    assert loaded.encode_plain(["abcdef", "a"]) == plain.encode_plain(["abcdef", "a"])
    assert [len(ids) for ids in loaded.encode_plain(["abcdef", "a"])] == [6, 1]
    assert loaded.fingerprint == plain.fingerprint


@pytest.mark.parametrize("text", ["[1]", '"x"', "{" * 10**5, '{"a": ' * 10**5, '{"a": 1, "a": 2}', "\udcff"])
def test_broken_settings_are_named(tmp_path: Path, text: str) -> None:
    byte_level_tokenizer().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: ") as caught:
        Tokenizer.from_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_null_means_that_there_is_no_such_token(tmp_path: Path) -> None:
    plain = byte_level_tokenizer()
    assert plain.bos_id is not None
    tokenizer = Tokenizer.from_text(plain.to_text(), {"bos_token": None, "eos_token": None})
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    assert tokenizer.encode("hello") == plain.encode("hello")[1:]
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert (again.bos_id, again.eos_id) == (None, None)
    assert again.fingerprint == tokenizer.fingerprint != plain.fingerprint
    only_bos = Tokenizer.from_text(plain.to_text(), {"bos_token": None})
    assert (only_bos.bos_token, only_bos.eos_token) == (None, "</s>")


@pytest.mark.parametrize("value", [5, ["<s>"], {"content": 5}, True])
def test_a_special_token_is_a_text(value: object) -> None:
    with pytest.raises(TokenizerError, match="bos_token must be a text or null"):
        Tokenizer.from_text(byte_level_tokenizer().to_text(), {"bos_token": value})


def test_text_that_is_not_unicode_is_refused() -> None:
    tokenizer = byte_level_tokenizer()
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_plain(["a", text])):
        with pytest.raises(TokenizerError, match=r"'\\udcff', at position 2"):
            encode("ab\udcff")
