"""Options of measuring a shape whose weights mean nothing, or are not there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from selfspec_runtime.generation import GenerationSettings
    from selfspec_runtime.loading import LoadedModel
    from selfspec_runtime.model_spec import ModelSpec

SHAPE = "Shape"
SCRIPTED = "synthetic acceptance: the text is not the model's"

SyntheticOption = Annotated[
    float | None,
    typer.Option(
        "--synthetic-acceptance",
        metavar="0.95",
        help="Let each draft token stand with this probability, whatever the model says.",
        rich_help_panel=SHAPE,
    ),
]
RandomOption = Annotated[
    bool,
    typer.Option(
        "--random-weights", help="Make the weights up: --model needs only a config.json.", rich_help_panel=SHAPE
    ),
]


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """What is made up: which drafts stand, and the weights."""

    synthetic_acceptance: SyntheticOption = None
    random_weights: RandomOption = False

    @property
    def is_scripted(self) -> bool:
        """Whether acceptance is scripted, so that no text is the model's."""
        return self.synthetic_acceptance is not None

    @property
    def labels(self) -> tuple[str, ...]:
        """What every result must say."""
        from selfspec_runtime.random_weights import NOTICE

        return (*((SCRIPTED,) if self.is_scripted else ()), *((NOTICE,) if self.random_weights else ()))

    def load(self, spec: ModelSpec) -> LoadedModel:
        """The model, with its own weights or with random ones.

        Raises:
            SelfspecError: There is no such model, or not so.
        """
        from selfspec_runtime.loading import load_model
        from selfspec_runtime.random_weights import random_model

        return (random_model if self.random_weights else load_model)(spec)

    def over(self, settings: GenerationSettings) -> GenerationSettings:
        """How to generate: with a scripted acceptance nothing but the length ends a text, for all that are compared.

        Raises:
            UsageError: The acceptance is no probability, or tokens are drawn.
        """
        if not self.is_scripted:
            return settings
        return replace(settings, synthetic_acceptance=self.synthetic_acceptance, eos_token_ids=(), stop=())
