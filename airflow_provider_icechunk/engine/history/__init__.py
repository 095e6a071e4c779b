"""What happened: ancestry, differences, the operations log, stored files as facts. Only reads."""
