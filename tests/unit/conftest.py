"""Small tensors on one thread."""

from __future__ import annotations

import support.one_thread  # noqa: F401  # it is imported for what it does
