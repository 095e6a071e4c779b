"""The native client of object stores (`obstore`), and what its answers mean."""
