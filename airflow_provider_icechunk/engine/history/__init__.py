"""The history: ancestry, diffs, the operations log, the contents of stored files. Only reads."""
