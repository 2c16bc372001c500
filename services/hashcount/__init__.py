"""The hash-count service: episodic visit tables, exactly once."""
