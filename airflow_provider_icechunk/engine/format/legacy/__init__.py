"""The generations before `1`: read, written and migrated, but not where a newcomer starts."""
