"""Whose turn it is: an address that refuses for good, one that only names another, one where nobody is found."""

from __future__ import annotations

import pytest

from penstock.connector.addresses import Addresses


def play(given: list[str], answers: dict[str, str], most: int = 30) -> tuple[list[str], bool]:
    """Whom a connector asks that is answered like this, and whether it is refused by all.

    `no` is a refusal for good, `gone` is nobody at all, `busy` anything else; else it is where they send it.
    """
    addresses, asked, over = Addresses(given), list[str](), False
    while not over and len(asked) < most:
        asked.append(address := addresses.current)
        match answers[address]:
            case "no" | "gone" | "busy" as answer:
                over = addresses.failed(address, for_good=answer == "no", missed=answer == "gone")
            case elsewhere:
                over = addresses.redirected(address, elsewhere)
    return [address[0] for address in asked], over


A, B, C, D = "a:1", "b:1", "c:1", "d:1"


@pytest.mark.parametrize(
    ("given", "answers", "asked"),
    [
        ([A], {A: "no"}, "a"),
        ([A, B], {A: "no", B: "no"}, "ab"),
        ([A], {A: B, B: "no"}, "aba"),
        ([A, B], {A: "no", B: A}, "ab"),
        ([A, B, C], {A: "no", B: A, C: A}, "abc"),
        ([A, B, C], {A: C, B: "no", C: "no"}, "acab"),
        ([A], {A: B, B: C, C: "no"}, "abcba"),
        ([A, B], {A: C, B: D, C: "no", D: "no"}, "acabdcab"),
    ],
)
def test_who_is_refused_by_all_or_sent_to_those_that_refuse_is_told_so(
    given: list[str], answers: dict[str, str], asked: str
) -> None:
    assert play(given, answers) == (list(asked), True)


@pytest.mark.parametrize(
    ("given", "answers"),
    [
        ([A], {A: "gone"}),
        ([A, B], {A: "no", B: "gone"}),
        ([A, B], {A: "no", B: "busy"}),
        ([A], {A: B, B: "gone"}),
        ([A, B], {A: "no", B: C, C: "busy"}),
    ],
)
def test_who_may_yet_be_taken_goes_on(given: list[str], answers: dict[str, str]) -> None:
    assert not play(given, answers)[1]


def test_what_was_refused_before_a_stream_was_taken_counts_no_longer() -> None:
    addresses = Addresses([A, B])
    assert not addresses.failed(A, for_good=True)
    addresses.took(B)
    assert not addresses.failed(B, for_good=True)
    assert addresses.failed(A, for_good=True)


def test_a_worker_that_moves_a_session_may_move_it_to_one_that_refused() -> None:
    addresses = Addresses([A, B])
    assert not addresses.failed(B, for_good=True)
    addresses.fall_back(A, B)
    assert not addresses.failed(A, for_good=True)


def named(address: str, *given: str) -> Addresses:
    """They know this one from a worker."""
    addresses = Addresses(given)
    addresses.prefer(address)
    return addresses


def test_an_address_that_was_learned_and_is_gone_for_good_is_forgotten() -> None:
    addresses, asked = named(B, A), list[str]()
    for _ in range(50):
        asked.append(address := addresses.current)
        if addresses.failed(address, for_good=address == A, missed=address == B):
            break
    assert asked.count(B) == 5
    assert asked[-1] == A


def test_no_address_is_forgotten_while_nobody_is_found_anywhere_nor_one_that_was_given() -> None:
    addresses, asked = named(C, A, B), list[str]()
    for _ in range(60):
        asked.append(address := addresses.current)
        addresses.failed(address, for_good=False, missed=True)
    assert asked == [C, A, B] * 20
    for _ in range(60):
        asked.append(address := addresses.current)
        addresses.failed(address, for_good=False, missed=address != A)
    assert C not in asked[-20:]
    assert asked[-20:].count(B) == 10
