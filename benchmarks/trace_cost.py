"""What a trace costs on top of decoding: seconds, and what was run for it.

python benchmarks/trace_cost.py --model models/SmolLM2-135M-Instruct --tokens 2000
"""

from __future__ import annotations

import argparse
from time import perf_counter

import selfspec
from selfspec_runtime.layer_readings import read_layers

PROMPT = "Write a long story about a lighthouse keeper, with many people in it, and do not end it soon."


def main() -> None:
    """Decodes once, then reads every layer of what came out, which is all that a trace adds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--tokens", type=int, default=2000)
    given = parser.parse_args()
    model = selfspec.load(given.model)
    started = perf_counter()
    # Drawn, so that the text does not end early or go round in circles.
    result = model.generate(PROMPT, max_new_tokens=given.tokens, temperature=1.0)
    decoded = perf_counter()
    read_layers(model.engine.target, result.prompt_token_ids, result.token_ids, questioned={})
    read = perf_counter()
    tokens, layers = len(result.token_ids), model.engine.target.num_layers
    print(f"{tokens} tokens decoded in {decoded - started:.1f} s")
    print(f"read after {layers} layers in {read - decoded:.1f} s: {2000 * (read - decoded) / tokens:.1f} s for 2,000")
    print(f"one pass over {tokens} rows, final norm and head over {layers * tokens:,} rows")


if __name__ == "__main__":
    main()
