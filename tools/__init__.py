"""Scripts behind the Makefile. Those that run before the set-up use only the standard library."""
