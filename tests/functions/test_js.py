"""`js`: the table of the reference's section 5 for both kinds, what stays as it was, limits, and loading."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.functions.messages import FIRST, applied, batch_of, errors_of, shipped, texts_of
from tests.functions.test_builtin_functions import documents, fields_in

from penstock import functions as f
from penstock.base.errors import UsageError
from penstock.functions import js_engine
from penstock.functions.js import JsFunction

CASES = r"""
var calls = 0;
var cases = {
  edited: function (msg) { msg.data.n = 2; return msg; },
  anew: function (msg) { return {op: "update", ns: "sales", ts: 5, data: {n: msg.data.n + 1}}; },
  noTs: function (msg) { return {op: msg.op, ns: msg.ns, data: msg.data}; },
  noData: function (msg) { return {op: msg.op, ns: msg.ns, ts: 1}; },
  halfTs: function (msg) { msg.ts = 1.5; return msg; },
  wordTs: function (msg) { msg.ts = "now"; return msg; },
  hugeTs: function (msg) { msg.ts = 1e300; return msg; },
  no: function () { return false; },
  yes: function (msg) { msg.data.n = 2; return true; },
  nul: function () { return null; },
  nothing: function () { },
  number: function () { return 5; },
  list: function (msg) { return [msg]; },
  promise: function (msg) { return Promise.resolve(msg); },
  skip: function (msg) { msg.op = "skip"; return msg; },
  skipped: function (msg) { msg.op = "Sometimes"; msg.data = 1; return msg; },
  noop: function (msg) { msg.op = "noop"; return msg; },
  letter: function (msg) { msg.op = "D"; return msg; },
  nonsense: function (msg) { msg.op = "inserrt"; return msg; },
  emptyOp: function (msg) { msg.op = ""; return msg; },
  emptyNs: function (msg) { msg.ns = ""; return msg; },
  dataNumber: function (msg) { msg.data = 5; return msg; },
  dataArray: function (msg) { msg.data = []; return msg; },
  dataDate: function (msg) { msg.data = new Date(0); return msg; },
  thrown: function (msg) {
    throw new Error("no stock");
  },
  typeError: function (msg) { return msg.nope.length; },
  thrownText: function () { throw "plain text"; },
  nan: function (msg) { msg.data.n = 0 / 0; return msg; },
  deepNan: function (msg) { msg.data.n = {list: [1, Infinity]}; return msg; },
  realNull: function (msg) { msg.data.n = null; return msg; },
  boxedNan: function (msg) { msg.data.n = [new Number(NaN)]; return msg; },
  givenNan: function (msg) { msg.data.n = {a: {toJSON() { return -Infinity; }}}; return msg; },
  half: function (msg) { msg.data.n = {list: ["a\ud800"]}; return msg; },
  halfName: function (msg) { msg.data["\udc00"] = 1; return msg; },
  wholePair: function (msg) { msg.data.n = "\ud83d\ude00 \\ud800 \\\\"; return msg; },
  lastDate: function (msg) { msg.data.n = new Date(Date.UTC(9999, 11, 31, 23, 59, 59, 999)); return msg; },
  farDate: function (msg) { msg.data.n = new Date(Date.UTC(10000, 0, 1)); return msg; },
  earlyDate: function (msg) { msg.data.n = [new Date("-000001-12-31T23:59:59.999Z")]; return msg; },
  date: function (msg) { msg.data.n = new Date(1500000000000); return msg; },
  regex: function (msg) { msg.data.n = /a+/i; return msg; },
  big: function (msg) { msg.data.n = BigInt("9007199254740993"); return msg; },
  map: function (msg) { msg.data.n = new Map([[1, 2]]); return msg; },
  bytes: function (msg) { msg.data.n = new Uint8Array(3); return msg; },
  cycle: function (msg) { msg.data.self = msg.data; return msg; },
  gone: function (msg) { msg.data.n = undefined; return msg; },
  underscore: function (msg) { msg.data.n = _.last([1]); return msg; },
  required: function (msg) { require("fs"); return msg; },
  timer: function (msg) { setTimeout(function () {}, 1); return msg; },
  what: function (msg) { msg.data.n = Object.keys(msg).sort().join() + typeof msg.id; return msg; },
  values: function (msg) { msg.data.n = [msg.ts, msg.op, msg.ns]; return msg; },
  modern: function (msg) { const {n, ...rest} = msg.data; msg.data = {...rest, n: n ?? 0}; return msg; },
  recursion: function (msg) { return cases.recursion(msg) + 1; },
};
function dispatch(msg) { calls++; return cases[msg.data["case"]](msg); }
"""
LINE = next(number for number, line in enumerate(CASES.splitlines(), 1) if "no stock" in line)


@pytest.fixture(scope="module")
def goja() -> JsFunction:
    return f.js(source=f"{CASES}\nfunction transform(msg) {{ return dispatch(msg); }}")


@pytest.fixture(scope="module")
def otto() -> JsFunction:
    return f.js(source=f"{CASES}\nmodule.exports = dispatch;", kind="otto")


KEPT = '{"case":"%s","n":2}'
RETURN = "; return msg, or false to drop the message"


@pytest.mark.parametrize(
    "case, by_goja, by_otto",
    [
        ("edited", KEPT, KEPT),
        ("anew", '{"n":2}', '{"n":2}'),
        ("noTs", "!the function returned an object without 'ts'", None),
        ("noData", "!the function returned an object without 'data'", None),
        ("halfTs", "!the function set ts to 1.5, whole microseconds since 1970 are wanted", None),
        ("wordTs", "!the function set ts to a string, whole microseconds since 1970 are wanted", None),
        ("hugeTs", "!the function set ts to 1e+300, whole microseconds since 1970 are wanted", None),
        ("no", "", ""),
        ("yes", KEPT, KEPT),
        ("nul", "", "!the function returned null" + RETURN),
        ("nothing", "!the function returned nothing" + RETURN, None),
        ("number", "!the function returned a number" + RETURN, None),
        ("list", "!the function returned an array" + RETURN, None),
        ("promise", "!the function returned a promise, which would be kept too late" + RETURN, None),
        ("skip", "", ""),
        ("skipped", "", ""),
        ("noop", '{"case":"noop","n":1}', None),
        ("letter", '{"case":"letter","n":1}', None),
        ("nonsense", "!the function set op to 'inserrt'; did you mean 'insert'?", None),
        ("emptyOp", "!the function set op to '', a word is wanted", None),
        ("emptyNs", "!the function set ns to '', a name is wanted", None),
        ("dataNumber", "!the function set data to a number, an object is wanted", None),
        ("dataArray", "!the function set data to an array, an object is wanted", None),
        ("dataDate", "!the function set data to a Date, an object is wanted", None),
        ("thrown", f"!Error: no stock (source:{LINE})", None),
        ("typeError", "!TypeError: Cannot read properties of undefined (reading 'length') (source:", None),
        ("thrownText", "!the function threw plain text (source)", None),
        ("nan", "!field 'n' is NaN, for which JSON has no form", None),
        ("deepNan", "!field 'n.list[1]' is Infinity, for which JSON has no form", None),
        ("realNull", '{"case":"realNull","n":null}', None),
        ("boxedNan", "!field 'n' is NaN, for which JSON has no form", None),
        ("givenNan", "!field 'n' is -Infinity, for which JSON has no form", None),
        ("half", "!field 'n' has half a surrogate pair in it", None),
        ("halfName", "!field '\ufffd' has half a surrogate pair in it", None),
        ("wholePair", '{"case":"wholePair","n":"\U0001f600 \\\\ud800 \\\\\\\\"}', None),
        ("lastDate", '{"case":"lastDate","n":{"$date":"9999-12-31T23:59:59.999Z"}}', None),
        ("farDate", '{"case":"farDate","n":{"$date":{"$numberLong":"253402300800000"}}}', None),
        ("earlyDate", '{"case":"earlyDate","n":[{"$date":{"$numberLong":"-62167219200001"}}]}', None),
        ("date", '{"case":"date","n":{"$date":"2017-07-14T02:40:00.000Z"}}', None),
        ("regex", '{"case":"regex","n":{"$regex":"a+","$options":"i"}}', None),
        ("big", '{"case":"big","n":9007199254740993}', None),
        ("map", "!field 'n': JSON has no form for a Map; make a plain object or array of it", None),
        ("bytes", "!field 'n': JSON has no form for a Uint8Array", None),
        ("cycle", "!field 'self': Converting circular structure to JSON", None),
        ("gone", '{"case":"gone"}', None),
        ("underscore", "!ReferenceError: underscore (_) is not part of Penstock", None),
        ("required", "!ReferenceError: require is not defined (source:", None),
        ("timer", "!TypeError: setTimeout is not a function (source:", None),
        ("what", '{"case":"what","n":"data,ns,op,tsundefined"}', None),
        ("values", '{"case":"values","n":[1700,"insert","orders"]}', None),
        ("modern", '{"case":"modern","n":1}', None),
        ("recursion", "!RangeError: Maximum call stack size exceeded", None),
    ],
)  # fmt: skip
def test_what_a_script_returns_decides(
    goja: JsFunction, otto: JsFunction, case: str, by_goja: str, by_otto: str | None
) -> None:
    """Kept with this text, dropped ("") or refused ("!reason"); None: as goja does."""
    for function, expected in ((goja, by_goja), (otto, by_goja if by_otto is None else by_otto)):
        result = applied(batch_of([json.dumps({"case": case, "n": 1}, separators=(",", ":"))]), function)
        if expected.startswith("!"):
            assert texts_of(result) == []
            assert errors_of(result)[0][1].startswith(expected[1:])
        else:
            assert errors_of(result) == []
            assert texts_of(result) == (
                [expected % case if "%" in expected else expected] if expected else []
            )


def test_a_script_may_change_namespace_op_and_time(goja: JsFunction) -> None:
    result = applied(batch_of(['{"case":"anew","n":1}', '{"case":"letter"}', '{"case":"noop"}']), goja)
    rows = result.batch.to_pylist()
    assert [(row["ns"], row["op"], row["origin"]) for row in rows] == [
        ("sales", "update", "orders"), ("orders", "delete", "orders"), ("orders", "noop", "orders")
    ]  # fmt: skip
    assert [row["ts"].microsecond for row in rows] == [5, 1700, 1700]


def test_a_time_that_a_double_cannot_hold_stays_what_it_was(goja: JsFunction) -> None:
    ts = 9_007_199_254_740_993
    result = applied(batch_of(['{"case":"edited"}', '{"case":"noop"}'], ts=ts), goja)
    assert result.batch.column("ts").cast("int64").to_pylist() == [ts, ts]


def test_messages_of_a_batch_have_fates_of_their_own_and_are_counted(goja: JsFunction) -> None:
    cases = ["edited", "no", "thrown", "realNull", "skip", "nan"]
    result = applied(batch_of([f'{{"case":"{case}"}}' for case in cases]), goja)
    assert result.batch.column("offset").to_pylist() == [FIRST, FIRST + 3]
    assert [offset for offset, _ in errors_of(result)] == [FIRST + 2, FIRST + 5]
    assert result.counts["step0"] == (6, 2, 2, 2)
    assert {refused.node for refused in result.refused} == {"step0"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "5",
        "null",
        "{",
        '{"a":1}{"b":2}',
        '{"a":1},{"b":2}',
        '{"a":1,}',
        '{"a":\x1e1}',
        '{"a":"\x1e"}',
    ],
)
def test_data_that_is_no_object_is_refused_and_harms_no_neighbour(goja: JsFunction, text: str) -> None:
    good = '{"case":"edited"}'
    result = applied(batch_of([good, text, good]), goja)
    assert texts_of(result) == ['{"case":"edited","n":2}'] * 2
    assert errors_of(result)[0][0] == FIRST + 1
    assert errors_of(result)[0][1].startswith("data is not a JSON object: ")


@pytest.fixture(scope="module")
def editor() -> JsFunction:
    """Does to each message what its namespace says."""
    return f.js(
        source="""
        var edits = {
          nothing: function (d) {},
          add: function (d) { d.added = "x"; },
          addTwo: function (d) { d.added = "x"; d.gone = undefined; d.more = [1]; },
          remove: function (d) { delete d.a; },
          set: function (d) { d.b = "changed"; },
          setTwo: function (d) { d.a = "changed"; d.b = "changed"; },
          setAndAdd: function (d) { d.b = "changed"; d.added = "x"; },
          unset: function (d) { d.b = undefined; },
          deep: function (d) { d.deep.list[1].n = 0; },
          push: function (d) { d.deep.list.push(1); },
          cut: function (d) { d.deep.list.length = 1; },
        };
        function transform(msg) {
          if (msg.ns === "copy") msg.data = Object.assign({}, msg.data);
          else edits[msg.ns](msg.data);
          return msg;
        }"""
    )


EXACT = (
    '{ "id" : 9007199254740993, "f":1.10,"e":1E+05, "t":"\\u0041\\/", '
    '"deep": {"big":12345678901234567890.50,"list":[1.0, {"n":1,"x":1.00} ,-0] } }'
)


@pytest.mark.parametrize(
    "how, before, after",
    [
        ("nothing", EXACT, EXACT),
        ("copy", EXACT, EXACT),
        ("add", EXACT, EXACT.removesuffix(" }") + ',"added":"x"}'),
        ("addTwo", '{"a":1.0 }\n', '{"a":1.0,"added":"x","more":[1]}'),
        ("add", "{ }", '{"added":"x"}'),
        ("deep", EXACT, EXACT.replace('"n":1', '"n":0')),
        ("set", ' { "b": 1, "a" :1.0 } ', '{ "b": "changed", "a" :1.0 }'),
        ("set", '{"a":1.0 ,"b" :[ 1 ] }', '{"a":1.0 ,"b" :"changed" }'),
        ("setTwo", '{"a":1.0 ,"c":1.00, "b" :2 }', '{"a":"changed" ,"c":1.00, "b" :"changed" }'),
        ("setAndAdd", '{"a":1.0, "b":2 }', '{"a":1.0, "b":"changed","added":"x"}'),
        ("unset", '{"a":1.0, "b":2, "c":3.0}', '{"a":1.0,"c":3.0}'),
        ("unset", '{"b":2}', "{}"),
        ("remove", '{"a":1,"b":1e400}', '{"b":1e400}'),
        ("remove", '{"b": 1.0, "a":1,"c" : 2.0 }', '{"b": 1.0,"c" : 2.0 }'),
        # Names that JSON.parse does not have in the order of the text, or has once where the text has them twice.
        ("add", '{"2":1.0,"1":2.0}', '{"1":2.0,"2":1.0,"added":"x"}'),
        ("set", '{"2":1.0,"1":2.0,"b":1}', '{"1":2.0,"2":1.0,"b":"changed"}'),
        ("add", '{"a":1.0,"a":2.0}', '{"a":1.0,"a":2.0,"added":"x"}'),
        ("set", '{"b":1.0,"a":2.0,"b":3.0}', '{"b":"changed","a":2.0}'),
        ("set", '{"b":1.0,"\\u0062":3.0}', '{"\\u0062":"changed"}'),
        ("set", '{"\\u0062":1.0,"a":3.0}', '{"\\u0062":"changed","a":3.0}'),
        ("set", '{"a":1.0,"a":2.0,"b":3.0}', '{"a":2.0,"b":"changed"}'),
        ("set", '{"a":{"b":1.0},"b":2,"c":{"b":3.0}}', '{"a":{"b":1.0},"b":"changed","c":{"b":3.0}}'),
        ("add", '{"__proto__":1.0,"constructor":2.0}', '{"__proto__":1.0,"constructor":2.0,"added":"x"}'),
        ("set", '{"__proto__":{"b":1.0},"b":2}', '{"__proto__":{"b":1.0},"b":"changed"}'),
        ("copy", '{"toJSON":1.0,"":2.0}', '{"toJSON":1.0,"":2.0}'),
        ("add", '{"s":"é€😀\\ud83d"}', '{"s":"é€😀\\ud83d","added":"x"}'),
        ("push", '{"deep":{"list":[]}}', '{"deep":{"list":[1]}}'),
        ("push", '{"deep":{"list":[ 1.0 ]}}', '{"deep":{"list":[ 1.0,1]}}'),
        ("cut", '{"deep":{"list":[ 1.0 ,2,3 ]}}', '{"deep":{"list":[ 1.0]}}'),
        ("cut", '{"deep":{"list":[ 1.0 ]}}', '{"deep":{"list":[ 1.0 ]}}'),
    ],
)  # fmt: skip
def test_what_a_script_does_not_touch_keeps_its_text_at_any_depth(
    editor: JsFunction, how: str, before: str, after: str
) -> None:
    result = applied(batch_of([before], ns=how), editor)
    assert errors_of(result) == []
    assert texts_of(result) == [after]


@pytest.mark.parametrize(
    "edit, before, after",
    [
        ("m.data.l.shift()", '{"l":[{"id":9007199254740993},{"id":9007199254740992, "x":1.0}]}',
         '{"l":[{"id":9007199254740992, "x":1.0}]}'),
        ("m.data.l.reverse()", '{"l":[{"id":9007199254740993}, {"id":9007199254740992}]}',
         '{"l":[{"id":9007199254740992}, {"id":9007199254740993}]}'),
        ("m.data.l.unshift({})", '{"l":[[9007199254740993],{"y":1.0}]}', '{"l":[{},[9007199254740993],{"y":1.0}]}'),
        ("m.data.l = m.data.l.filter((one) => one.x).map((one) => ({...one}))",
         '{"l":[{"id":9007199254740993},{"id":9007199254740995,"x":1}]}', '{"l":[{"id":9007199254740996,"x":1}]}'),
        ("m.data.l = m.data.l.map((one) => ({...one, x: 1}))", '{"l":[{"id":9007199254740993}]}',
         '{"l":[{"id":9007199254740993,"x":1}]}'),
        ("m.data.l.shift()", '{"l":[9007199254740993,9007199254740992, 1.50]}', '{"l":[9007199254740992,1.5]}'),
        ("m.data.l.pop()", '{"l":[9007199254740993, 1.50,2]}', '{"l":[9007199254740993, 1.50]}'),
        ("[m.data.a, m.data.b] = [m.data.b, m.data.a]", '{"a":{"id":9007199254740993},"b":{"id":9007199254740992}}',
         '{"a":{"id":9007199254740992},"b":{"id":9007199254740992}}'),
    ],
)  # fmt: skip
def test_no_value_gets_the_digits_of_another_that_javascript_takes_for_it(
    edit: str, before: str, after: str
) -> None:
    """Elements were known by their places alone: behind one that went, each had the number of the one before."""
    script = f.js(source=f"function transform(m) {{ {edit}; return m }}")
    assert texts_of(applied(batch_of([before]), script)) == [after]


CHANGES: dict[str, dict[str, str | None]] = {
    "nothing": {},
    "copy": {},
    "add": {"added": '"x"'},
    "remove": {"a": None},
    "set": {"b": '"changed"'},
    "setTwo": {"a": '"changed"', "b": '"changed"'},
    "setAndAdd": {"b": '"changed"', "added": '"x"'},
    "unset": {"b": None},
}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(CHANGES)), st.lists(documents(), min_size=1, max_size=5))
def test_an_edit_of_one_field_leaves_every_other_byte_alone(
    editor: JsFunction, how: str, rows: list[tuple[dict[str, str], str]]
) -> None:
    result = applied(batch_of([text for _, text in rows], ns=how), editor)
    assert errors_of(result) == []
    for (fields, before), after in zip(rows, texts_of(result), strict=True):
        changes = {name: new for name, new in CHANGES[how].items() if fields.get(name) != new}
        expected = {**fields, **changes}
        assert dict(fields_in(after)) == {name: text for name, text in expected.items() if text is not None}
        if expected == fields and how != "unset":  # which leaves a field without a value, if no text for it
            assert after == before


HUNGRY = """
var kept = [];
var deeds = {
  loop: function () { for (;;); },
  later: function () { Promise.resolve().then(deeds.later); },
  regex: function () { return /^(a+)+$/.test("a".repeat(60) + "b"); },
  native: function () { return new Array(2000000000).fill(1).length; },
  objects: function () { for (;;) kept.push({a: [1, 2, 3]}); },
  strings: function () { for (;;) kept.push("x".repeat(1000000) + kept.length); },
  buffers: function () { for (;;) kept.push(new Uint8Array(50000000).fill(1)); },
};
function transform(msg) { (deeds[msg.data.deed] || function () {})(); msg.data.done = 1; return msg; }
"""


@pytest.fixture(scope="module")
def hungry() -> JsFunction:
    return f.js(source=HUNGRY, timeout_ms=100, memory_mb=64)


@pytest.mark.parametrize(
    "deed",
    [
        "loop",
        "later",
        "buffers",
        *(pytest.param(deed, marks=pytest.mark.soak) for deed in ("native", "regex", "objects", "strings")),
    ],
)
def test_a_message_that_passes_a_limit_is_refused_and_the_others_go_on(hungry: JsFunction, deed: str) -> None:
    texts = ["{}"] * 3 + [f'{{"deed":"{deed}"}}'] + ["{}"] * 3
    result = applied(batch_of(texts), hungry)
    assert texts_of(result) == ['{"done":1}'] * 6
    [(offset, error)] = errors_of(result)
    assert offset == FIRST + 3
    assert error in (
        "the script took longer than 100 ms (source)",
        "the script took more memory than 64 MB (source)",
    ) or error.startswith("RangeError: Array buffer allocation failed (source:")


def test_after_some_passed_limits_the_rest_of_a_batch_is_not_tried(
    hungry: JsFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["penstock.functions.js"], "MAX_INCIDENTS", 2)
    result = applied(batch_of(['{"deed":"loop"}'] * 3 + ["{}"]), hungry)
    errors = [error for _, error in errors_of(result)]
    assert errors[:2] == ["the script took longer than 100 ms (source)"] * 2
    assert errors[2:] == ["not tried, since the script passed its limits 2 times in this batch"] * 2
    assert texts_of(applied(batch_of(["{}"]), hungry)) == ['{"done":1}']


@pytest.mark.parametrize("kind", ["Array", "Number", "String"])
@pytest.mark.parametrize("given", ["return 'x'", "throw new Error('no form')"])
def test_a_script_that_says_what_its_arrays_are_as_json_breaks_nothing_else(kind: str, given: str) -> None:
    script = f"{kind}.prototype.toJSON = function () {{ {given} }};"
    script += (
        "function transform(msg) { msg.data.n++; if (msg.data.n > 2) throw 'no'; msg.ns = 'x'; return msg; }"
    )
    result = applied(batch_of(['{"n":1,"list":[1]}', '{"n":2}']), f.js(source=script))
    assert texts_of(result) == ['{"n":2,"list":[1]}']
    assert result.batch.column("ns").to_pylist() == ["x"]
    assert errors_of(result) == [(FIRST + 1, "the function threw no (source)")]


def test_many_slow_messages_are_no_offence() -> None:
    slow = f.js(
        source="function transform(msg) { for (var t = Date.now(); Date.now() - t < 60;); return msg; }",
        timeout_ms=200,
    )
    texts = [f'{{"n":{n}}}' for n in range(12)]
    result = applied(batch_of(texts), slow)
    assert (texts_of(result), errors_of(result)) == (texts, [])


def test_a_large_batch_goes_in_several_calls(goja: JsFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["penstock.functions.js"], "CALL_MESSAGES", 3)
    texts = [f'{{"case":"{case}"}}' for case in ["edited", "no", "edited", "thrown", "edited"] * 2]
    result = applied(batch_of(texts), goja)
    assert result.batch.column("offset").to_pylist() == [100, 102, 104, 105, 107, 109]
    assert [offset for offset, _ in errors_of(result)] == [103, 108]


@pytest.mark.parametrize(
    "script, complaint",
    [
        ("function transform(msg) {\n  let x = ;\n}", "slim.js, line 2: SyntaxError: Unexpected token ';'"),
        ("var a = 1;\n\nnope();\nfunction transform(m) {}", "slim.js, line 3: ReferenceError: nope is not defined"),
        ("function transfrom(msg) { return msg }", "slim.js: the script does not define a function transform(msg)"),
        ("var transform = 5", "slim.js: the script does not define a function transform(msg)"),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_loaded_is_refused_with_file_and_line(
    tmp_path: Path, script: str, complaint: str
) -> None:
    file = tmp_path / "slim.js"
    file.write_text(script)
    with pytest.raises(UsageError) as error:
        f.js(filename=str(file))
    assert error.value.message == f"function 'js': {complaint}"


def test_otto_wants_an_exported_function_and_goja_takes_a_constant() -> None:
    with pytest.raises(UsageError, match=r"does not assign a function to module\.exports"):
        f.js(source="function transform(msg) { return msg }", kind="transformer")
    constant = f.js(source="const transform = (msg) => ({...msg, ns: 'x'})", kind="js")
    assert applied(batch_of(["{}"]), constant).batch.column("ns").to_pylist() == ["x"]


def test_a_script_that_does_not_end_while_it_is_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(js_engine, "START_SECONDS", 1.0)
    with pytest.raises(UsageError, match="cannot be loaded: the script took longer than 1000 ms"):
        f.js(source="for (;;);")


@pytest.mark.parametrize(
    "given, complaint",
    [
        ({}, "function 'js': expected either 'filename' or 'source'"),
        ({"filename": "a", "source": "b"}, "function 'js': expected either 'filename' or 'source'"),
        ({"file": "a"}, "function 'js': unknown setting 'file'; did you mean 'filename'?"),
        ({"source": "x", "kind": "duk"}, "function 'js': setting 'kind': invalid enum value 'duk'"),
        (
            {"source": "x", "timeout_ms": 0},
            "function 'js': setting 'timeout_ms': expected 1 to 600000, got 0",
        ),
        ({"source": "x", "memory_mb": 1}, "function 'js': setting 'memory_mb': expected 16 to 4096, got 1"),
    ],
)
def test_bad_settings_are_refused_before_a_script_is_run(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        f.js(**given)
    assert error.value.message == complaint


def test_a_script_that_is_not_there_is_named_by_its_whole_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file or directory") as error:
        f.js(filename=str(tmp_path / "nope.js"))
    assert str(tmp_path / "nope.js") in error.value.message


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="mini-racer") as error:
        f.js(source="function transform(msg) { return msg }")
    assert error.value.hint == "pip install 'penstock[js]'"


def test_the_text_of_the_script_travels_with_the_function(tmp_path: Path) -> None:
    file = tmp_path / "slim.js"
    file.write_text("function transform(msg) {\n  msg.data.n.x = 1; return msg; }")
    function = f.js(filename=str(file))
    file.unlink()
    for copy in (pickle.loads(pickle.dumps(function)), shipped(function)):
        result = applied(batch_of(['{"n":{}}', "{}"]), copy)
        assert texts_of(result) == ['{"n":{"x":1}}']
        assert errors_of(result)[0][1].endswith("(slim.js:2)")


def _texts_in_a_fork(function: JsFunction, pipe: multiprocessing.connection.Connection) -> None:
    pipe.send(texts_of(applied(batch_of(['{"case":"edited"}']), function)))


def test_a_forked_process_has_an_engine_of_its_own(goja: JsFunction) -> None:
    rows = batch_of(['{"case":"edited"}'])
    before = texts_of(applied(rows, goja))
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_texts_in_a_fork, args=(goja, there))
    child.start()
    assert here.poll(60)
    assert here.recv() == before
    child.join(10)
    assert texts_of(applied(rows, goja)) == before


def test_the_engine_ends_with_the_process_that_started_it() -> None:
    code = (
        "from tests.functions.messages import *; from penstock import functions as f;"
        "from penstock.functions import js_engine; import os, signal;"
        "fn = f.js(source='function transform(m) { return m }'); applied(batch_of(['{}']), fn);"
        "[engine] = js_engine._engines.values(); print(engine._process.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid = int(run.stdout)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    pytest.fail("the engine outlived its owner")
