"""What a process tells people: logs, metrics, traces, and what it ran on."""
