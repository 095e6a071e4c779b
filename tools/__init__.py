"""Scripts behind the Makefile. Those that run before the set-up use the standard library alone."""
