from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.format.ids import (
    INITIAL_SNAPSHOT_ID,
    decode_base32,
    decode_many,
    encode_base32,
    encode_many,
    text_length,
)
from airflow_provider_icechunk.exceptions import InvalidInputError


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (bytes.fromhex("0b1cc8d6787580f0e33a6534"), "1CECHNKREP0F1RSTCMT0"),
        (bytes(range(12)), "000G40R40M30E209185G"),
        (bytes(8), "0" * 13),
        (b"\xff" * 8, "Z" * 12 + "Y"),
    ],
)
def test_known_ids_have_their_known_texts(data: bytes, text: str) -> None:
    assert encode_base32(data) == text
    assert decode_base32(text, len(data)) == data


def test_the_first_snapshot_has_the_id_every_release_expects() -> None:
    assert encode_base32(INITIAL_SNAPSHOT_ID) == "1CECHNKREP0F1RSTCMT0"


@pytest.mark.parametrize(("size", "length"), [(12, 20), (8, 13), (16, 26), (5, 8)])
def test_text_lengths(size: int, length: int) -> None:
    assert text_length(size) == length


@given(st.binary(max_size=20))
def test_any_bytes_come_back(data: bytes) -> None:
    assert decode_base32(encode_base32(data), len(data)) == data


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1CECHNKREP0F1RSTCMT",
        "1CECHNKREP0F1RSTCMT00",
        "1cechnkrep0f1rstcmt0",
        "1CECHNKREP0F1RSTCMTI",
        "1CECHNKREP0F1RSTCMT1",
        "1CECHNKREP0F1RST/../",
        "1CECHNKREP0F1RSTCMT\u0660",
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not an id"):
        decode_base32(text)


@given(st.integers(0, 20), st.sampled_from([5, 8, 12, 16]), st.randoms(use_true_random=False))
def test_many_ids_convert_as_single_ones_do(rows: int, size: int, random: object) -> None:
    ids = np.frombuffer(random.randbytes(rows * size), np.uint8).reshape(rows, size)
    texts = encode_many(ids)
    assert [bytes(text).decode() for text in texts] == [encode_base32(row.tobytes()) for row in ids]
    assert decode_many(texts, size).tolist() == ids.tolist()


@pytest.mark.parametrize(
    "text", [b"short", b"1CECHNKREP0F1RSTCMTI", b"1CECHNKREP0F1RSTCMT1", b"X" * 21]
)
def test_many_ids_refuse_one_wrong_text(text: bytes) -> None:
    with pytest.raises(InvalidInputError, match="is not an id"):
        decode_many(np.array([b"1CECHNKREP0F1RSTCMT0", text]))
