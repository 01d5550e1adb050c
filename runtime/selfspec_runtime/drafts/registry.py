"""The sources a plan can name. Registering a new one is adding its spec to the union."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from selfspec_runtime.drafts.branching import BranchingSpec
from selfspec_runtime.drafts.clasp import ClaspSpec
from selfspec_runtime.drafts.conf_layers import ConfLayersSpec
from selfspec_runtime.drafts.early_exit import EarlyExitSpec
from selfspec_runtime.drafts.fewer_experts import FewerExpertsSpec
from selfspec_runtime.drafts.first_of import NgramFirstSpec
from selfspec_runtime.drafts.ngram import NgramSpec
from selfspec_runtime.drafts.quantized import QuantizedSpec
from selfspec_runtime.drafts.skipped import LayerSkipSpec
from selfspec_runtime.drafts.suffix import SuffixSpec
from selfspec_runtime.drafts.swift import SwiftSpec

AnySourceSpec = Annotated[
    EarlyExitSpec
    | LayerSkipSpec
    | QuantizedSpec
    | NgramSpec
    | SuffixSpec
    | NgramFirstSpec
    | SwiftSpec
    | ClaspSpec
    | ConfLayersSpec
    | FewerExpertsSpec
    | BranchingSpec,
    Field(discriminator="kind"),
]
