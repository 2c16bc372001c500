"""How figures look: colours that colour-blind readers can tell apart, and text that follows the page's light or dark."""

from __future__ import annotations

# Okabe and Ito's palette, in an order in which neighbours differ most; black is left to r_i and to what has no method.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A", "#5E4FA2")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
REWARD_COLOURS = {"r_ep": "#0072B2", "r_ta": "#D55E00", "r_i": "#555555"}
