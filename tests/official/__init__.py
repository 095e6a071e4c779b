"""The official test suites, run against this project through an import shim."""
