"""ObstructedMaze-2Q as the paper played it. Importing this file registers it with gymnasium.

gym-minigrid, which the papers of these years used, let the agent of 1Q, 2Q and Full start in the middle room. MiniGrid 3.2 still
does so in 1Q and Full, but in 2Q the agent starts in the room to the right of it, with the first keys.
"""

from __future__ import annotations

import gymnasium
import minigrid  # noqa: F401  # registers its tasks with gymnasium

TASK_ID = "MiniGrid-ObstructedMaze-2Q-Middle-v0"

_MINIGRIDS = gymnasium.registry["MiniGrid-ObstructedMaze-2Q-v0"]

if TASK_ID not in gymnasium.registry:
    gymnasium.register(TASK_ID, entry_point=_MINIGRIDS.entry_point, kwargs={**_MINIGRIDS.kwargs, "agent_room": (1, 1)})
