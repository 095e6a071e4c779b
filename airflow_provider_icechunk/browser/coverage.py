"""Which labels along a dimension are present."""

from __future__ import annotations

from itertools import islice

import numpy as np

from airflow_provider_icechunk.api import Repository, Session
from airflow_provider_icechunk.engine.datasets.coverage import coverage
from airflow_provider_icechunk.engine.format.model import Node
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.exceptions import IcechunkError

from .arrays import find_array, find_coordinate, open_version
from .models import CoverageFacts, cut
from .pictures import Canvas

_MOST_LABELS = 500
_MOST_ARRAYS = 8
_MOST_LOOKED_AT = 500


def read_coverage(
    repository: Repository, version: str, path: str, dim: str | None
) -> CoverageFacts:
    """Which labels along a dimension of an array are present."""
    session = open_version(repository, version)
    node = find_array(session, path)
    _check_labels(session, node, dim)
    found = coverage(session, path, dim)
    return CoverageFacts(
        dim=cut(found.dim, 200),
        wanted=found.wanted,
        present=[(cut(str(a), 100), cut(str(b), 100)) for a, b in found.present[:_MOST_LABELS]],
        missing=[cut(str(one), 100) for one in found.missing[:_MOST_LABELS]],
        missing_total=len(found.missing),
        shared=bool(found.shared),
    )


def _check_labels(session: Session, node: Node, dim: str | None) -> None:
    """Decode the labels once behind guards: the engine decodes them again without guards."""
    document = array_document(node)
    names = document.dimension_names or ()
    name = dim or next(iter(names), None)
    if name is None or name not in names:
        return
    coordinate = find_coordinate(session, node, name, document.shape[names.index(name)])
    if coordinate is not None:
        canvas = Canvas(session, coordinate.path)
        np.asarray(canvas.open()[...])


def missing_labels(session: Session) -> dict[str, int]:
    """The number of missing labels along the first dimension of arrays, by path; complete ones are
    left out.

    Covers arrays that grow by chunks along a dimension with labels, and of many only the first.
    """
    found: dict[str, int] = {}
    asked = 0
    for path in islice(session.tree.base.nodes, _MOST_LOOKED_AT):
        node = session.tree.base.nodes[path]
        if node.array is None or not (names := array_document(node).dimension_names):
            continue
        document = array_document(node)
        name = names[0]
        if len(document.shape) < 2 or not name or document.num_chunks[0] < 2:
            continue
        if find_coordinate(session, node, name, document.shape[0]) is None:
            continue
        asked += 1
        if asked > _MOST_ARRAYS:
            break
        try:
            _check_labels(session, node, name)
            missing = len(coverage(session, path, name).missing)
        except IcechunkError:
            continue
        if missing:
            found[path] = missing
    return found
