"""Which executor to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.errors import UsageError
from selfspec_runtime.executors.cuda_graph import GraphExecutor
from selfspec_runtime.executors.eager import EagerExecutor
from selfspec_runtime.executors.recorder import CudaRecorder

if TYPE_CHECKING:
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.source import DraftSource
    from selfspec_runtime.executors.executor import Executor, ExecutorName
    from selfspec_runtime.target import Target


def make_executor(
    name: ExecutorName, target: Target, source: DraftSource | None, controller: Controller, *, max_drafts: int
) -> Executor:
    """Makes the executor that was asked for.

    Args:
        name: ``auto`` is CUDA graphs on a CUDA device, and eager elsewhere.
        target: The model.
        source: What drafts; None for plain decoding.
        controller: How far it drafts.
        max_drafts: The most tokens a round drafts.

    Raises:
        UsageError: CUDA graphs were asked for, and the model is elsewhere.
    """
    on_cuda = target.device.type == "cuda"
    if name == "eager" or (name == "auto" and not on_cuda):
        return EagerExecutor()
    if not on_cuda:
        message = (
            f"--executor cuda_graph needs a CUDA device, and the model is on {target.device}. Use --executor auto."
        )
        raise UsageError(message)
    return GraphExecutor(target, source, controller, recorder=CudaRecorder(target.device), max_drafts=max_drafts)
