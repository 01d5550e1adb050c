"""``selfspec estimate``: what the textbook says, before anything is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfspec.cli.console import Terminal
from selfspec.cli.options import FormatOption
from selfspec_runtime.errors import UsageError

if TYPE_CHECKING:
    from selfspec.cli.sheet import Sheet

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
DRAFT_TOKENS = (1, 2, 3, 4, 6, 8)

AcceptanceOption = Annotated[
    float | None, typer.Option("--acceptance", "-a", help="Probability that a draft token is accepted.")
]
DraftCostOption = Annotated[
    str,
    typer.Option(
        "--draft-cost", "-c", metavar="0.3|8/30", help="Time of a draft step over a plain step, head included."
    ),
]
VerifyCostOption = Annotated[
    float, typer.Option("--verify-cost", help="Time of a verification over the time of a plain step.")
]
TokensOption = Annotated[
    int | None, typer.Option("--num-draft-tokens", "-k", help="Draft tokens per round; default: a table.")
]


def estimate(
    *,
    draft_cost: DraftCostOption,
    acceptance: AcceptanceOption = None,
    num_draft_tokens: TokensOption = None,
    verify_cost: VerifyCostOption = 1.0,
    form: FormatOption = "table",
) -> None:
    """Estimate a speedup from acceptance and costs (Leviathan et al. 2211.17192), without running anything.

    The law takes every draft token to be accepted independently; what calibrate reports is measured.
    """
    from selfspec.cli.sheet import show_sheets

    cost = parse_ratio(draft_cost)
    acceptances = ACCEPTANCES if acceptance is None else (acceptance,)
    numbers = DRAFT_TOKENS if num_draft_tokens is None else (num_draft_tokens,)
    show_sheets((_sheet(acceptances, numbers, cost=cost, verify_cost=verify_cost),), form, Terminal())


def parse_ratio(text: str) -> float:
    """Reads ``0.3`` or ``8/30``.

    Raises:
        UsageError: It is neither.
    """
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(
            f"--draft-cost is {text!r}. Write a number such as 0.3, or a fraction such as 8/30."
        ) from error


def _sheet(acceptances: tuple[float, ...], numbers: tuple[int, ...], *, cost: float, verify_cost: float) -> Sheet:
    from selfspec.cli.sheet import Column, Sheet, number
    from selfspec_calibrate.textbook import ceiling

    limit = number(2, unit="x")(ceiling(cost))
    rows = [_row(acceptance, tokens, cost, verify_cost) for acceptance in acceptances for tokens in numbers]
    return Sheet(
        name="estimate",
        title=f"Textbook estimate: a draft step costs {cost:.3g}, a verification {verify_cost:.3g} plain steps",
        columns=(
            Column(key="acceptance", title="acceptance", write=number(2)),
            Column(key="num_draft_tokens", title="draft tokens"),
            Column(key="tokens_per_round", title="tokens/round", write=number(2)),
            Column(key="speedup", title="speedup", write=number(2, unit="x")),
            Column(key="is_best", title="", write=lambda best: "best" if best else "", is_text=True),
        ),
        rows=tuple(rows),
        notes=(f"No acceptance and no number of drafts gives more than {limit} at this draft cost.",),
    )


def _row(acceptance: float, tokens: int, cost: float, verify_cost: float) -> dict[str, Any]:
    from selfspec_calibrate.textbook import best_num_draft_tokens, expected_speedup, expected_tokens

    return {
        "acceptance": acceptance,
        "num_draft_tokens": tokens,
        "tokens_per_round": expected_tokens(acceptance, tokens),
        "speedup": expected_speedup(acceptance, cost, tokens, verify_cost),
        "is_best": tokens == best_num_draft_tokens(acceptance, cost, verify_cost_ratio=verify_cost),
    }
