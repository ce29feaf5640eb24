"""What drivers of the job cache have in common."""

from __future__ import annotations

import pytest

from saltext.jobs.core.store.drivers import ABSENT, InParts


class Kept(InParts):
    """A driver whose values lie in memory, and which notes how many were asked for at a time."""

    chunk = 3

    def __init__(self, values):
        self._values, self.asked = values, []

    def read_all(self, items):
        self.asked.append(len(items))
        return [self._values.get(item, ABSENT) for item in items]


@pytest.mark.parametrize("count", range(8))
def test_values_that_are_read_in_parts_are_all_there_except_absent_ones(count):
    keys = [str(number) for number in range(count)]
    there = {key: {"return": key} for key in keys if key != "1"}
    driver = Kept({("bank", key): value for key, value in there.items()})
    assert dict(driver.fetch_each("bank", iter(keys))) == there
    assert sum(driver.asked) == count and max(driver.asked, default=0) <= 3
