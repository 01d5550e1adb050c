"""What was recorded so far, by what is fixed in it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfspec_runtime.executors.chain import LayerChain, record_chain
from selfspec_runtime.executors.device_cache import DeviceCache
from selfspec_runtime.executors.expert_products import batched_experts
from selfspec_runtime.executors.failure import NotRecordableError, describe_failure, recording_errors
from selfspec_runtime.executors.kernel_rules import fitting_rule
from selfspec_runtime.executors.recorder import WARM_UP_RUNS
from selfspec_runtime.executors.steps import RoundSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from selfspec_runtime.executors.arena import Arena
    from selfspec_runtime.executors.recorder import Recorder, Recording
    from selfspec_runtime.executors.state import DeviceState
    from selfspec_runtime.executors.steps import DraftProgram
    from selfspec_runtime.sampling import SamplingSettings
    from selfspec_runtime.target import Target

#: Smallest extent of the cache that a step reads.
SMALLEST_EXTENT = 256

#: Most recordings that are kept; the one unused for longest goes first.
MAX_RECORDINGS = 128


@dataclass(frozen=True)
class Setting:
    """What every step of a round has in common.

    Attributes:
        extent: Positions of the cache that attention is given.
        sampling: Temperature and filters, without the seed.
        wants_confidence: Whether the controller asks how sure the draft is.
    """

    extent: int
    sampling: SamplingSettings
    wants_confidence: bool


class Recordings:
    """Records steps when they are first needed, and again when the cache's storage or a weight lies elsewhere.

    Args:
        target: The model.
        state: Static buffers.
        arena: Storage of the cache.
        recorder: Records.

    Attributes:
        num_recorded: Steps recorded so far.
    """

    def __init__(self, target: Target, state: DeviceState, arena: Arena, recorder: Recorder) -> None:
        self.num_recorded = 0
        self._target = target
        self._state = state
        self._arena = arena
        self._recorder = recorder
        self._version = arena.version
        self._addresses: tuple[int, ...] = ()
        self._kept: OrderedDict[tuple[Any, ...], tuple[Any, RoundSteps]] = OrderedDict()

    def renew(self) -> None:
        """Drops everything if the model was moved or converted, or if a weight was replaced: graphs know addresses."""
        model = self._target.model
        addresses = tuple(weight.data_ptr() for weights in (model.parameters(), model.buffers()) for weight in weights)
        if addresses != self._addresses:
            self._kept.clear()
            self._addresses = addresses

    def whole(self, setting: Setting, draft: DraftProgram, num_drafts: int) -> Recording:
        """A whole round of fixed length."""
        key = ("whole", setting, draft, num_drafts)
        return self._recorded(key, setting, lambda steps: steps.whole(draft, num_drafts))

    def drafts(self, setting: Setting, draft: DraftProgram, count: int) -> Recording:
        """Some draft steps after those before."""
        return self._recorded(("drafts", setting, draft, count), setting, lambda steps: steps.drafts(draft, count))

    def verification(
        self, setting: Setting, num_drafted: int, *, exit_layer: int | None = None, drawn: bool = True
    ) -> Recording:
        """Verification of the window, and acceptance; a plain step if nothing is drafted."""
        return self._recorded(
            ("verification", setting, num_drafted, exit_layer, drawn),
            setting,
            lambda steps: steps.verify(num_drafted, exit_layer=exit_layer, drawn=drawn),
        )

    def chain(self, setting: Setting) -> LayerChain:
        """A draft step in pieces, for skip sets that change."""
        chain: LayerChain = self._made(("chain", setting), setting, lambda steps: record_chain(steps, self._recorder))
        return chain

    def _steps(self, setting: Setting) -> RoundSteps:
        return RoundSteps(
            self._target,
            self._state,
            DeviceCache(self._arena.keys, self._arena.values, extent=setting.extent),
            fitting_rule(setting.sampling, self._state.key, vocab_size=self._state.sizes.vocab_size),
            wants_confidence=setting.wants_confidence,
        )

    def _recorded(self, key: tuple[Any, ...], setting: Setting, run: Callable[[RoundSteps], None]) -> Recording:
        recording: Recording = self._made(key, setting, lambda steps: self._record(lambda: run(steps)))
        return recording

    def _record(self, run: Callable[[], None]) -> Recording:
        saved = self._state.snapshot()
        for _ in range(WARM_UP_RUNS):
            self._recorder.warm_up(run)
            self._state.restore(saved)
        return self._recorder.record(run)

    def _made(self, key: tuple[Any, ...], setting: Setting, make: Callable[[RoundSteps], Any]) -> Any:
        """What was made for a key, or is made now; the state is afterwards as it was before.

        Raises:
            NotRecordableError: It cannot be recorded.
        """
        self._drop_stale()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        steps = self._steps(setting)
        saved = self._state.snapshot()
        try:
            with batched_experts(self._target.model):
                made = make(steps)
        except recording_errors() as error:
            raise NotRecordableError(describe_failure(error)) from error
        finally:
            self._state.restore(saved)
        self.num_recorded += 1
        # A graph knows addresses only: what the steps hold must live as long.
        self._kept[key] = made, steps
        if len(self._kept) > MAX_RECORDINGS:
            self._kept.popitem(last=False)
        return made

    def _drop_stale(self) -> None:
        if self._version != self._arena.version:
            self._kept.clear()
            self._version = self._arena.version


def extent_for(needed: int, capacity: int) -> int:
    """The smallest extent that holds the needed positions: 256, 384, 512, 768, 1024, ..., at most the capacity."""
    extent = SMALLEST_EXTENT
    while extent < needed:
        # From a power of two to half as much again, from there to the next power.
        extent += extent // 2 if extent & (extent - 1) == 0 else extent // 3
    return min(extent, capacity)
