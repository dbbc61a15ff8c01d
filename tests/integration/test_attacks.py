"""The ten attacks on exactly-once, each by its name, over real HTTP against the real endpoint."""

from __future__ import annotations

import random

import pytest

from models.database import Database
from scripts.simulator.attacks import ATTACKS, Attack, Target, run_attacks
from scripts.simulator.sender import Sender
from scripts.simulator.shop import MongoShop
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import endpoint


@pytest.mark.asyncio
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_the_attack_does_not_succeed(db: Database, make_settings: SettingsMaker, attack: Attack) -> None:
    settings = make_settings()
    async with endpoint(settings) as running, Sender(running.url) as sender:
        rng = random.Random(attack.name)
        shop = MongoShop(db, rng)
        target = Target(sender, shop, sample.SECRET, sample.ACCOUNT, rng)
        assert await attack.run(target) == attack.expected


@pytest.mark.asyncio
async def test_all_ten_attacks_one_after_the_other_hold_on_one_endpoint(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    settings = make_settings()
    async with endpoint(settings) as running, Sender(running.url) as sender:
        rng = random.Random(10)
        shop = MongoShop(db, rng)
        results = await run_attacks(Target(sender, shop, sample.SECRET, sample.ACCOUNT, rng))
    assert len(results) == 10
    assert [result for result in results if not result.holds] == []
