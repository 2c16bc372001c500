"""Fresh episodes with a trained policy: played, scored, recorded and drawn."""
