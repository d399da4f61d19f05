"""Tallies: the sum of several does not depend on how the records were divided."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipelines.records.tally import LowestHashes, Tally, read_tallies


@given(st.lists(st.tuples(st.integers(0, 50), st.text(max_size=3))), st.integers(1, 5))
def test_the_items_with_the_lowest_keys_are_kept(pairs: list[tuple[int, str]], size: int) -> None:
    lowest = LowestHashes(size, pairs)
    assert lowest.pairs() == sorted(pairs, key=lambda pair: pair[0])[:size]
    assert list(lowest) == [item for _, item in lowest.pairs()]
    assert len(lowest) == min(size, len(pairs))


def test_a_key_is_accepted_while_there_is_room_or_if_it_is_lower() -> None:
    lowest = LowestHashes(2, [(3, "a"), (1, "b")])
    assert lowest.accepts(2)
    assert not lowest.accepts(3)


def test_one_tally_and_several_are_the_same(tmp_path: Path) -> None:
    records = [("kept", 7), ("short", 3), ("kept", 5), ("long", 1), ("kept", 2)]

    def tally(part: list[tuple[str, int]], name: str) -> str:
        tally = Tally()
        for reason, hash in part:
            tally.counter("reasons")[reason] += 1
            tally.sample("lowest", 3).add([hash, reason], {"reason": reason})
        return str(tmp_path / tally.write(str(tmp_path), name).name)

    whole = read_tallies([tally(records, "whole.json")])
    parts = read_tallies([tally(records[:2], "a.json"), tally(records[2:], "b.json")])
    assert parts.counts == whole.counts == {"reasons": {"kept": 3, "short": 1, "long": 1}}
    assert parts.samples["lowest"].pairs() == whole.samples["lowest"].pairs()
    assert [item["reason"] for item in whole.samples["lowest"]] == ["long", "kept", "short"]
