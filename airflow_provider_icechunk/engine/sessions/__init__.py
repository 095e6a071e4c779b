"""The session classes, each defined once, built from the parts that the rooms below provide."""
