"""Colours of the depth scale: blue to yellow, even in lightness (after cividis, Nuñez et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

#: From shallow to deep.
DEPTH_COLOURS = ("#fee838", "#dcc95c", "#bdaf6f", "#a09777", "#868379", "#6f7073", "#575d6d", "#31446b", "#00224e")


@dataclass(frozen=True)
class DepthScale:
    """Divides layers 1 .. ``num_layers`` into as many bins as there are colours, or fewer.

    Attributes:
        num_layers: Number of layers.
    """

    num_layers: int

    @property
    def num_bins(self) -> int:
        """How many bins there are."""
        return min(len(DEPTH_COLOURS), self.num_layers)

    def bin_of(self, depth: int) -> int:
        """Number of a depth's bin; ``num_bins`` for a depth beyond the last layer."""
        if depth > self.num_layers:
            return self.num_bins
        return (depth - 1) * self.num_bins // self.num_layers

    def range_of(self, number: int) -> tuple[int, int]:
        """First and last depth of a bin."""
        depths = [depth for depth in range(1, self.num_layers + 1) if self.bin_of(depth) == number]
        return depths[0], depths[-1]

    def index_of(self, number: int) -> int:
        """Place of a bin's colour in :data:`DEPTH_COLOURS`; the ends of the scale are always in use."""
        last = len(DEPTH_COLOURS) - 1
        return round(number * last / max(1, self.num_bins - 1))

    def colour(self, number: int) -> str:
        """Background of a bin, ``#rrggbb``."""
        return DEPTH_COLOURS[self.index_of(number)]

    def text_colour(self, number: int) -> str:
        """Black or white, whichever stands out more from the background."""
        return readable_on(self.colour(number))


def readable_on(background: str) -> str:
    """Black or white, whichever has more contrast to ``#rrggbb``."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, background))


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1 (WCAG 2.2)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
