"""Networks: torch modules, without losses."""
