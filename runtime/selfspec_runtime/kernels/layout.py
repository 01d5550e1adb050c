"""How tensors that only kernels read are laid out.

A *law* is a row of int64: a head of `LAW_HEAD` entries and the weight of each tile of the row. With the logits
that it was made from it says how likely every token is; no softmax is ever stored.
"""

from __future__ import annotations

TILE = 4096
"""Tokens per tile. Results do not depend on it."""

MAX_VOCAB = 1 << 18
"""Largest vocabulary: the weights of so many tokens fit into int64, and their tiles into one block."""

LAW_HEAD = 8
TEMPERATURE_AT = 0
"""Bits of a float32."""
LARGEST_AT = 1
"""Bits of a float32: the largest score."""
MIN_RATIO_AT = 2
"""Bits of a float32: tokens less likely than this times the likeliest are dropped."""
THRESHOLD_AT = 3
"""Tokens whose key is below it are dropped."""
CUT_AT = 4
"""Of the tokens at the threshold, those with lower ids are dropped."""
BROKEN_AT = 5
"""1 for a row that is no law."""
TOTAL_AT = 6
"""Sum of the row's weights."""

INF_KEY = 0x7F800000
NAN_KEY = 0x7FFFFFFF

RADIX_BITS = 4
NUM_PASSES = 32 // RADIX_BITS
RADIX = 1 << RADIX_BITS

LARGEST_SLOT = 0
"""Largest key of a row plus 2**31."""
TIED_SLOT = 1
"""Weight of the tokens at the top-p threshold and above."""
COUNT_SLOT = 8
MASS_SLOT = COUNT_SLOT + NUM_PASSES * RADIX + NUM_PASSES
WORK_SLOTS = MASS_SLOT + NUM_PASSES * RADIX + NUM_PASSES
"""int64 entries per row that the search for the thresholds counts in; zeros at first."""

PARAM_TEMPERATURE, PARAM_TOP_K, PARAM_TOP_P, PARAM_MIN_P = range(4)


def num_tiles(vocab_size: int, tile: int = TILE) -> int:
    """Tiles in a row of that many tokens."""
    return -(-vocab_size // tile)


def law_width(vocab_size: int, tile: int = TILE) -> int:
    """Entries of a law over that many tokens."""
    return LAW_HEAD + num_tiles(vocab_size, tile)
