"""Slices in force, between values and messages. Knows both shapes and no rule."""

from protos.kvmanager.v1 import kvmanager_pb2 as pb
from services.domain.ids import TenantId
from services.domain.slices import SliceInForce, SlicesInForce


def slices_to_pb(slices: SlicesInForce) -> pb.SlicesInForce:
    return pb.SlicesInForce(
        version=slices.version,
        tenants=[
            pb.SliceInForce(
                tenant=tenant,
                max_pages=one.max_pages,
                bound=one.bound,
                held=one.held,
                needs=one.needs,
                waited_ms=round(one.waited_s * 1000),
            )
            for tenant, one in slices.tenants.items()
        ],
    )


def slices_from_pb(slices: pb.SlicesInForce) -> SlicesInForce:
    return SlicesInForce(
        version=slices.version,
        tenants={
            TenantId(one.tenant): SliceInForce(
                max_pages=one.max_pages,
                bound=one.bound,
                held=one.held,
                needs=one.needs,
                waited_s=one.waited_ms / 1000,
            )
            for one in slices.tenants
        },
    )
