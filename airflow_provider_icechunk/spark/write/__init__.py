"""Jobs that fill arrays: tasks write whole chunks, one driver merges, nobody commits twice."""
