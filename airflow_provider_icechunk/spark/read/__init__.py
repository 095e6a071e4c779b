"""Arrays as data frames: every chunk is read by one task."""
