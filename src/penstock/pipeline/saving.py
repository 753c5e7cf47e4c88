"""What a sink is told besides its target: what to do with a refused message, and how far it may fall behind.

    orders.save("search", a.file(...), on_error="dead-letter")
    orders.save("mart", a.file(...), on_error=retry(5, backoff="2s", then="dead-letter"), max_lag="10GB")
    orders.save("lake", a.file(...), max_lag={"bytes": "10GB", "age": "1d", "then": "detach"})

The same words as a mapping, as YAML has them: `on_error: {retry: 5, backoff: 2s, then: dead-letter}`. What comes
out are the records of `penstock.pipeline.policy`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import TypedDict, TypeVar, cast

from penstock.base.errors import UsageError, did_you_mean
from penstock.base.units import Unit, duration_text, size_text
from penstock.base.variables import substitute
from penstock.pipeline.policy import MaxLag, OnError, Policy, WhenBehind
from penstock.pipeline.settings import LONGEST

E = TypeVar("E", bound=Enum)

MOST_RETRIES = 1000


class MaxLagWords(TypedDict, total=False):
    """How far a sink may fall behind: by bytes of the log, by age, and what happens then."""

    bytes: int | str
    age: float | str
    then: str


class RetryWords(TypedDict, total=False):
    """`retry` as a mapping."""

    retry: int
    backoff: float | str
    then: str


def retry(times: int, backoff: float | str = "1s", then: str = "stop") -> Policy:
    """Try a refused message `times` more, after `backoff` and then twice as long each time; then `then`."""
    if isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= MOST_RETRIES:
        raise UsageError(f"retry: expected a number of times from 1 to {MOST_RETRIES}, got {times!r}")
    seconds = _number("retry: 'backoff'", backoff, Unit.SECONDS)
    if seconds > LONGEST:
        raise UsageError(f"retry: 'backoff': expected at most {LONGEST:g} seconds, got {backoff!r}")
    return Policy(then=_word("retry: 'then'", then, OnError), retries=times, backoff=seconds)


def policy_of(where: str, given: str | Policy | RetryWords) -> Policy:
    """What `on_error` means."""
    wanted: object = substitute(given, f"{where}, 'on_error'")
    if isinstance(wanted, Policy):
        return wanted
    if isinstance(wanted, Mapping):
        words = _words(f"{where}: 'on_error'", wanted, RetryWords.__annotations__)
        if "retry" not in words:
            raise UsageError(f"{where}: 'on_error' as a mapping needs 'retry', the number of times")
        try:
            times = words.pop("retry")
            if isinstance(times, str) and times.isdecimal():  # of a variable
                times = int(times)
            return retry(cast(int, times), **cast("dict[str, str]", words))
        except UsageError as error:
            raise UsageError(f"{where}: 'on_error': {error.message}", hint=error.hint) from None
    if wanted is retry or wanted == "retry":
        raise UsageError(
            f"{where}: 'on_error': retry needs a number of times", hint="as in on_error=retry(5)"
        )
    return Policy(then=_word(f"{where}: 'on_error'", wanted, OnError, "or retry(5), in YAML {retry: 5}"))


def max_lag_of(where: str, given: int | str | MaxLagWords | MaxLag | None) -> MaxLag | None:
    """What `max_lag` means; a size alone is a limit in bytes at which the log holds."""
    wanted: object = substitute(given, f"{where}, 'max_lag'")
    what = f"{where}: 'max_lag'"
    if wanted is None or isinstance(wanted, MaxLag):
        return wanted
    if not isinstance(wanted, Mapping):
        return MaxLag(bytes=int(_number(what, wanted, Unit.BYTES)))
    words = _words(what, wanted, MaxLagWords.__annotations__)
    if words.get("bytes") is None and words.get("age") is None:
        raise UsageError(f"{what} needs 'bytes', 'age', or both", hint='as in max_lag={"bytes": "10GB"}')
    size, age = words.get("bytes"), words.get("age")
    return MaxLag(
        bytes=None if size is None else int(_number(f"{what}, 'bytes'", size, Unit.BYTES)),
        seconds=None if age is None else _number(f"{what}, 'age'", age, Unit.SECONDS),
        then=_word(f"{what}, 'then'", words.get("then", WhenBehind.HOLD.value), WhenBehind),
    )


def policy_text(policy: Policy) -> str:
    """As a person would say it: `stop`, or `retry 5 times from 2s on, then dead-letter`."""
    if not policy.retries:
        return policy.then.value
    return f"retry {policy.retries} times from {duration_text(policy.backoff)} on, then {policy.then.value}"


def max_lag_text(limit: MaxLag) -> str:
    """As a person would say it: `10GB or 1d, then detach`."""
    limits = [size_text(limit.bytes)] if limit.bytes is not None else []
    limits += [duration_text(limit.seconds)] if limit.seconds is not None else []
    return f"{' or '.join(limits)}, then {limit.then.value}"


def _words(what: str, given: Mapping[object, object], known: Collection[str]) -> dict[str, object]:
    for word in given:
        if word not in known:
            raise UsageError(f"{what}: unknown word '{word}'{did_you_mean(str(word), known)}")
    return {str(word): value for word, value in given.items()}


def _word(what: str, given: object, kind: type[E], more: str = "") -> E:
    known = [member.value for member in kind]
    if isinstance(given, kind):
        return given
    if given not in known:
        raise UsageError(
            f"{what}: unknown word {given!r}{did_you_mean(str(given), known)}",
            hint=f"one of: {', '.join(known)}" + (f"; {more}" if more else ""),
        )
    return kind(given)


def _number(what: str, given: object, unit: Unit) -> float:
    try:
        value = unit.parse(given) if isinstance(given, str) else given
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise UsageError(f"{what}: expected a number of {unit.value} above 0, got {given!r}")
    return value
