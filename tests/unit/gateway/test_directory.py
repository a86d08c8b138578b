"""What the file declares stands; the store's changes come and go; the last state outlives the store."""

from collections.abc import Mapping
from typing import Any

from gateway.core.directory import Change, Entry, Kind, Stored, TenantDirectory
from gateway.core.keys import ApiKey
from services.domain.ids import TenantId
from services.domain.tenant import Tenant

A, B, C = (TenantId(name) for name in "abc")
DIGEST = "0" * 64


def stored(*tenants: Mapping[str, Any], keys: Mapping[str, Any] | None = None) -> Stored:
    return Stored(store="s", version=1, tenants={one["id"]: one for one in tenants}, keys=keys or {})


def an_entry(version: int, name: str, after: Mapping[str, Any] | None) -> Entry:
    change = Change(kind=Kind.TENANT, id=name, tenant=TenantId(name), before=None, after=after)
    return Entry(version=version, who="x", at=0.0, change=change)


def test_the_files_tenants_stand_whatever_the_store_says() -> None:
    directory = TenantDirectory(
        [Tenant(id=A, weight=2.0)], [ApiKey(id="k", tenant=A, digest=DIGEST, label="file's")]
    )
    taken = {"k": {"id": "k", "tenant": "b", "digest": DIGEST}}
    directory.replace(stored({"id": "a", "weight": 5}, {"id": "b", "parent": "a"}, keys=taken))
    assert directory.book.get(A) == Tenant(id=A, weight=2.0)
    assert directory.book.get(B) == Tenant(id=B, parent=A)
    assert directory.keys["k"].label == "file's"
    assert directory.is_declared(A)
    assert not directory.is_declared(B)
    assert directory.problems == ["tenant a is the file's"]


def test_changes_are_applied_in_order() -> None:
    directory = TenantDirectory()
    directory.replace(stored({"id": "a"}))
    directory.apply([an_entry(2, "a", {"id": "a", "weight": 3}), an_entry(3, "b", {"id": "b"})])
    directory.apply([an_entry(4, "b", None)])
    directory.apply([])
    assert [(one.id, one.weight) for one in directory.book] == [(A, 3.0)]
    assert directory.version == 4


def test_a_document_that_cannot_be_read_costs_only_its_own_tenant() -> None:
    directory = TenantDirectory()
    directory.replace(stored({"id": "a", "of_the_future": 1}, {"id": "b"}))
    assert [one.id for one in directory.book] == [B]
    assert "of_the_future" in directory.problems[0]


def test_tenants_that_do_not_fit_the_file_are_left_out_alone() -> None:
    directory = TenantDirectory([Tenant(id=A, kv_pages=10)])
    directory.replace(
        stored(
            {"id": "greedy", "parent": "a", "kv_pages": 10},
            {"id": "orphan", "parent": "gone"},
            {"id": "grandchild", "parent": "b", "kv_pages": 2},
            {"id": "b", "parent": "a", "kv_pages": 3},
        )
    )
    assert {one.id for one in directory.book} == {"a", "b", "grandchild"}
    assert len(directory.problems) == 2


def test_what_is_held_of_a_store_makes_another_one_like_it() -> None:
    directory = TenantDirectory([Tenant(id=A)], [ApiKey(id="file", tenant=A, digest=DIGEST)])
    key = {"id": "k", "tenant": "b", "digest": DIGEST}
    directory.replace(
        stored({"id": "a", "weight": 5}, {"id": "b", "parent": "c"}, {"id": "c"}, keys={"k": key})
    )
    again = TenantDirectory()
    again.apply(
        [
            Entry(version=number, who="x", at=0.0, change=change)
            for number, change in enumerate(directory.held(), start=1)
        ]
    )
    assert [(one.id, one.weight) for one in again.book] == [(A, 5.0), (B, 1.0), (C, 1.0)]
    assert set(again.keys) == {"k"}
    directory.replace(Stored())
    assert directory.held() == []
    assert [one.id for one in directory.book] == [A]
