"""What the kit looks at, and how its tests say so: an aspect for the table, and what the subject must be able to do.

A test of something that the subject has declared it cannot do ends as skipped with the words of the declaration,
and stands in the table as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeVar

import msgspec
import pytest

from penstock.testing.adaptors.subject import Can, Subject

Test = TypeVar("Test", bound=Callable[..., None])


class Aspect(Enum):
    """The columns of the table."""

    COPY = "copy"
    TAIL = "tail"
    RESUME = "resume"
    HAND_OVER = "hand-over"
    ONCE = "exactly once"
    UPDATES = "updates"
    DELETES = "deletes"
    KEYS = "key changes"
    TYPES = "types"
    SCHEMA = "schema change"
    RESTART = "server restart"
    HUGE = "huge values"
    PRESSURE = "back-pressure"
    ERRORS = "errors"
    WRITE = "write"
    REFUSALS = "refusals"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a test is about, and what it needs of the subject."""

    aspect: Aspect
    needs: Sequence[Can]


def aspect(which: Aspect, *needs: Can) -> Callable[[Test], Test]:
    """Mark a test of the kit."""

    def marked(test: Test) -> Test:
        test.__dict__["conformance"] = Asked(which, needs)
        return test

    return marked


class Told(msgspec.Struct, frozen=True):
    """What a test tells the results about itself; it travels between processes."""

    adaptor: str
    side: str
    server: str
    once: str
    aspect: str


class Conformance:
    """What both batteries share: the rule that nothing is left out in silence."""

    side: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _declared(self, request: pytest.FixtureRequest, subject: Subject) -> Iterator[None]:
        """Skip what the subject has declared; tell the results who was tested."""
        asked = getattr(request.function, "conformance", None)
        which = asked.aspect.value if isinstance(asked, Asked) else ""
        told = Told(subject.name, self.side, subject.server, subject.once, which)
        request.node.user_properties.append(("conformance", msgspec.to_builtins(told)))
        try:
            for need in asked.needs if isinstance(asked, Asked) else ():
                if need in subject.cannot:
                    pytest.skip(f"declared, {need.name}: {subject.cannot[need]}")
            yield
        finally:
            subject.close()

    def test_what_is_declared_is_asked_and_has_a_reason(self, subject: Subject) -> None:
        assert set(subject.cannot) <= subject.asked
        assert subject.can == subject.asked - set(subject.cannot), "what is not declared is promised"
        assert all(reason.strip() for reason in subject.cannot.values())
