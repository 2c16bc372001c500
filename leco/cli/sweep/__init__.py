"""`leco sweep`: methods, tasks and seeds, trained and compared."""
