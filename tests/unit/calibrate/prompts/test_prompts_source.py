"""Finding, unpacking and decoding prompt files."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from selfspec_calibrate.prompts.reader import read_prompts
from selfspec_calibrate.prompts.source import read_source
from selfspec_runtime.errors import PromptFileError

TEXT = '{"prompt": "caf\u00e9"}\r\n\r\n{"prompt": "\u65e5\u672c \U0001f600"}'
CONTENTS = ["caf\u00e9", "\u65e5\u672c \U0001f600"]

ENCODED = {
    "utf-8": TEXT.encode(),
    "utf-8 with mark": TEXT.encode("utf-8-sig"),
    "utf-16 little": b"\xff\xfe" + TEXT.encode("utf-16-le"),
    "utf-16 big": b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "utf-32 little": b"\xff\xfe\x00\x00" + TEXT.encode("utf-32-le"),
    "utf-32 big": b"\x00\x00\xfe\xff" + TEXT.encode("utf-32-be"),
    "gzip": gzip.compress(TEXT.encode()),
    "gzip of utf-16": gzip.compress(TEXT.encode("utf-16")),
}


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "DATA.JSONL", "my.data.ndjson"])
@pytest.mark.parametrize("encoding", ENCODED)
def test_encoding_and_packing_do_not_matter(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / name
    path.write_bytes(ENCODED[encoding])

    found = read_prompts(path)

    assert [prompt.messages[0].content for prompt in found.prompts if prompt.messages] == CONTENTS
    assert [prompt.line for prompt in found.prompts] == [1, 3]


def test_checksum_is_of_the_bytes_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(ENCODED["gzip"])

    assert read_source(path).sha256 == hashlib.sha256(ENCODED["gzip"]).hexdigest()
    assert read_prompts(path).sha256 == read_source(path).sha256


@pytest.mark.parametrize("name", ["data.csv.gz", "data.csv"])
def test_packed_table_is_a_table(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"prompt\none\n"))

    assert read_prompts(path).shapes == {"prompt": 1}


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes("a\u2028b\u0085c\x0bd\rd\n\ne".encode())

    assert read_source(path).lines() == [(1, "a\u2028b\u0085c\x0bd\rd".encode()), (3, b"e")]


@pytest.mark.parametrize("content", [b"", b"\n \r\n\t\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_empty_file_is_said_to_be_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)

    with pytest.raises(PromptFileError, match=r"data\.jsonl: the file is empty\. Put"):
        read_prompts(path)


def test_missing_file_names_similar_ones(tmp_path: Path) -> None:
    for name in ("prompts.jsonl", "weights.bin", "notes.txt"):
        (tmp_path / name).write_text("x")

    with pytest.raises(PromptFileError, match=r"no such file; the folder has prompts\.jsonl\. Check"):
        read_prompts(tmp_path / "promts.jsonl")
    with pytest.raises(
        PromptFileError, match=r"no such file; the folder has notes\.txt, prompts\.jsonl\. Check"
    ) as error:
        read_prompts(tmp_path / "zzz")
    assert "weights.bin" not in str(error.value)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match=r"no such file, and no folder .*absent\. Check the path\."):
        read_prompts(tmp_path / "absent" / "data.jsonl")


def test_folder_lists_its_prompt_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "model.safetensors").write_text("x")

    with pytest.raises(PromptFileError, match=r"this is a folder\. Name a prompt file in it, such as a\.csv\.$"):
        read_prompts(tmp_path)


@pytest.mark.parametrize("path", ["data\x00.jsonl", "data.jsonl/inner.jsonl"])
def test_impossible_path_is_no_traceback(tmp_path: Path, path: str) -> None:
    (tmp_path / "data.jsonl").write_text("x")

    with pytest.raises(PromptFileError, match=r"(cannot be read|no such file)"):
        read_prompts(tmp_path / path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"PK\x03\x04\x14\x00", "a zip archive or a spreadsheet"),
        (b"\x28\xb5\x2f\xfd\x00", "a zstd archive"),
        (b"%PDF-1.7", "a PDF document"),
        (b"GGUF\x03\x00\x00\x00", "a binary file"),
        (gzip.compress(b"\x7fELF\x00\x00", mtime=0), "a binary file"),
        ('{"prompt": "x"}'.encode("utf-16-le"), "a binary file"),
    ],
)
def test_file_that_is_no_text_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)

    with pytest.raises(PromptFileError, match=rf"data\.jsonl: this is {what}"):
        read_prompts(path)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08", gzip.compress(TEXT.encode(), mtime=0)[:-9], b"\x1f\x8b broken"])
def test_broken_gzip_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(content)

    with pytest.raises(PromptFileError, match="the gzip data is broken"):
        read_prompts(path)


def test_broken_utf16_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes("one\ntwo".encode("utf-16") + b"\x00\xd8" + "\n".encode("utf-16-le"))

    with pytest.raises(PromptFileError, match=r"data\.txt:2: the UTF-16 text is broken .*Save the file as UTF-8"):
        read_prompts(path)


@pytest.mark.parametrize("name", ["data", "data.yaml", "data.md"])
def test_unknown_ending_is_refused_unless_it_is_json(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("just words")
    with pytest.raises(PromptFileError, match=r"the format is not known\. Let the name end in one of \.jsonl,"):
        read_prompts(path)

    path.write_text('["just words"]')
    assert read_prompts(path).shapes == {"string": 1}
