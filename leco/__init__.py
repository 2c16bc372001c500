"""LECO (learnable episodic count) as a library: mathematics, networks, environments, wire codec, telemetry."""
