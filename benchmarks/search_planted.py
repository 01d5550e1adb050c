"""How fast the search finds planted skip sets of 48 interacting sub-layers, beside random search.

    python benchmarks/search_planted.py

No model and no clock are in it: the speedup of every set is known. Removing two neighbours hurts more than the sum.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.planted_search import PlantedSearch

EVALUATIONS = 300
SHOWN = (10, 25, 50, 100, 150, 200, 300)
WANTED_SHARE, WANTED_SEEDS = 0.98, 9


def main() -> int:
    """Prints a Markdown table; the exit code tells whether enough seeds reach the optimum's neighbourhood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    print("| seed | search | " + " | ".join(f"after {n}" for n in SHOWN) + " | 98 % after |")
    print("|---|---|" + "---:|" * (len(SHOWN) + 1))
    found, drawn = [], []
    for seed in seeds:
        problem = PlantedSearch(seed)
        found.append(problem.search_curve(EVALUATIONS))
        drawn.append(problem.random_curve(EVALUATIONS))
        print(_row(str(seed), "ours", found[-1]), flush=True)
        print(_row("", "random", drawn[-1]), flush=True)
    for name, curves in (("ours", found), ("random", drawn)):
        print(_row("median", name, [median(values) for values in zip(*curves, strict=True)]))
    reached = sum(curve[-1] >= WANTED_SHARE for curve in found)
    print(f"\n{reached} of {len(found)} seeds reach {WANTED_SHARE:.0%} within {EVALUATIONS} evaluations.")
    return int(reached < WANTED_SEEDS * len(found) / 10)


def _row(seed: str, name: str, curve: list[float]) -> str:
    shares = [f"{curve[min(n, len(curve)) - 1]:.3f}" for n in SHOWN]
    first = next((str(n) for n, share in enumerate(curve, start=1) if share >= WANTED_SHARE), "never")
    return f"| {seed} | {name} | " + " | ".join([*shares, first]) + " |"


if __name__ == "__main__":
    sys.exit(main())
