"""A draft step in pieces, so that a skip set that changes at run time needs no new recording.

A step is recorded as: what comes before the layers, every layer three times (whole, without its attention, without
its MLP), and what follows them. A skip set is then a choice of pieces. Multiplying sub-layers by a device-side 0
would need one recording only, and would save nothing: what is skipped must not be launched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from selfspec_runtime.errors import PlanError
from selfspec_runtime.executors.steps import DraftProgram
from selfspec_runtime.layer_skip import LayerSkipSet
from selfspec_runtime.program import LayerProgram
from selfspec_runtime.stubs import LayerStub

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from selfspec_runtime.executors.recorder import Recorder, Recording
    from selfspec_runtime.executors.steps import RoundSteps
    from selfspec_runtime.program import ProgramBuilder

#: The forms in which a layer is recorded, by what is left out: (attention, MLP).
WHOLE, NO_ATTENTION, NO_MLP, NOTHING = (False, False), (True, False), (False, True), (True, True)
Form = tuple[bool, bool]


@dataclass
class LayerChain:
    """The pieces of a draft step.

    Attributes:
        before: Embeddings, positions and masks.
        layers: For each layer its pieces.
        after: Final norm, head, and the choice of a token.
        held: Tensors that several pieces read, kept so that their memory is not given to another recording.
    """

    before: Recording
    layers: tuple[Mapping[Form, Recording], ...]
    after: Recording
    held: list[Any] = field(default_factory=list)

    def replay(self, skip: LayerSkipSet) -> None:
        """Drafts one token without some sub-layers.

        Args:
            skip: What is left out.

        Raises:
            PlanError: A sub-layer was not recorded, since the family has no module for it.
        """
        self.before.replay()
        for index, pieces in enumerate(self.layers):
            form = (index in skip.attention, index in skip.mlp)
            if form == NOTHING:
                continue
            if form not in pieces:
                message = f"Layer {index} cannot be run without its {'attention' if form[0] else 'MLP'} alone."
                raise PlanError(message)
            pieces[form].replay()
        self.after.replay()


def record_chain(steps: RoundSteps, recorder: Recorder) -> LayerChain:
    """Records a draft step in pieces.

    Args:
        steps: The steps; their state must be restored afterwards.
        recorder: Records.

    Raises:
        RuntimeError: The family computes something between its layers, which belongs to no piece.
    """
    programs = steps.target.programs
    parts = steps.target.parts
    recorded = _Recorded(recorder, parts.num_layers)
    forms = _forms(programs)
    modules = tuple(
        _Piece(layer, programs.output_length, recorded, {form: program.modules[index] for form, program in forms})
        for index, layer in enumerate(parts.own_layers)
    )
    draft = DraftProgram(LayerProgram(modules))
    for _, program in forms:
        recorder.warm_up(partial(_first_draft, steps, DraftProgram(program)))
    try:
        steps.start()
        recorder.begin()
        steps.draft(draft)
        after = recorder.end()
    finally:
        recorder.abort()
    assert recorded.before is not None, "no layer was run"
    return LayerChain(recorded.before, tuple(recorded.layers), after, recorded.held)


def _first_draft(steps: RoundSteps, draft: DraftProgram) -> None:
    """From the window's first place each time: behind the one after it the cache may end."""
    steps.start()
    steps.draft(draft)


def _forms(programs: ProgramBuilder) -> list[tuple[Form, LayerProgram]]:
    parts = programs.parts
    every = frozenset(range(parts.num_layers))
    forms = [(WHOLE, programs.full())]
    if parts.attention_name is not None:
        forms.append((NO_ATTENTION, programs.without(LayerSkipSet(attention=every))))
    if parts.mlp_name is not None:
        forms.append((NO_MLP, programs.without(LayerSkipSet(mlp=every))))
    return forms


class _Recorded:
    """What was recorded so far, and the one tensor that carries the hidden states from piece to piece."""

    def __init__(self, recorder: Recorder, num_layers: int) -> None:
        self.recorder = recorder
        self.num_layers = num_layers
        self.before: Recording | None = None
        self.layers: list[Mapping[Form, Recording]] = []
        self.held: list[Any] = []
        self._stream: Tensor | None = None

    def enter(self, hidden_states: Tensor) -> Tensor:
        """Ends the piece before a layer; what the layer reads is the stream."""
        if self._stream is None:
            self._stream = hidden_states.clone()
            self.held.append(self._stream)
            self.before = self.recorder.end()
        elif hidden_states is not self._stream:
            message = "the model computes something between its layers, which belongs to no layer"
            raise RuntimeError(message)
        return self._stream

    def piece(self, module: nn.Module, output_length: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records one form of a layer."""
        assert self._stream is not None
        self.recorder.begin()
        output = module(self._stream, *args, **kwargs)
        self._stream.copy_(output if output_length is None else output[0])
        return self.recorder.end()


class _Piece(LayerStub):
    """Records a layer in each form instead of running it."""

    def __init__(
        self, layer: nn.Module, output_length: int | None, recorded: _Recorded, forms: dict[Form, nn.Module]
    ) -> None:
        super().__init__(layer, output_length)
        self.__dict__["recorded"] = recorded
        self.__dict__["forms"] = forms

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns the stream, and leaves a recording open for what follows the last layer."""
        recorded: _Recorded = self.recorded
        stream = recorded.enter(hidden_states)
        recorded.held.append((args, kwargs))
        recorded.layers.append(
            {form: recorded.piece(module, self.output_length, args, kwargs) for form, module in self.forms.items()}
        )
        if len(recorded.layers) == recorded.num_layers:
            recorded.recorder.begin()
        return self.shaped(stream)
