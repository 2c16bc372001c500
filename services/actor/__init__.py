"""The actor: steps environments with the policy, has what it sees counted, streams trajectories."""
