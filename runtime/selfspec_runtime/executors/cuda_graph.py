"""Rounds as recorded steps: one replay and one copy to the host per round of fixed length.

What is recorded depends on the extent of the cache that attention is given, so that a step is recorded again when a
text outgrows its extent; extents grow by a third to a half, and a mask hides what lies beyond the live length. So
any attention of any family can be recorded; the own one reads what the mask shows, others at most a third in vain.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from selfspec_runtime.acceptance import Verdict
from selfspec_runtime.drafts.draft import Draft, ExactPrefix
from selfspec_runtime.drafts.source import RoundContext
from selfspec_runtime.errors import NumericalError
from selfspec_runtime.executors.device_rules import without_seed
from selfspec_runtime.executors.executor import ExecutedRound, Executor
from selfspec_runtime.executors.failure import NotRecordableError
from selfspec_runtime.executors.host_copy import DeviceCopy, HostCopy
from selfspec_runtime.executors.recordings import Recordings, Setting, extent_for
from selfspec_runtime.executors.round_draft import HostDraft, PassDraft, RoundDraft, SkipDraft, round_draft
from selfspec_runtime.executors.state import BROKEN, FIRST_DRAFTED, NUM_ACCEPTED, TOKEN, DeviceState, StateSizes
from selfspec_runtime.families import text_config

if TYPE_CHECKING:
    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.controllers.controller import Controller
    from selfspec_runtime.drafts.source import DraftSource
    from selfspec_runtime.executors.recorder import Recorder
    from selfspec_runtime.rules import AcceptanceRule
    from selfspec_runtime.sequence import Sequence
    from selfspec_runtime.target import Target

#: Drafts between two looks at the confidences: a look costs a wait for the device, a draft too many costs a pass.
DRAFTS_PER_READ = 3


class GraphExecutor(Executor):
    """Records the steps of a round, and replays them.

    A round that cannot be recorded (a source that is not known here, history-dependent processors, the end of the
    context) is left to the decoder. If recording fails, so are all that follow.

    Args:
        target: The model.
        source: What drafts; None for plain decoding.
        controller: How far it drafts.
        recorder: Records.
        max_drafts: The most tokens a round drafts.
    """

    name: ClassVar[str] = "cuda_graph"

    def __init__(
        self,
        target: Target,
        source: DraftSource | None,
        controller: Controller,
        *,
        recorder: Recorder,
        max_drafts: int,
    ) -> None:
        config = text_config(target.model.config)
        # Confidences are read in groups, the last of which may reach beyond the most that is kept.
        room = max_drafts + DRAFTS_PER_READ
        sizes = StateSizes(room, int(config.hidden_size), int(config.vocab_size))
        self.source = source
        self.controller = controller
        self.max_drafts = max_drafts
        self.state = DeviceState(sizes, dtype=target.dtype, device=target.device)
        self.recordings = Recordings(target, self.state, target.arena, recorder)
        self._arena = target.arena
        self._max_positions = target.max_positions
        self._host = HostCopy(self.state.outcome)
        self._device = DeviceCopy(self.state.window[1:])

    @property
    def num_host_reads(self) -> int:
        """Copies from the device that the host waited for."""
        return self._host.num_reads

    def begin(self, cache: KVCache) -> None:
        """Moves an empty cache into the storage that recorded steps work on."""
        self.state.forget()
        if self.notice is None:
            self.recordings.renew()
            self._arena.welcome(cache, margin=self.state.sizes.max_drafts + 1)

    def round(self, sequence: Sequence, cache: KVCache, *, rule: AcceptanceRule, room: int) -> ExecutedRound | None:
        """Replays a round, or leaves it to the decoder; errors as the contract says."""
        if self.notice is not None or rule.is_scripted or not rule.processors.is_empty:
            return None
        started = perf_counter()
        context = RoundContext(sequence, cache, rule, self.controller, self.controller.budget(), room)
        draft = round_draft(self.source, context)
        if draft is None or not self._fits(draft, sequence):
            return None
        try:
            return self._executed(draft, context, started)
        except NotRecordableError as error:
            self.notice = f"CUDA graphs are off for this model, which decodes eagerly: {error}"
            return None

    def _fits(self, draft: RoundDraft, sequence: Sequence) -> bool:
        last = sequence.last_position + self._num_run(draft)
        inside = self._max_positions is None or last < self._max_positions
        return inside and draft.count <= self.max_drafts

    def _executed(self, draft: RoundDraft, context: RoundContext, started: float) -> ExecutedRound:
        setting = self._prepare(draft, context)
        if isinstance(draft, HostDraft):
            self._device.write(draft.draft.token_ids)
            return self._verified(setting, draft.draft, context, started, drawn=False)
        if isinstance(draft, PassDraft) and not setting.wants_confidence:
            self.recordings.whole(setting, draft.program, draft.count).replay()
            drafted = self._draft(draft, draft.count, num_passes=draft.count)
            return self._outcome(drafted, context, started, started)
        count, num_passes = self._drafted(setting, draft, max(context.room, 1))
        return self._verified(setting, self._draft(draft, count, num_passes=num_passes), context, started)

    def _prepare(self, draft: RoundDraft, context: RoundContext) -> Setting:
        """Sees to it that the round's positions exist, and that the state stands at the end of the text."""
        sequence, cache, settings = context.sequence, context.cache, context.rule.settings
        num_positions = self._num_run(draft) + 1
        cache.begin(sequence.last_position, num_positions)
        self._arena.attach(cache)
        self.state.place(sequence, settings.seed)
        extent = extent_for(sequence.last_position + num_positions, self._arena.capacity)
        asks = self.controller.needs_confidence and not isinstance(draft, HostDraft)
        return Setting(extent, without_seed(settings), asks)

    def _num_run(self, draft: RoundDraft) -> int:
        """Tokens that may be drafted before the round knows that it has enough."""
        if isinstance(draft, HostDraft) or not self.controller.needs_confidence:
            return draft.count
        return -(-draft.count // DRAFTS_PER_READ) * DRAFTS_PER_READ

    def _drafted(self, setting: Setting, draft: PassDraft | SkipDraft, room: int) -> tuple[int, int]:
        """Drafts until the controller has enough; returns how many tokens are kept, and how many passes ran."""
        self.state.cursor.zero_()
        if not setting.wants_confidence:
            self._run(setting, draft, draft.count)
            return draft.count, draft.count
        first = self.state.first_confidence
        num_run = 0
        while True:
            self._run(setting, draft, DRAFTS_PER_READ)
            values = self._host.read()
            for _ in range(DRAFTS_PER_READ):
                confidence = values[first + num_run]
                num_run += 1
                if num_run == min(draft.count, room) or not self.controller.wants_more(num_run, confidence):
                    return num_run, -(-num_run // DRAFTS_PER_READ) * DRAFTS_PER_READ

    def _run(self, setting: Setting, draft: PassDraft | SkipDraft, count: int) -> None:
        if isinstance(draft, PassDraft):
            self.recordings.drafts(setting, draft.program, count).replay()
            return
        chain = self.recordings.chain(setting)
        for _ in range(count):
            chain.replay(draft.skip)

    def _draft(self, draft: PassDraft | SkipDraft, count: int, *, num_passes: int) -> Draft:
        """A draft whose tokens the host has not seen yet."""
        exit_layer = draft.program.exit_layer if isinstance(draft, PassDraft) else None
        prefix = None if exit_layer is None else ExactPrefix(exit_layer, self.state.hidden[:, :count])
        return Draft([0] * count, [None] * count, prefix=prefix, origin=draft.origin, num_passes=num_passes)

    def _verified(
        self, setting: Setting, draft: Draft, context: RoundContext, started: float, *, drawn: bool = True
    ) -> ExecutedRound:
        drafted = perf_counter()
        exit_layer = None if draft.prefix is None else draft.prefix.exit_layer
        self.recordings.verification(setting, len(draft), exit_layer=exit_layer, drawn=drawn).replay()
        return self._outcome(draft, context, started, drafted)

    def _outcome(self, draft: Draft, context: RoundContext, started: float, drafted: float) -> ExecutedRound:
        values = self._host.read()
        if values[BROKEN]:
            message = (
                f"The logits that follow position {context.sequence.last_position} are not numbers (NaN, +inf or "
                "nothing but -inf), so no token can be chosen. Load the model in bfloat16 or float32, and check its "
                "weights."
            )
            raise NumericalError(message)
        if draft.num_passes:
            draft.token_ids = [int(value) for value in values[FIRST_DRAFTED : FIRST_DRAFTED + len(draft)]]
        num_accepted, token_id = int(values[NUM_ACCEPTED]), int(values[TOKEN])
        self.state.arrived(context.sequence.last_position + num_accepted + 1, token_id)
        verdict = _cut(draft, Verdict(num_accepted, token_id), context.room)
        return ExecutedRound(draft, verdict, drafted - started, perf_counter() - drafted)


def _cut(draft: Draft, verdict: Verdict, room: int) -> Verdict:
    """Leaves out what no longer fits: recording another length for the last round of a text would not pay."""
    if len(draft) <= room:
        return verdict
    next_token = draft.token_ids[room]
    del draft.token_ids[room:], draft.probs[room:]
    if room == 0:
        draft.origin, draft.prefix, draft.num_passes = "none", None, 0
    return verdict if verdict.num_accepted <= room else Verdict(room, next_token)
