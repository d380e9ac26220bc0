"""What one instance knows of pages that show an answer without its end."""

from helix_agents.server.owed_ends import KEPT, KEPT_SECONDS, RECENT_MS, OwedEnds


def came_back(owed: OwedEnds, message: str = "m", session: str = "s", ago: int | None = RECENT_MS) -> bool:
    """Whether a page that asks for the rest of an answer gets it; the answer ended a while ago by default."""
    return owed.pay(session, message, "r", ended_ms_ago=ago)


def test_a_page_that_is_loaded_again_is_one_page() -> None:
    owed = OwedEnds()
    owed.cut("s", "m")
    owed.shown("s", "m")
    assert came_back(owed)
    assert not came_back(owed)


def test_each_of_two_pages_is_owed_the_end() -> None:
    owed = OwedEnds()
    for _ in range(2):
        owed.shown("s", "m")
    assert [came_back(owed) for _ in range(3)] == [True, True, False]


def test_another_answer_of_the_session_is_not_owed() -> None:
    owed = OwedEnds()
    owed.shown("s", "m-1")
    assert not came_back(owed, "m-2")
    assert not came_back(owed, "m-1", "other")


def test_what_is_owed_is_forgotten_in_time_and_in_number() -> None:
    clock = [0.0]
    owed = OwedEnds(lambda: clock[0])
    owed.shown("s", "m")
    clock[0] = KEPT_SECONDS
    assert not came_back(owed)
    owed.cut("s", "m")
    assert [came_back(owed), came_back(owed)] == [True, False]
    for number in range(KEPT + 1):
        owed.shown("s", f"m-{number}")
    assert not came_back(owed, "m-0")
    assert came_back(owed, "m-1")


def test_what_another_instance_began_and_ended_a_moment_ago_may_have_been_missed() -> None:
    owed = OwedEnds()
    assert [came_back(owed, ago=ago) for ago in (0, RECENT_MS - 1, RECENT_MS, None)] == [True, True, False, False]


def test_what_this_instance_began_is_known_here() -> None:
    owed = OwedEnds()
    owed.began("s", "r")
    assert not came_back(owed, ago=0)
    owed.cut("s", "m")
    assert came_back(owed, ago=0)
    owed.began("s", "a later run")
    assert came_back(owed, ago=0)
    for number in range(KEPT):
        owed.began(f"s-{number}", "r")
    assert came_back(owed, ago=0)


def test_a_page_that_was_just_shown_all_of_it_has_missed_nothing() -> None:
    owed = OwedEnds()
    owed.shown_whole("s", "m")
    assert [came_back(owed, ago=0), came_back(owed, ago=0)] == [False, True]
