"""The bytes of a prompt file: found, unpacked and brought to UTF-8."""

from __future__ import annotations

import codecs
import difflib
import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from selfspec_calibrate.prompts.place import Place
from selfspec_runtime.errors import PromptFileError

PROMPT_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")

_GZIP_MAGIC = b"\x1f\x8b"
# UTF-32 comes first: its little-endian mark starts with UTF-16's.
_WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FOREIGN_MAGIC = (
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"BZh91AY", "a bzip2 archive"),
    (b"%PDF-", "a PDF document"),
)
_SNIFFED_BYTES = 65536
_MAX_SUGGESTIONS = 5


@dataclass(frozen=True)
class Source:
    """A prompt file's text.

    Args:
        path: The file, as the user named it.
        sha256: SHA-256 sum of the file as it lies on disk, in hexadecimal.
        suffix: The name's ending in lower case, without ``.gz``.
        data: The text in UTF-8, without a byte order mark; a line may still hold broken UTF-8.
    """

    path: Path
    sha256: str
    suffix: str
    data: bytes

    def place(self, line: int, item: int | None = None) -> Place:
        """Return the place of a line, from 1, and of an array element on it."""
        return Place(self.path, line, item)

    def lines(self) -> list[tuple[int, bytes]]:
        r"""Return the lines that are not blank, numbered from 1.

        Only ``\n`` ends a line: U+2028 and U+0085 may stand inside a JSON string.
        """
        numbered = enumerate(self.data.split(b"\n"), start=1)
        return [(number, line) for number, line in numbered if line.strip()]

    def text(self) -> str:
        """Return the whole text.

        Raises:
            PromptFileError: The file is not UTF-8 throughout.
        """
        return decode_utf8(self.data, self.place(1))


def read_source(path: Path) -> Source:
    """Read a prompt file from disk.

    Args:
        path: The file; gzip is recognised by its content, UTF-16 and UTF-32 by their byte order mark.

    Returns:
        The source, with at least one line that is not blank.

    Raises:
        PromptFileError: The file is missing, a folder, unreadable, empty, or not text.
    """
    raw = _read_bytes(path)
    data = _to_utf8(_unpack(raw, path), path)
    if not data.strip():
        raise PromptFileError(f"{path}: the file is empty. Put at least one prompt into it.")
    names = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return Source(path, hashlib.sha256(raw).hexdigest(), names[-1] if names else "", data)


def decode_utf8(data: bytes, place: Place) -> str:
    """Decode text that starts at a place.

    Args:
        data: UTF-8, of one line or of many.
        place: Where the text starts.

    Returns:
        The decoded text.

    Raises:
        PromptFileError: A byte is not UTF-8; the message names its line and column.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = place.line + before.count(b"\n")
        column = error.start - before.rfind(b"\n")
        raise Place(place.path, line).error(
            f"not UTF-8 text: byte 0x{data[error.start]:02x} in column {column}", "Save the file as UTF-8"
        ) from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise PromptFileError(f"{path}: this is a folder. Name a prompt file in it{_listing(path)}.") from error
    except FileNotFoundError as error:
        raise PromptFileError(f"{path}: there is no such file{_similar(path)}. Check the path.") from error
    except (OSError, ValueError) as error:
        raise PromptFileError(f"{path}: the file cannot be read ({error}). Check its permissions.") from error


def _listing(folder: Path) -> str:
    found = [name for name in _names(folder) if _could_hold_prompts(name)]
    return f", such as {', '.join(found[:_MAX_SUGGESTIONS])}" if found else ""


def _could_hold_prompts(name: str) -> bool:
    return name.removesuffix(".gz").endswith(PROMPT_SUFFIXES)


def _similar(path: Path) -> str:
    if not path.parent.is_dir():
        return f", and no folder {path.parent}"
    close = difflib.get_close_matches(path.name, _names(path.parent), n=_MAX_SUGGESTIONS)
    found = close or [name for name in _names(path.parent) if _could_hold_prompts(name)][:_MAX_SUGGESTIONS]
    return f"; the folder has {', '.join(found)}" if found else ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError:
        return []


def _unpack(raw: bytes, path: Path) -> bytes:
    if not raw.startswith(_GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise PromptFileError(f"{path}: the gzip data is broken ({error}). Pack the file again.") from error


def _to_utf8(data: bytes, path: Path) -> bytes:
    for mark, codec in _WIDE_MARKS:
        if data.startswith(mark):
            return _recode(data[len(mark) :], codec, path)
    for magic, name in _FOREIGN_MAGIC:
        if data.startswith(magic):
            raise PromptFileError(f"{path}: this is {name}. Convert it to JSON lines (.jsonl) first.")
    if b"\x00" in data[:_SNIFFED_BYTES]:
        raise PromptFileError(f"{path}: this is a binary file, not text. Give a prompt file saved as UTF-8.")
    return data.removeprefix(codecs.BOM_UTF8)


def _recode(data: bytes, codec: str, path: Path) -> bytes:
    try:
        return data.decode(codec).encode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].decode(codec, "ignore").count("\n") + 1
        reason = f"the {codec[:6].upper()} text is broken ({error.reason})"
        raise Place(path, line).error(reason, "Save the file as UTF-8") from error
