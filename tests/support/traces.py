"""Traces made up for tests: consistent, of any size, with tokens as nasty as wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec_runtime.token_trace import TokenTrace
from selfspec_runtime.trace_round import TraceRound

if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTILE = (
    "<script>alert(1)</script>",
    "</script>",
    "</style><b>",
    "]]>",
    "<!--",
    "\x00",
    "\x1b[31m",
    "\u202eabc",
    "\u2066",
    "שלום",
    "\ud83d",
    "⟨0xF0⟩",
    "⟨0x9F⟩⟨0x98⟩",
    "⟨0x80⟩",
    "x" * 10_000,
    '" onmouseover="alert(1)',
    "{{7*7}} {0} %s",
    "[red]bold[/red]",
    "[/INST]",
    "<|im_end|>",
    "&amp;",
    "\u2028",
    "",
)


def made_up_trace(
    pieces: Sequence[str] = ("one", " two", " three", "\n", "  ", " end"),
    *,
    num_layers: int = 12,
    num_draft_tokens: int = 3,
    seed: int = 0,
    **changes: Any,
) -> TokenTrace:
    """A trace whose token t has id t and ``pieces[t]``; drafts are about half right, layers agree ever more often."""
    generator = np.random.default_rng(seed)
    tokens = len(pieces)
    share = np.linspace(0.1, 1.0, num_layers)[:, None]
    agree = generator.random((num_layers, tokens)) < share
    ids = np.arange(tokens, dtype=np.int32)
    others = generator.integers(0, tokens, (num_layers, tokens, 3), dtype=np.int32)
    others[..., 0] = np.where(agree, ids, (ids + 1) % max(tokens, 2))
    content: dict[str, Any] = {
        "prompt_ids": (1, 2),
        "token_ids": ids,
        "pieces": dict(enumerate(pieces)),
        "rounds": made_up_rounds(tokens, num_draft_tokens, generator),
        "layers_agree": agree,
        "top_ids": others,
        "top_probs": generator.random((num_layers, tokens, 3)).astype(np.float16),
        "target_probs": generator.random(tokens).astype(np.float32),
        "text": "".join(pieces),
        "finish_reason": "length",
        "plan": f"exit after layer {num_layers - 2}, {num_draft_tokens} drafts",
        "exit_layer": num_layers - 2,
    }
    return TokenTrace(**(content | changes))


def made_up_rounds(tokens: int, num_draft_tokens: int, generator: np.random.Generator) -> tuple[TraceRound, ...]:
    """Rounds that accept between none and all of their draft tokens."""
    rounds, start = [TraceRound(start=0, num_tokens=1)], 1
    while start < tokens:
        accepted = int(generator.integers(0, num_draft_tokens + 1))
        emitted = min(accepted + 1, tokens - start)
        accepted = min(accepted, emitted)
        wrong = [(start + accepted + 1) % tokens] * (num_draft_tokens - accepted)
        rounds.append(
            TraceRound(
                start=start,
                num_tokens=emitted,
                drafted_ids=(*range(start, start + accepted), *wrong),
                draft_probs=tuple(generator.random(num_draft_tokens).tolist()),
                num_accepted=accepted,
                origin="early_exit",
                draft_s=0.01,
                verify_s=0.03,
            )
        )
        start += emitted
    return tuple(rounds)
