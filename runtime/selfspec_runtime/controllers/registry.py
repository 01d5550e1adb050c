"""The controllers a plan can name. Registering a new one is adding its spec to the union."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from selfspec_runtime.controllers.accepted_length import AcceptedLengthSpec
from selfspec_runtime.controllers.adaptive_threshold import AdaptiveThresholdSpec
from selfspec_runtime.controllers.confidence import ConfidenceSpec
from selfspec_runtime.controllers.fixed import FixedSpec
from selfspec_runtime.controllers.thompson import ThompsonSpec

AnyControllerSpec = Annotated[
    FixedSpec | ConfidenceSpec | AdaptiveThresholdSpec | AcceptedLengthSpec | ThompsonSpec,
    Field(discriminator="kind"),
]
