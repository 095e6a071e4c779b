"""S3 and compatible stores as storage; conditions of writes are left to the store."""
