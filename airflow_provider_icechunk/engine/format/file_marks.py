"""The object metadata of a metadata file: version, writer, type and compression.

Names have letters and digits only: proxies drop headers with an underscore, and then a signed
request fails. Official releases before 2.2 wrote `ic_spec_ver` and so on; no decision depends on
them.
"""

from __future__ import annotations

from airflow_provider_icechunk.engine.format.v1.codec import WRITER

from .codec import FileType
from .generation import Generation

FILE_CONTENT_TYPE = "application/octet-stream"


def file_marks(generation: Generation, kind: FileType) -> dict[str, str]:
    """The object metadata of a file of one kind; nothing in generations whose files have none."""
    if not generation.marks_objects:
        return {}
    return {
        "icspecver": "2" if generation is Generation.V2 else "1",
        "icclient": WRITER,
        "icfiletype": kind.value,
        "iccompalg": "zstd",
    }


def file_content_type(generation: Generation) -> str | None:
    """The content type of metadata files; `None` where the store chooses."""
    return FILE_CONTENT_TYPE if generation.marks_objects else None
