"""What a source spends on choosing how to draft, beside drafting, and the limit that it keeps to.

Work is counted, not timed, so that a seeded run is the same on every machine: a layer that runs over ``n`` rows counts
``1 + row_cost * (n - 1)``. With the default row cost of 1 that is layers times tokens, the most that rows can cost; a
machine whose passes are flat in their rows may be told so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Overhead:
    """Counts since the last reset.

    Attributes:
        num_steps: Steps of a search.
        num_rows: Rows of their passes.
        work: Their work, in layers.
        decode_work: Work of drafting and verifying meanwhile, in layers; without the prompt.
        seconds: Seconds that the steps took.
    """

    num_steps: int = 0
    num_rows: int = 0
    work: float = 0.0
    decode_work: float = 0.0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """Work of the search as a share of the decoding's; 0 before anything was decoded."""
        return self.work / self.decode_work if self.decode_work else 0.0

    def __add__(self, other: Overhead) -> Overhead:
        """Sums of all counts; of the decoding's work the larger, as both count the same rounds."""
        return Overhead(
            self.num_steps + other.num_steps,
            self.num_rows + other.num_rows,
            self.work + other.work,
            max(self.decode_work, other.decode_work),
            self.seconds + other.seconds,
        )


class SearchBudget:
    """Counts work, and allows a step only once decoding has paid for it.

    Args:
        max_overhead: Largest share of the decoding's work that all steps together may come to, at any time.
        row_cost: What a further row of a pass costs, relative to the first: 0 for flat passes, 1 at most.
    """

    def __init__(self, max_overhead: float, row_cost: float) -> None:
        self.max_overhead = max_overhead
        self.row_cost = row_cost
        self.spent = Overhead()

    def pass_work(self, num_layers: float, num_rows: int) -> float:
        """Work of one pass, in layers."""
        return num_layers * (1.0 + self.row_cost * (num_rows - 1))

    def allows(self, work: float) -> bool:
        """Whether a step of this work is paid for."""
        return self.spent.work + work <= self.max_overhead * self.spent.decode_work

    def decoded(self, work: float) -> None:
        """Counts work of drafting and verifying."""
        self.spent = replace(self.spent, decode_work=self.spent.decode_work + work)

    def searched(self, work: float, *, num_rows: int, seconds: float) -> None:
        """Counts a step."""
        self.spent = self.spent + Overhead(1, num_rows, work, 0.0, seconds)

    def reset(self) -> None:
        """Forgets all counts."""
        self.spent = Overhead()
