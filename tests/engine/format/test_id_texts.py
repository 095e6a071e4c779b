"""Ids as text: one spelling is shown, any is accepted from people, none but one from storage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.typed_ids import spellings

from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    decode_base32,
    format_id,
    new_id,
    parse_id,
)
from airflow_provider_icechunk.exceptions import InvalidInputError

ENTROPY = st.binary(min_size=16, max_size=16)


@given(entropy=ENTROPY, generation=st.sampled_from(Generation))
def test_an_id_is_the_same_in_every_spelling_that_a_person_could_type(
    entropy: bytes, generation: Generation
) -> None:
    identity = new_id(generation, entropy[: generation.id_size])
    text = format_id(generation, identity)
    assert {parse_id(generation, one) for one in [text, *spellings(text)]} == {identity}


@pytest.mark.parametrize("generation", list(Generation))
@pytest.mark.parametrize(
    "text",
    [
        "",
        "main",
        "1CECHNKREP0F1RSTCMT",
        "1CECHNKREP0F1RSTCMTU",
        "1cechnkrep0f1rstcmt\u0130",
        "\u017fCECHNKREP0F1RSTCMT0",
        "urn:uuid:12345678-1234-5678-1234-567812345678",
        "{12345678-1234-5678-1234-567812345678}",
        "12345678123456781234567812345678",
        "12345678-1234-5678-1234-56781234567\u0660",
    ],
)
def test_what_is_not_an_id_is_refused_and_said_so(generation: Generation, text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not an id"):
        parse_id(generation, text)


def test_stored_ids_have_one_spelling() -> None:
    for text in spellings("1CECHNKREP0F1RSTCMT0"):
        with pytest.raises(InvalidInputError, match="is not an id"):
            decode_base32(text)
