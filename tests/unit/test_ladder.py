"""Which place the stream is opened at next: down the ladder without progress, up again with it."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from models.errors import DatabaseUnfit, HistoryLost
from watcher.ladder import Ladder, Rung, StreamStalled, fingerprint, pipeline
from watcher.place import Place

STAGES = pipeline("orders", "beats")
TOKEN = {"_data": "82AB"}


def place(seq: int = 1, token: Any = TOKEN, hashed: str | None = None) -> Place:
    return Place(token, Timestamp(1000 + seq, 1), seq, hashed or fingerprint(STAGES))


def ladder(start: Place | None = None, doubt: str | None = None) -> Ladder:
    return Ladder(None, STAGES, start or place(), doubt)  # type: ignore[arg-type]  # nothing is opened here


def failure(code: int) -> OperationFailure:
    return OperationFailure("no", code)


@pytest.mark.parametrize(
    ("start", "doubt", "rung", "gap", "unsure"),
    [
        (place(), None, Rung.TOKEN, None, None),
        (place(token=None), None, Rung.CLUSTER_TIME, None, None),
        (place(hashed="older"), None, Rung.CLUSTER_TIME, None, "another pipeline"),
        (place(token={}), None, Rung.CLUSTER_TIME, "damaged token", "damaged token"),
        (place(token="text"), None, Rung.CLUSTER_TIME, "damaged token", "damaged token"),
        (place(), "another cluster", Rung.NOW, "another cluster", "another cluster"),
    ],
)
def test_the_first_rung_is_the_best_that_the_place_allows(
    start: Place, doubt: str | None, rung: Rung, gap: str | None, unsure: str | None
) -> None:
    first = ladder(start, doubt)
    assert (first.rung, first.gap, first.unsure) == (rung, gap, unsure)


@pytest.mark.parametrize(
    ("code", "rung", "gap"),
    [
        (286, Rung.NOW, "code 286"),
        (280, Rung.CLUSTER_TIME, None),
        (9, Rung.CLUSTER_TIME, "code 9"),
        (260, Rung.CLUSTER_TIME, "code 260"),
        (40647, Rung.CLUSTER_TIME, "code 40647"),
        (10334, Rung.CLUSTER_TIME, "code 10334"),
    ],
)
def test_a_refused_token_leads_to_the_next_rung_that_can_help(code: int, rung: Rung, gap: str | None) -> None:
    fallen = ladder()
    fallen.fall(failure(code), place(), progress=False)
    assert (fallen.rung, fallen.gap, fallen.unsure) == (rung, gap, f"code {code}")


def test_a_refused_cluster_time_leaves_only_a_new_stream_which_is_a_gap() -> None:
    fallen = ladder(place(hashed="older"))
    fallen.fall(failure(280), place(hashed="older"), progress=False)
    assert (fallen.rung, fallen.gap) == (Rung.NOW, "code 280")


def test_after_progress_the_token_is_good_again() -> None:
    fallen = ladder(doubt="another cluster")
    fallen.fall(failure(286), place(seq=7), progress=True)
    assert (fallen.rung, fallen.place.seq, fallen.gap) == (Rung.TOKEN, 7, None)


def test_a_new_stream_that_is_refused_too_is_the_end() -> None:
    with pytest.raises(HistoryLost, match=r"\(code 286\)") as ended:
        ladder(doubt="another cluster").fall(failure(286), place(), progress=False)
    assert "\n" not in str(ended.value)


def test_a_stall_never_ends_the_process_and_never_reads_from_now_twice_in_a_row() -> None:
    fallen = ladder()
    rungs = []
    for seq in range(2, 8):
        fallen.fall(StreamStalled(), place(seq=seq), progress=False)
        rungs.append(fallen.rung)
        assert fallen.place.cluster_time == place(seq=seq).cluster_time
        if fallen.rung is Rung.NOW:
            fallen.entered(place(seq=seq, token=None))
    assert rungs == [Rung.CLUSTER_TIME, Rung.NOW, Rung.CLUSTER_TIME, Rung.NOW, Rung.CLUSTER_TIME, Rung.NOW]


@pytest.mark.parametrize("error", [failure(8), failure(10107)])
def test_any_other_error_is_raised_as_it_is(error: OperationFailure) -> None:
    with pytest.raises(type(error)) as raised:
        ladder().fall(error, place(), progress=False)
    assert raised.value is error


@pytest.mark.parametrize("code", [13, 40573])
def test_what_only_an_operator_can_mend_is_one_sentence(code: int) -> None:
    with pytest.raises(DatabaseUnfit, match=rf"\(code {code}\)"):
        ladder().fall(failure(code), place(), progress=False)


def test_a_lost_connection_is_no_reason_to_step_down() -> None:
    fallen = ladder()
    with pytest.raises(AutoReconnect):
        fallen.fall(AutoReconnect("gone"), place(), progress=False)
    assert fallen.rung is Rung.TOKEN
