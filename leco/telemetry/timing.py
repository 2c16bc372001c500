"""How long something took or will take, for people."""

from __future__ import annotations


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
