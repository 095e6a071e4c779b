"""Settings for access to a bucket of S3 or a compatible store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_icechunk.engine.storage.clouds.settings import BucketSettings, invalid
from airflow_provider_icechunk.engine.storage.secrets import EnvironmentCredentials, S3Credentials

Checksums = Literal["when_supported", "when_required"]


@dataclass(frozen=True, slots=True)
class S3Settings(BucketSettings):
    """All settings of an `S3Storage`; its repr never contains a secret."""

    region: str | None = None
    credentials: S3Credentials = field(default_factory=EnvironmentCredentials)
    force_path_style: bool = False
    checksums: Checksums | None = None
    """When boto3 sends checksums; by default always to AWS itself, otherwise only when required.

    If `when_supported` is chosen, boto3 makes all requests, because it also verifies what it reads.
    The native client signs a digest of everything it writes, and leaves reads to TLS.
    """
    requester_pays: bool = False
    kms_key_id: str | None = None
    """The AWS KMS key that encrypts new objects; boto3 then makes the writes."""
    page_size: int = 1000
    """Keys in a page of a listing."""

    def __post_init__(self) -> None:
        BucketSettings.__post_init__(self)
        if not 1 <= self.page_size <= 1000:
            raise invalid("page_size must be between 1 and 1000")

    @property
    def sends_checksums(self) -> bool:
        """Whether every write by boto3 has a checksum."""
        chosen = self.checksums or ("when_required" if self.endpoint_url else "when_supported")
        return chosen == "when_supported"

    @property
    def verifies_reads(self) -> bool:
        """Whether checksums of whole objects were requested explicitly."""
        return self.checksums == "when_supported"
