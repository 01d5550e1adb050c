"""The controllers a plan can name. Registering a new one is adding its spec to the union."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from selfspec_runtime.controllers.confidence import ConfidenceSpec
from selfspec_runtime.controllers.fixed import FixedSpec

AnyControllerSpec = Annotated[FixedSpec | ConfidenceSpec, Field(discriminator="kind")]
