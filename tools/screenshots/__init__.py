"""Pictures of the repository browser for the documentation, made by `make screenshots`."""
