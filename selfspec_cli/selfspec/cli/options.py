"""The options that commands share, each spelt in one way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from selfspec.cli.option_values import json_object, read_text, text_or_file
from selfspec_runtime.errors import UsageError
from selfspec_runtime.executors.executor import ExecutorName

if TYPE_CHECKING:
    from selfspec_runtime.model_spec import ModelSpec

MODEL, SAMPLING, PROMPT = "Model", "Sampling", "Prompt"

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Quantization = Literal["none", "bnb-4bit", "bnb-8bit"]
Mode = Literal["rejection", "match"]
Format = Literal["table", "json", "md"]

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", envvar="SELFSPEC_MODEL", help="Model folder, .gguf file or hub id.", rich_help_panel=MODEL
    ),
]
RevisionOption = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a hub model.", rich_help_panel=MODEL)
]
DtypeOption = Annotated[
    Dtype | None, typer.Option("--dtype", help="Number format of the weights.", rich_help_panel=MODEL)
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="auto, cpu, cuda, cuda:1, xpu or mps.", rich_help_panel=MODEL),
]
QuantizationOption = Annotated[
    Quantization | None,
    typer.Option("--quantization", help="Quantise the weights while loading.", rich_help_panel=MODEL),
]
LoadIn4BitOption = Annotated[
    bool, typer.Option("--load-in-4bit", help="Same as --quantization bnb-4bit.", rich_help_panel=MODEL)
]
LoadIn8BitOption = Annotated[
    bool, typer.Option("--load-in-8bit", help="Same as --quantization bnb-8bit.", rich_help_panel=MODEL)
]
AdapterPathOption = Annotated[
    str | None, typer.Option("--adapter-path", help="Folder of a PEFT (LoRA) adapter to apply.", rich_help_panel=MODEL)
]
AttnImplementationOption = Annotated[
    str | None,
    typer.Option("--attn-implementation", help="A transformers attention function.", rich_help_panel=MODEL),
]
ExecutorOption = Annotated[
    ExecutorName | None,
    typer.Option("--executor", help="Pass by pass, or recorded as CUDA graphs.", rich_help_panel=MODEL),
]
TrustRemoteCodeOption = Annotated[
    bool | None,
    typer.Option(
        "--trust-remote-code/--no-trust-remote-code",
        help="Run Python code that comes with the checkpoint.",
        rich_help_panel=MODEL,
    ),
]
GgufFileOption = Annotated[
    str | None, typer.Option("--gguf-file", help="A GGUF file inside the model's folder.", rich_help_panel=MODEL)
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", help="0 is greedy; default: the model's own.", rich_help_panel=SAMPLING),
]
TopPOption = Annotated[
    float | None, typer.Option("--top-p", help="Keep this much probability.", rich_help_panel=SAMPLING)
]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", help="Keep the k likeliest tokens; 0 for all.", rich_help_panel=SAMPLING)
]
MinPOption = Annotated[
    float | None,
    typer.Option("--min-p", help="Keep tokens this likely relative to the likeliest.", rich_help_panel=SAMPLING),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Same seed, same text.", rich_help_panel=SAMPLING)]
ModeOption = Annotated[
    Mode,
    typer.Option(
        "--mode",
        help="match: with a seed, the very text that plain decoding with this seed gives.",
        rich_help_panel=SAMPLING,
    ),
]
MaxNewTokensOption = Annotated[
    int | None,
    typer.Option("--max-new-tokens", "--max-tokens", help="Most tokens to generate.", rich_help_panel=SAMPLING),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", help="A string that ends the text; may be given again.", rich_help_panel=SAMPLING),
]
SystemOption = Annotated[
    str | None, typer.Option("--system", help="System message; @FILE reads it from a file.", rich_help_panel=PROMPT)
]
ChatTemplateOption = Annotated[
    Path | None,
    typer.Option("--chat-template", help="A Jinja file to use as the chat template.", rich_help_panel=PROMPT),
]
TemplateKwargsOption = Annotated[
    str | None,
    typer.Option(
        "--chat-template-kwargs",
        metavar="JSON",
        help='Variables of the chat template, such as {"enable_thinking": false}.',
        rich_help_panel=PROMPT,
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="How results are written to stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notices on stderr.")]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model to load, and how; None where nothing was said."""

    model: ModelOption = None
    revision: RevisionOption = None
    dtype: DtypeOption = None
    device: DeviceOption = None
    quantization: QuantizationOption = None
    load_in_4bit: LoadIn4BitOption = False
    load_in_8bit: LoadIn8BitOption = False
    adapter_path: AdapterPathOption = None
    attn_implementation: AttnImplementationOption = None
    executor: ExecutorOption = None
    trust_remote_code: TrustRemoteCodeOption = None
    gguf_file: GgufFileOption = None

    def given(self) -> dict[str, Any]:
        """What was said, by the names of `ModelSpec`.

        Raises:
            UsageError: Two quantisations at once.
        """
        names = (
            "model",
            "revision",
            "dtype",
            "device",
            "adapter_path",
            "attn_implementation",
            "executor",
            "trust_remote_code",
            "gguf_file",
        )
        values = {name: getattr(self, name) for name in names} | {"quantization": self._quantization()}
        return {name: value for name, value in values.items() if value is not None}

    def over(self, base: ModelSpec | None) -> ModelSpec:
        """The model to load: what was said, and ``base`` for the rest.

        Raises:
            UsageError: No model was named anywhere.
        """
        from selfspec_runtime.model_spec import ModelSpec

        given = self.given()
        if base is not None:
            # A revision or a file inside belongs to the model that it was recorded for.
            other = {"revision": None, "gguf_file": None} if given.get("model", base.model) != base.model else {}
            return base.model_copy(update={**other, **given})
        if "model" not in given:
            message = (
                "No model is named. Pass a calibration file, or --model with a folder, a .gguf file or a hub id "
                "(or set SELFSPEC_MODEL)."
            )
            raise UsageError(message)
        return ModelSpec.model_validate(given)

    def _quantization(self) -> Quantization | None:
        flags = {"bnb-4bit": self.load_in_4bit, "bnb-8bit": self.load_in_8bit, self.quantization: True}
        asked = [name for name, is_set in flags.items() if is_set and name is not None]
        if len(asked) > 1:
            message = f"--quantization cannot be {' and '.join(asked)} at once. Give one."
            raise UsageError(message)
        return asked[0] if asked else None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen, and how many; None where nothing was said."""

    temperature: TemperatureOption = None
    top_p: TopPOption = None
    top_k: TopKOption = None
    min_p: MinPOption = None
    seed: SeedOption = None
    max_new_tokens: MaxNewTokensOption = None

    def given(self) -> dict[str, Any]:
        """What was said, by the names that ``SpeculativeModel.generate`` has for it."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How a text ends, and what a seed means."""

    mode: ModeOption = "rejection"
    stop: StopOption = None

    def given(self) -> dict[str, Any]:
        """The same, by the names that ``SpeculativeModel.generate`` has for it."""
        return {"mode": self.mode, "stop": tuple(self.stop or ())}


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """How prompts are rendered."""

    system: SystemOption = None
    chat_template: ChatTemplateOption = None
    chat_template_kwargs: TemplateKwargsOption = None

    def given(self) -> dict[str, Any]:
        """What was said, by the names that ``SpeculativeModel.generate`` has for it.

        Raises:
            UsageError: A file cannot be read, or the variables are not a JSON object.
        """
        values = {"system": self._system(), "template_kwargs": self._variables() or None}
        return {name: value for name, value in values.items() if value is not None}

    def read(self) -> dict[str, Path | None]:
        """The files that are read, by what each is."""
        system = self.system or ""
        return {
            "the chat template": self.chat_template,
            "the system message": Path(system[1:]) if system.startswith("@") else None,
        }

    def _system(self) -> str | None:
        if self.system is None or not self.system.startswith("@"):
            return self.system
        return text_or_file(self.system, "--system").strip()

    def _variables(self) -> dict[str, Any]:
        variables = json_object(self.chat_template_kwargs or "{}", "--chat-template-kwargs")
        if self.chat_template is not None:
            variables["chat_template"] = read_text(self.chat_template, "--chat-template")
        return variables
