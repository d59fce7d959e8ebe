"""Tokenizer of a checkpoint: the `tokenizers` library plus what a folder says about special tokens.

Example:

    tokenizer = Tokenizer.from_folder("checkpoint")
    ids = tokenizer.encode("def add(a, b):")      # begins with the BOS token where there is one
    tokenizer.decode(ids)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import tokenizers

from laneformer.errors import TokenizerError
from laneformer.json_input import read_json

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
COMMON_BOS = ("<|bos|>", "<s>", "<|begin_of_text|>", "<|startoftext|>")
COMMON_EOS = ("<|eos|>", "</s>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>")


class Usual(Enum):
    """Stands for a special token that nobody named: the usual names are looked up in the vocabulary."""

    NAME = "usual name"


class Tokenizer:
    """A ``tokenizers.Tokenizer`` with its special tokens and chat template.

    ``bos_token`` and ``eos_token`` are texts of special tokens, or None for no such token; where not given,
    the usual names are looked up in the vocabulary.  Raises :class:`TokenizerError` for a name that is not
    in it.
    ``add_bos_token`` is false for models, such as Qwen's, whose texts do not begin with BOS.
    """

    def __init__(
        self,
        library_tokenizer: tokenizers.Tokenizer,
        bos_token: str | Usual | None = Usual.NAME,
        eos_token: str | Usual | None = Usual.NAME,
        chat_template: str | None = None,
        add_bos_token: bool = True,
    ) -> None:
        self.library_tokenizer = library_tokenizer
        # A tokenizer.json may say how to cut and pad; that would drop training text and prompts unseen.
        library_tokenizer.no_truncation()
        library_tokenizer.no_padding()
        self.bos_token = self._first_known(COMMON_BOS) if isinstance(bos_token, Usual) else bos_token
        self.eos_token = self._first_known(COMMON_EOS) if isinstance(eos_token, Usual) else eos_token
        self.chat_template = chat_template
        self.add_bos_token = add_bos_token
        self.bos_id = self._id_of("bos_token", self.bos_token)
        self.eos_id = self._id_of("eos_token", self.eos_token)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read ``tokenizer.json`` and, where there, ``tokenizer_config.json`` and ``chat_template.jinja``."""
        return cls.from_file(Path(folder) / TOKENIZER_FILE)

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer.json; settings are taken from files beside it where there are any."""
        path = Path(path)
        settings_path = path.parent / SETTINGS_FILE
        settings = read_json(settings_path, TokenizerError) if os.path.exists(settings_path) else {}
        try:
            text = path.read_text(encoding="utf-8")
            template_path = path.parent / TEMPLATE_FILE
            if template_path.exists():
                settings["chat_template"] = template_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise TokenizerError(f"{path}: no such file") from None
        except (OSError, ValueError) as error:
            raise TokenizerError(f"{path}: cannot be read ({error})") from None
        try:
            return cls.from_text(text, settings)
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None

    @classmethod
    def from_text(cls, text: str, settings: Mapping[str, Any] | None = None) -> Tokenizer:
        """Build from the contents of a tokenizer.json and the values of a tokenizer_config.json."""
        settings = settings or {}
        try:
            library_tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"not a tokenizer.json ({error})") from None
        return cls(
            library_tokenizer,
            bos_token=_token_text(settings, "bos_token"),
            eos_token=_token_text(settings, "eos_token"),
            chat_template=_default_template(settings.get("chat_template")),
            add_bos_token=settings.get("add_bos_token") is not False,
        )

    def to_text(self) -> str:
        """Contents of a tokenizer.json."""
        return self.library_tokenizer.to_str()

    def settings(self) -> dict[str, str | bool | None]:
        """Values of a tokenizer_config.json.  None for a special token says that there is none."""
        values: dict[str, str | bool | None] = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        if self.chat_template is not None:
            values["chat_template"] = self.chat_template
        if not self.add_bos_token:
            values["add_bos_token"] = False
        return values

    def settings_text(self) -> str:
        """Contents of a tokenizer_config.json."""
        return json.dumps(self.settings(), indent=1, ensure_ascii=False) + "\n"

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json into an existing folder."""
        Path(folder, TOKENIZER_FILE).write_text(self.to_text(), encoding="utf-8")
        Path(folder, SETTINGS_FILE).write_text(self.settings_text(), encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id, added tokens included."""
        return 1 + max(self.library_tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of the tokenizer with its special tokens: equal means same ids for every text."""
        parts: list[object] = [self.to_text(), self.bos_token, self.eos_token]
        if not self.add_bos_token:
            parts.append("no BOS")
        text = json.dumps(parts)
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of ``text``, preceded by BOS where the tokenizer adds one and ``add_bos`` is set.

        Special tokens written out in the text are recognised, as chat templates need; text that must not
        be trusted with them goes through :meth:`encode_plain`.  Both raise :class:`TokenizerError` for a text
        with surrogates, which is what Python makes of bytes that are not UTF-8.
        """
        _check_unicode(text)
        ids: list[int] = self.library_tokenizer.encode(text, add_special_tokens=False).ids
        if add_bos and self.add_bos_token and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts, on all cores; a special token written in a text stays plain text."""
        for text in texts:
            _check_unicode(text)
        before = self.library_tokenizer.encode_special_tokens
        self.library_tokenizer.encode_special_tokens = True
        try:
            encodings = self.library_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in encodings]
        finally:
            self.library_tokenizer.encode_special_tokens = before

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        return self.library_tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """Render messages (``{"role": ..., "content": ...}``) with the checkpoint's Jinja template.

        Encode the result with ``add_bos=False``: templates write BOS themselves.
        Raises :class:`TokenizerError` where there is no template or it refuses the messages.
        """
        if self.chat_template is None:
            raise TokenizerError("this tokenizer has no chat template")
        return _render(
            self.chat_template,
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos_token or "",
            eos_token=self.eos_token or "",
        )

    def check_fits(self, vocab_size: int) -> None:
        """:class:`TokenizerError` where the tokenizer has ids that a model's vocabulary does not."""
        if self.vocab_size > vocab_size:
            raise TokenizerError(
                f"the tokenizer has ids up to {self.vocab_size - 1}, the model's vocab_size is {vocab_size}: "
                "they do not belong together"
            )

    def _first_known(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if self.library_tokenizer.token_to_id(name) is not None), None)

    def _id_of(self, role: str, token: str | None) -> int | None:
        if token is None:
            return None
        _check_unicode(token)
        token_id: int | None = self.library_tokenizer.token_to_id(token)
        if token_id is None:
            raise TokenizerError(f"{role} {token!r} is not in the vocabulary")
        return token_id


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text is not valid Unicode: a surrogate, {text[error.start]!r}, at position {error.start}; "
            "it was not UTF-8 where it was read"
        ) from None


def _token_text(settings: Mapping[str, Any], role: str) -> str | Usual | None:
    """A special token is written as text, as an object with its text under ``content``, or as null."""
    value = settings.get(role, Usual.NAME)
    if isinstance(value, Mapping):
        value = value.get("content", "")
    if value is None or isinstance(value, str | Usual):
        return value or None
    raise TokenizerError(f"{role} must be a text or null, found {value!r}")


def _default_template(value: Any) -> str | None:
    """One template, or a list of named ones of which ``default`` is meant."""
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, Mapping) and entry.get("name") == "default"]
        value = named[-1].get("template") if named else None
    return value if isinstance(value, str) else None


def _render(template: str, **values: Any) -> str:
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise TokenizerError("chat templates need jinja2: pip install 'laneformer[eval]'") from None

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    try:
        return environment.from_string(template).render(**values)
    except Exception as error:  # a template is a program: it can divide by zero, or call itself for ever
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        raise TokenizerError(f"the chat template cannot be rendered: {kind}{error}") from None
