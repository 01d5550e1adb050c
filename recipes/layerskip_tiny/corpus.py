"""The Python standard library's own source as a corpus, split by file name."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

#: Folders that hold tests, tables or other people's packages.
LEFT_OUT = frozenset(
    {"__pycache__", "dist-packages", "encodings", "idle_test", "pydoc_data", "site-packages", "test", "tests"}
)
MIN_BYTES = 2_000


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
        name: Its path below the library, with forward slashes.
        text: Its content.
    """

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Files for training, and files that training never sees.

    Attributes:
        train: In the order of their names.
        held_out: In the order of their names.
    """

    train: tuple[Source, ...]
    held_out: tuple[Source, ...]


def standard_library() -> Path:
    """Folder of the running Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_corpus(root: Path, *, seed: int = 0, held_out_share: float = 0.1) -> Corpus:
    """Reads the Python files below a folder.

    Args:
        root: The folder.
        seed: Which files are held out.
        held_out_share: Expected share of them.

    Raises:
        ValueError: There is no file to train on, or none is held out.
    """
    sources = [
        Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8", errors="replace"))
        for path in sorted(root.rglob("*.py"))
        if not LEFT_OUT.intersection(path.relative_to(root).parts) and path.stat().st_size >= MIN_BYTES
    ]
    held_out = tuple(source for source in sources if is_held_out(source.name, seed=seed, share=held_out_share))
    train = tuple(source for source in sources if source not in held_out)
    if not train or not held_out:
        message = f"{root} holds too few Python files: {len(train)} to train on, {len(held_out)} held out."
        raise ValueError(message)
    return Corpus(train, held_out)


def is_held_out(name: str, *, seed: int, share: float) -> bool:
    """Tells by a file's name alone, so that other files, or another order of them, change nothing."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
