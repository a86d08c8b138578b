"""Keys cannot be guessed, only digests of them are kept, and a record reads back as it was."""

import pytest

from gateway.core.keys import (
    KEY_BYTES,
    SECRET_BYTES,
    ApiKey,
    KeyScope,
    digest_key,
    find_key,
    key_from_document,
    key_to_document,
    make_key,
    short_id,
)
from services.domain.errors import InvalidField
from services.domain.ids import TenantId
from services.domain.limits import Limits, Rate

SERVER_KEY = b"server key of the tests"
ACME = TenantId("acme")


def a_record(key: str, key_id: str, **fields: object) -> ApiKey:
    return ApiKey(id=key_id, tenant=ACME, digest=digest_key(SERVER_KEY, key), **fields)  # type: ignore[arg-type]


def test_a_key_has_enough_random_bits_and_a_public_id() -> None:
    assert SECRET_BYTES * 8 >= 160
    key, key_id = make_key(bytes(range(KEY_BYTES)))
    assert key == f"quire_{key_id}_CAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJic"
    other, other_id = make_key(bytes(range(1, KEY_BYTES + 1)))
    assert (other, other_id) != (key, key_id)


@pytest.mark.parametrize("key", [make_key(bytes(range(KEY_BYTES)))[0], "a word of somebody's own"])
def test_a_key_is_found_by_its_id_and_only_whole(key: str) -> None:
    digest = digest_key(SERVER_KEY, key)
    key_id = key.split("_")[1] if key.startswith("quire_") else short_id(digest)
    keys = {key_id: a_record(key, key_id)}
    assert find_key(keys, SERVER_KEY, key) == keys[key_id]
    assert key not in repr(keys)
    for wrong in (key[:-1], key + "x", key[:-1] + ("A" if key[-1] != "A" else "B"), "", "é"):
        assert find_key(keys, SERVER_KEY, wrong) is None
    assert find_key(keys, b"another server key", key) is None


def test_a_key_expires() -> None:
    assert a_record("k", "k").is_valid(1e12)
    assert a_record("k", "k", expires_at=10.0).is_valid(9.9)
    assert not a_record("k", "k", expires_at=10.0).is_valid(10.0)


def test_a_record_reads_back() -> None:
    key = a_record(
        "k",
        "k1",
        scopes=frozenset({KeyScope.ADMIN}),
        label="ci",
        limits=Limits(max_concurrency=2, tokens_per_minute=Rate(per_minute=5, burst=9)),
        created_at=5.0,
        expires_at=9.5,
    )
    assert key_from_document("", key_to_document(key)) == key
    assert key_from_document("", key_to_document(a_record("k", "k1"))) == a_record("k", "k1")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("scopes", ["generat"], "nearest valid: generate"),
        ("scopes", [], "a list of 1 or more"),
        ("expires_at", "soon", "a number"),
        ("limits", {"max_concurrency": 0}, "nearest valid: 1"),
    ],
)
def test_a_bad_record_is_refused_by_field_and_rule(field: str, value: object, rule: str) -> None:
    with pytest.raises(InvalidField, match=rule) as caught:
        key_from_document("", key_to_document(a_record("k", "k1")) | {field: value})
    assert (caught.value.detail.field or "").startswith(field)
