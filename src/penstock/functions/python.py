"""`python`: a person's own Python function of one message.

    def dear(message):
        message.data["dear"] = message.data["price"] > 300
        return message

    orders.transform("dear", f.python(dear))

The function gets a message with `ns`, `op`, `ts` and `data`, and answers

    the message, or True     it goes on, as it is by then
    None or False            it is dropped
    a dict                   it goes on, with this as its data

Anything else refuses the message, and so does an exception, with file and line.

`data` is a dict of the values of `penstock.log.values` (extended JSON becomes Python's own types, no number loses a
digit), made when it is first asked for. A field whose value is in the end what it was keeps its very text, and a
message whose `data` nobody asked for keeps all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from msgspec import Raw

from penstock.base.settings import setting
from penstock.functions.base import Editable, Fields, Function, FunctionError
from penstock.functions.callables import Code, checked, name_of, told
from penstock.functions.kinds import NOT_AN_OBJECT, fields_of, not_an_object
from penstock.log import values
from penstock.log.values import Document, Value, ValuesError

_NONE = object()


class MutableMessage:
    """The message that a Python function gets. `op` is a word, `ts` counts microseconds since 1970."""

    __slots__ = ("_data", "_editable", "_opened", "_read", "ns", "op", "ts")

    def __init__(self, editable: Editable) -> None:
        self.ns = editable.ns
        self.op = editable.op
        self.ts = editable.ts
        self._editable = editable
        self._opened = False
        """Whether `_data` is there: read or assigned."""
        self._data: Document = {}
        self._read: Document = {}

    @property
    def data(self) -> Document:
        """The fields and their values; change them in place, or assign others."""
        if not self._opened:
            try:
                self._data = values.decode_document(self._editable.text())
            except ValuesError as error:
                raise FunctionError(f"data is not a JSON object: {error.message}") from None
            self._read = dict(self._data)
            self._opened = True
        return self._data

    @data.setter
    def data(self, fields: Document) -> None:
        self._data = fields
        self._opened = True

    def __repr__(self) -> str:
        return f"<{self.op} of {self.ns}: {self._editable.text()!r}>"

    def opened(self) -> tuple[Document, Document] | None:
        """The data as it is and as it was read; None if nobody asked for it or assigned it."""
        return (self._data, self._read) if self._opened else None


class MessageFunction(Protocol):
    """What a person writes."""

    def __call__(self, message: MutableMessage, /) -> object: ...


@dataclass(frozen=True)
class PythonFunction(Function):
    """Calls a function of one message."""

    name: ClassVar[str] = "python"
    description: ClassVar[str] = "a Python function of one message"

    function: MessageFunction = setting(  # noqa: RUF009 - makes a field
        "called with each message; answers the message, a dict as its new data, or None to drop it",
        example=Code("lambda message: message"),
    )

    def __post_init__(self) -> None:
        checked("function 'python'", self.function, "the message", "f.python(lambda message: message)")

    def apply(self, message: Editable) -> bool:
        given = MutableMessage(message)
        try:
            answer = self.function(given)
        except (FunctionError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - a person's function may raise anything
            raise FunctionError(told(error, self.function)) from None
        if answer is None or answer is False:
            return False
        if isinstance(answer, dict):
            given.data = answer
        elif answer is not given and answer is not True:
            raise FunctionError(self._complaint(answer))
        message.ns, message.op, message.ts = given.ns, given.op, given.ts
        if (opened := given.opened()) is not None:
            _write(message, *opened)
        return True

    def _complaint(self, answer: object) -> str:
        called = f"'{name_of(self.function)}' returned"
        if isinstance(answer, MutableMessage):
            return f"{called} another message than the one it was given"
        if isinstance(answer, (list, tuple)):
            return f"{called} a {type(answer).__name__}: one message can become one or none; for several use f.arrow"
        wanted = "the message, a dict as its new data, or None to drop it"
        return f"{called} a value of type {type(answer).__name__}, expected {wanted}"


def _write(message: Editable, data: object, read: Document) -> None:
    """Give the message these values; those that are what they were keep their text."""
    if not isinstance(data, Mapping):
        raise FunctionError(
            f"the function set data to a value of type {type(data).__name__}, a dict is wanted"
        )
    try:
        before = fields_of(message.text())
    except NOT_AN_OBJECT as error:
        raise not_an_object(error) from None
    after: Fields = {}
    for name, value in data.items():
        # The very object that was read is what it was, unless it is one that can be changed in place.
        same = name in before and value is read.get(name, _NONE) and not isinstance(value, (list, dict))
        after[name] = before[name] if same else _text(name, value, before)
    # The order counts as well: `==` of dicts does not see it.
    if list(after) != list(before) or any(after[name] is not before[name] for name in after):
        message.replace(after)


def _text(name: object, value: Value, before: Fields) -> Raw:
    if not isinstance(name, str):
        raise FunctionError(f"the function set a field named {name!r}, names are text")
    was = before.get(name)
    try:
        if was is not None and _same(value, values.decode(bytes(was))):
            return was
        return Raw(values.encode(value))
    except ValuesError as error:
        raise FunctionError(f"field '{name}': {error.message}") from None


def _same(one: Value, two: Value) -> bool:
    """Whether two values have the same text: equality would take True for 1, and 0.0 for -0.0."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict) and isinstance(two, dict):
        return list(one) == list(two) and all(map(_same, one.values(), two.values()))
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    if one is None or isinstance(one, (bool, int, str)):
        return one == two
    return values.encode(one) == values.encode(two)
