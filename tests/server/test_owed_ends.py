"""What one instance remembers of pages that show an answer without its end."""

from helix_agents.server.owed_ends import KEPT, KEPT_SECONDS, OwedEnds


def test_a_page_that_is_loaded_again_is_one_page() -> None:
    owed = OwedEnds()
    owed.cut("s", "m")
    owed.shown("s", "m")
    assert owed.pay("s", "m")
    assert not owed.pay("s", "m")


def test_each_of_two_pages_is_owed_the_end() -> None:
    owed = OwedEnds()
    for _ in range(2):
        owed.shown("s", "m")
    assert [owed.pay("s", "m") for _ in range(3)] == [True, True, False]


def test_another_answer_of_the_session_is_not_owed() -> None:
    owed = OwedEnds()
    owed.shown("s", "m-1")
    assert not owed.pay("s", "m-2")
    assert not owed.pay("other", "m-1")


def test_what_is_owed_is_forgotten_in_time_and_in_number() -> None:
    clock = [0.0]
    owed = OwedEnds(lambda: clock[0])
    owed.shown("s", "m")
    clock[0] = KEPT_SECONDS
    assert not owed.pay("s", "m")
    owed.cut("s", "m")
    assert [owed.pay("s", "m"), owed.pay("s", "m")] == [True, False]
    for number in range(KEPT + 1):
        owed.shown("s", f"m-{number}")
    assert not owed.pay("s", "m-0")
    assert owed.pay("s", "m-1")
