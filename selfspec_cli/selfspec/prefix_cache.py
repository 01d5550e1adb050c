"""A key/value cache that outlives a generation, for texts that begin alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfspec_runtime.sequence import common_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec_runtime.cache import KVCache
    from selfspec_runtime.target import Target


class PrefixCache:
    """Remembers which tokens a cache holds, so that the next text runs only from where it differs.

    Args:
        target: The model.
    """

    def __init__(self, target: Target) -> None:
        self.cache: KVCache = target.new_cache()
        self._ids: list[int] = []

    def reuse(self, prompt_ids: Sequence[int]) -> KVCache:
        """Rolls the cache back to the longest beginning that it has in common with a prompt.

        At least the prompt's last token is left to run, since its logits give the first new token.

        Args:
            prompt_ids: At least one token id.
        """
        # What an interrupted round wrote beyond the committed length does not count.
        held = self._ids[: self.cache.length]
        self.cache.length = min(common_prefix(held, prompt_ids), len(prompt_ids) - 1)
        self._ids = list(prompt_ids)
        return self.cache

    def extend(self, token_ids: Sequence[int]) -> None:
        """Notes tokens that were committed after the prompt."""
        self._ids.extend(token_ids)
