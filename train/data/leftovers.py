"""Remove what a preparation leaves behind where it was stopped or failed, and nothing else.

Only files with the names that a preparation gives are touched.
"""

from __future__ import annotations

import re
from pathlib import Path

from laneformer.errors import DataError
from laneformer.tokenizer import SETTINGS_FILE, TOKENIZER_FILE
from train.data.documents import SPLITS
from train.data.durable_files import PARTIAL_SUFFIX
from train.data.manifest import MANIFEST_FILE, Manifest
from train.data.shard_writer import DOCUMENTS_SUFFIX, TOKENS_SUFFIX

_OTHER_FILES = frozenset({MANIFEST_FILE, TOKENIZER_FILE, SETTINGS_FILE})
_SHARD_FILE = re.compile(
    rf"({'|'.join(SPLITS)})-\d{{5,}}({re.escape(TOKENS_SUFFIX)}|{re.escape(DOCUMENTS_SUFFIX)})"
)


def require_empty(folder: Path) -> None:
    """:class:`DataError` for a folder without a manifest that holds anything: it is not ours to fill.

    Hidden files do not count, and neither does a manifest that was never finished.
    """
    found = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    found.discard(MANIFEST_FILE + PARTIAL_SUFFIX)
    if found:
        raise DataError(
            f"{folder} holds {min(found)} but no {MANIFEST_FILE}: "
            "choose another data.folder or empty this one"
        )


def remove_unlisted_files(folder: Path, manifest: Manifest) -> None:
    """Remove what a stopped run has left unfinished."""
    listed = {shard.name for split in SPLITS for shard in manifest.splits[split]}
    for path in list(folder.iterdir()):
        name = path.name.removesuffix(PARTIAL_SUFFIX)
        is_shard = _SHARD_FILE.fullmatch(name) is not None
        is_partial = name != path.name and (is_shard or name in _OTHER_FILES)
        if is_partial or (is_shard and name.partition(".")[0] not in listed):
            path.unlink()


def discard(folder: Path, manifest: Manifest) -> None:
    """Remove everything that a preparation writes.

    The manifest stays until the end, without shards: a run that is stopped in between can begin anew.
    """
    manifest.splits = {split: [] for split in SPLITS}
    manifest.write(folder)
    remove_unlisted_files(folder, manifest)
    for name in (TOKENIZER_FILE, SETTINGS_FILE, MANIFEST_FILE):
        (folder / name).unlink()
