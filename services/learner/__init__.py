"""The learner: receives trajectories, trains, publishes parameters, checkpoints."""
