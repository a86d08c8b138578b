"""Bands that the configuration of the scheduler names: one truth, over real gRPC, for everybody."""

import pytest

from scheduler.core.rules import Rules
from services.domain.bands import Bands
from services.domain.errors import InvalidField
from tests.fakes.fault_fleet import fault_fleet

BANDS = Bands(("live", "night", "weekly", "spare"))


async def test_gateways_serve_and_refuse_by_the_schedulers_names() -> None:
    async with fault_fleet(1, Rules(bands=BANDS)) as fleet:
        # The tenant's own band is none of them: it is served in the last one, and may ask for no better.
        for name in (None, *BANDS.names):
            assert await fleet.ask(1, 2, 3, band=name) is None
        counted = {
            name: fleet.metric("quire_queue_seconds_count", band=name, request_class="short")
            for name in BANDS.names
        }
        assert counted == {"live": 0, "night": 0, "weekly": 0, "spare": 5}
        refused = await fleet.ask(1, 2, 3, band="batch")
        assert type(refused) is InvalidField
        assert refused.detail.field == "band"
        assert "one of live, night, weekly, spare, got 'batch'" in refused.message


async def test_tenants_are_given_the_schedulers_bands_and_no_others() -> None:
    async with fault_fleet(1, Rules(bands=BANDS)) as fleet:
        admin = fleet.gateways[0].admin
        for document in ({"id": "team"}, {"id": "team", "band": "nihgt"}):
            with pytest.raises(InvalidField, match="band: must be one of live, night, weekly, spare"):
                await admin.tenants.create(document, who="test")
        await admin.tenants.create({"id": "org", "band": "night"}, who="test")
        await admin.tenants.create({"id": "team", "parent": "org", "band": "live"}, who="test")
        _, served = await admin.tenants.get("team")
        assert served.band == "night", "the parent's is the best it can get"
        assert any(
            "tenant local: band interactive is none of" in one for one in admin.feed.directory.problems
        )
