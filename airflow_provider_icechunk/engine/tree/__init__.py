"""What one session sees, and what it changed. Nothing here is stored before a commit."""
