"""How deep the model had to go for every token, to look around in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from selfspec.notebook.bundle import script, style
from selfspec.notebook.view import View, joined_by_nul
from selfspec.views.exit_depth_html import depth_class, exit_depth_html, legend
from selfspec.views.exit_depth_text import exit_depth_plain
from selfspec.views.palette import DepthScale
from selfspec.views.token_text import running, visible, with_whole_characters
from selfspec.views.trace_words import depth_sentence, headline
from selfspec_runtime.token_trace import FATES

if TYPE_CHECKING:
    from markupsafe import Markup

    from selfspec_runtime.token_trace import TokenTrace


class ExitDepthView(View):
    """A trace as a widget.

    The arrays go to the browser as bytes, once; the candidates of a token only when it is asked for.

    Args:
        trace: The trace.
    """

    _esm = script("exit_depth")
    _css = style()

    texts = traitlets.Bytes().tag(sync=True)
    ids = traitlets.Bytes().tag(sync=True)
    depths = traitlets.Bytes().tag(sync=True)
    depth_classes = traitlets.Bytes().tag(sync=True)
    fates = traitlets.Bytes().tag(sync=True)
    round_of = traitlets.Bytes().tag(sync=True)
    rounds = traitlets.Bytes().tag(sync=True)
    draft_probs = traitlets.Bytes().tag(sync=True)
    target_probs = traitlets.Bytes().tag(sync=True)
    agree = traitlets.Bytes().tag(sync=True)
    num_layers = traitlets.Int().tag(sync=True)
    exit_layer = traitlets.Int().tag(sync=True)
    headline = traitlets.Unicode().tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    legend = traitlets.Unicode().tag(sync=True)

    def __init__(self, trace: TokenTrace) -> None:
        self._trace = trace
        super().__init__(**_traits(trace))
        self.on_msg(self._answer)

    @property
    def trace(self) -> TokenTrace:
        """What is shown."""
        return self._trace

    @property
    def title(self) -> str:
        """Title of the saved page."""
        return "Exit depth of a generation"

    def static_html(self) -> Markup:
        """The view without script."""
        return exit_depth_html(self._trace)

    def plain_text(self) -> str:
        """The view as text."""
        return exit_depth_plain(self._trace)

    def candidates(self, token: int) -> dict[str, Any]:
        """What each layer would have said at one place, and what was drafted there in vain.

        Args:
            token: Place among the generated tokens.

        Returns:
            The message that the browser gets.
        """
        trace = self._trace
        each = trace.rounds[int(trace.round_of[token])]
        rejected = each.rejected_ids if trace.fates[token] == "corrected" else ()
        layers = zip(trace.top_ids[:, token].tolist(), trace.top_probs[:, token].tolist(), strict=True)
        return {
            "kind": "candidates",
            "token": token,
            "rejected": [visible(trace.piece(found)) for found in rejected],
            "layers": [
                [
                    [visible(trace.piece(found)), None if prob != prob else prob]
                    for found, prob in zip(*row, strict=True)
                ]
                for row in layers
            ],
        }

    def _answer(self, _widget: Any, message: Any, _buffers: Any) -> None:
        token = message.get("token") if isinstance(message, dict) else None
        if isinstance(token, int) and 0 <= token < self._trace.num_tokens and message.get("kind") == "candidates":
            self.send(self.candidates(token))


def _traits(trace: TokenTrace) -> dict[str, Any]:
    scale, depths = DepthScale(trace.num_layers), trace.settle_depth
    pieces = with_whole_characters([trace.piece(token) for token in trace.token_ids.tolist()])
    rounds = [(each.start, each.num_tokens, each.num_drafted, each.num_accepted) for each in trace.rounds]
    return {
        "texts": joined_by_nul(running(piece) for piece in pieces),
        "ids": trace.token_ids.astype("<i4").tobytes(),
        "depths": depths.astype("<i4").tobytes(),
        "depth_classes": joined_by_nul(depth_class(scale, depth) for depth in depths.tolist()),
        "fates": bytes(FATES.index(fate) for fate in trace.fates),
        "round_of": trace.round_of.astype("<i4").tobytes(),
        "rounds": np.array(rounds, dtype="<i4").tobytes(),
        "draft_probs": trace.draft_probs.astype("<f4").tobytes(),
        "target_probs": trace.target_probs.astype("<f4").tobytes(),
        "agree": np.packbits(trace.layers_agree, axis=1).tobytes(),
        "num_layers": trace.num_layers,
        "exit_layer": trace.exit_layer or 0,
        "headline": headline(trace),
        "sentence": depth_sentence(trace),
        "legend": str(legend(trace)),
    }
