"""The schedulers a plan can name. With a second one this becomes a union told apart by ``kind``."""

from __future__ import annotations

from selfspec_runtime.schedulers.saguaro import SaguaroSpec

AnySchedulerSpec = SaguaroSpec
