"""The built-in functions: the reference's examples, its operator table, and models to compare with."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.functions import messages

from penstock import functions as f
from penstock.base.errors import UsageError
from penstock.base.settings import settings_of
from penstock.functions.base import Editable, Function, FunctionError
from penstock.functions.kinds import TextFunction

SOURCE = Path(f.__file__).parents[2]


def applied(function: Function, text: str, ns: str = "orders") -> str | None:
    """What becomes of a document; None if it is dropped."""
    message = Editable(ns, "insert", 0, text)
    if not function.apply(message):
        return None
    result = message.text()
    return result if isinstance(result, str) else result.decode()


def rewritten(function: TextFunction, text: str) -> str | None:
    result = function.rewrite(text.encode())
    return None if result is None else result.decode()


# Documents as anybody may write them: any values, any whitespace, escapes, numbers with more digits than a
# float has. What a document means is `dict(pairs)`, values being their texts.

names = st.text(st.characters(codec="utf-8"), max_size=4) | st.sampled_from(["a", "b", "c", 'q"', "\n", "é"])
spaces = st.text(" \t\r\n", max_size=2)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
).map(json.dumps)
numbers = st.sampled_from(
    ["1.0", "1.00", "-0", "0.10", "1e5", "1E+05", "90071992547409931", "1e400", '"\\u0041"']
)
values = st.recursive(
    scalars | numbers,
    lambda inner: st.lists(inner, max_size=3).map(lambda items: "[" + " ,".join(items) + "]")
    | st.dictionaries(names, inner, max_size=3).map(
        lambda pairs: "{ " + ",".join(f"{json.dumps(key)} :{value}" for key, value in pairs.items()) + "}"
    ),
    max_leaves=6,
)  # fmt: skip
pairs = st.dictionaries(names, values, max_size=6)


@st.composite
def documents(draw: st.DrawFn) -> tuple[dict[str, str], str]:
    fields = draw(pairs)
    ascii_only = draw(st.booleans())
    parts = [
        draw(spaces).join(["", json.dumps(name, ensure_ascii=ascii_only), ":", value, ""])
        for name, value in fields.items()
    ]
    return fields, "{" + ",".join(parts) + "}"


def fields_in(text: str | None) -> list[tuple[str, str]]:
    """Names and texts of values, in their order."""
    assert text is not None
    return [
        (name, bytes(value).decode())
        for name, value in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()
    ]


@pytest.mark.parametrize(
    "function, before, after",
    [
        (f.omit(fields=["cost", "tax"]), '{"_id":7,"sku":"a","cost":2}', '{"_id":7,"sku":"a"}'),
        (f.omit(fields=["tax"]), '{ "_id" : 7 }', '{ "_id" : 7 }'),
        (f.omit(fields=[]), '{ "_id" : 7 }', '{ "_id" : 7 }'),
        (f.omit(fields=["a", "a"]), '{"a":1,"b":null}', '{"b":null}'),
        (f.omit(fields=["b"]), '{"a":1,"b":null}', '{"a":1}'),
        (f.pick(fields=["sku", "nope"]), '{"_id":7,"sku":"a","cost":2}', '{"sku":"a"}'),
        (f.pick(fields=["nope"]), '{"_id":7}', "{}"),
        (f.pick(fields=["b", "a", "b"]), '{"a": 1.00, "b": [1, 2]}', '{"b":[1, 2],"a":1.00}'),
        (f.pick(fields=['say "x"', "a"]), '{"a":1,"say \\"x\\"":2}', '{"say \\"x\\"":2,"a":1}'),
        (f.rename(field_map={"name": "n"}), '{"_id":7,"name":"x","n":1}', '{"_id":7,"n":"x"}'),
        (f.rename(field_map={"name": "n"}), '{"n":1,"_id":7,"name":"x"}', '{"_id":7,"n":"x"}'),
        (f.rename(field_map={"a": "b", "b": "a"}), '{"a":1,"b":2}', '{"b":1,"a":2}'),
        (f.rename(field_map={"a": "b", "b": "c"}), '{"a":1,"b":2,"c":3}', '{"b":1,"c":2}'),
        (f.rename(field_map={"b": "c", "a": "b"}), '{"a":1,"b":2,"c":3}', '{"b":1,"c":2}'),
        (f.rename(field_map={"a": "x", "b": "x"}), '{"b":2,"a":1}', '{"x":2}'),
        (f.rename(field_map={"b": "x", "a": "x"}), '{"b":2,"a":1}', '{"x":1}'),
        (f.rename(field_map={"a": "x", "b": "x"}), '{"a":1}', '{"x":1}'),
        (f.rename(field_map={"z": "a"}), '{ "a": 1 }', '{ "a": 1 }'),
        (f.remap(ns_map={"orders": "sales"}), "not looked at", "not looked at"),
    ],
)  # fmt: skip
def test_what_a_document_becomes(function: Function, before: str, after: str) -> None:
    assert applied(function, before) == after
    if isinstance(function, TextFunction):
        assert rewritten(function, before) == after


@pytest.mark.parametrize(
    "ns, moved", [("orders", "sales"), ("orders_old", "orders_old"), ("Orders", "Orders")]
)
def test_remap_moves_exact_matches_only(ns: str, moved: str) -> None:
    message = Editable(ns, "insert", 0, "{}")
    assert f.remap(ns_map={"orders": "sales"}).apply(message)
    assert message.ns == moved


@settings(deadline=None, max_examples=50)
@given(documents(), st.lists(names, max_size=4))
def test_omit_is_the_document_without_those_fields(
    document: tuple[dict[str, str], str], omitted: list[str]
) -> None:
    fields, text = document
    result = rewritten(f.omit(fields=omitted), text)
    assert fields_in(result) == [(name, value) for name, value in fields.items() if name not in omitted]
    if fields.keys().isdisjoint(omitted):
        assert result == text


@settings(deadline=None, max_examples=50)
@given(documents(), st.lists(names, min_size=1, max_size=4))
def test_pick_is_those_fields_of_the_document(
    document: tuple[dict[str, str], str], picked: list[str]
) -> None:
    fields, text = document
    result = rewritten(f.pick(fields=picked), text)
    assert fields_in(result) == [(name, fields[name]) for name in dict.fromkeys(picked) if name in fields]


@settings(deadline=None, max_examples=50)
@given(documents(), st.dictionaries(names, names, max_size=4))
def test_rename_applies_all_pairs_at_once(
    document: tuple[dict[str, str], str], field_map: dict[str, str]
) -> None:
    fields, text = document
    model = [(name, value) for name, value in fields.items() if name not in field_map]
    for old, new in field_map.items():
        if old in fields:
            model = [pair for pair in model if pair[0] != new] + [(new, fields[old])]
    result = rewritten(f.rename(field_map=field_map), text)
    assert dict(fields_in(result)) == dict(model)
    if fields.keys().isdisjoint(field_map):
        assert result == text


@settings(deadline=None, max_examples=50)
@given(documents(), st.permutations(["a", "b", "c"]))
def test_rename_keeps_the_order_of_fields(document: tuple[dict[str, str], str], order: list[str]) -> None:
    fields, text = document
    field_map = dict(zip("abc", order, strict=True))
    renamed = [(field_map.get(name, name), value) for name, value in fields.items()]
    assert fields_in(rewritten(f.rename(field_map=field_map), text)) == renamed


@settings(deadline=None, max_examples=50)
@given(
    documents(),
    st.sampled_from([f.omit(fields=["a"]), f.pick(fields=["a", "é"]), f.rename(field_map={"a": "b"})]),
)
def test_apply_and_rewrite_say_the_same(document: tuple[dict[str, str], str], function: TextFunction) -> None:
    _, text = document
    assert fields_in(applied(function, text)) == fields_in(rewritten(function, text))


KEPT, DROPPED = True, False
BIG = 9007199254740993
OPS = ["insert", "update", "delete", "noop", "unknown"]


@pytest.mark.parametrize(
    "given, kept",
    [
        ({}, OPS),
        ({"whitelist": ["insert", "update"]}, ["insert", "update"]),
        ({"whitelist": ["I", "U"]}, ["insert", "update"]),
        ({"whitelist": ["unknown"]}, ["unknown"]),
        ({"blacklist": ["delete"]}, ["insert", "update", "noop", "unknown"]),
        ({"blacklist": ["Delete", "n"]}, ["insert", "update", "unknown"]),
        ({"whitelist": ["insert", "delete"], "blacklist": ["delete"]}, ["insert"]),
        ({"whitelist": ["command"]}, []),
    ],
)
def test_opfilter_keeps_the_ops_of_one_list_without_those_of_the_other(
    given: dict[str, object], kept: list[str]
) -> None:
    function = f.opfilter(**given)
    result = messages.applied(messages.batch_of(["not looked at"] * len(OPS), op=OPS), function)
    assert result.batch.column("op").to_pylist() == kept
    assert result.counts["step0"] == (len(OPS), len(kept), len(OPS) - len(kept), 0)
    assert [op for op in OPS if function.apply(Editable("orders", op, 0, "{}"))] == kept


def test_pretty_shows_each_message_with_its_own_indent_and_passes_it_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "penstock")
    wide, narrow = f.pretty(), f.pretty(spaces=0)
    text = '{"b" :1.00,"a":[9007199254740993]}'
    assert rewritten(wide, text) == text
    assert rewritten(narrow, text) == text
    assert rewritten(wide, "not JSON") == "not JSON"
    assert [record.getMessage() for record in caplog.records] == [
        '\n{\n  "b": 1.00,\n  "a": [\n    9007199254740993\n  ]\n}',
        '\n{"b": 1.00, "a": [9007199254740993]}',
        "\nnot JSON",
    ]
    assert {record.levelname for record in caplog.records} == {"INFO"}


@pytest.mark.parametrize(("level", "shown"), [("INFO", '{"b": 1.00}\n'), ("WARNING", "")])
def test_pretty_is_seen_in_a_process_in_which_nobody_has_set_up_logs(
    caplog: pytest.LogCaptureFixture, level: str, shown: str
) -> None:
    caplog.set_level(level, "penstock")
    worker = "import pickle, sys; pickle.load(sys.stdin.buffer).rewrite(b'{\"b\":1.00}')"
    sent = pickle.dumps(f.pretty(spaces=0))
    told = subprocess.run([sys.executable, "-c", worker], input=sent, capture_output=True, check=True).stderr
    assert told.decode().endswith(shown)
    assert (b"penstock.functions.pretty" in told) is bool(shown)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM messages WHERE op <> 'delete'",
        "select * from `messages`;  ",
        "WITH big AS (SELECT * FROM Messages -- all; of them\n) SELECT * FROM big WHERE ns = 'a;b'",
        "(SELECT * FROM messages)",
        "FROM messages |> WHERE op = 'insert'",
    ],
)
def test_sql_holds_one_query_over_the_view(text: str) -> None:
    function = f.sql(text)
    assert function.text == text.rstrip("; ")
    assert messages.shipped(function) == function


@pytest.mark.parametrize(
    "value, operator, match, kept",
    [
        ("11", ">", 10, KEPT),
        ('"10"', ">", 5, KEPT),
        ('"10"', "gt", "5", KEPT),
        ("10", ">", 10, DROPPED),
        ("10", ">=", 10.0, KEPT),
        ("10.00", "$gte", 10, KEPT),
        ("9.99", "gte", 10, DROPPED),
        ("-1", "<", 0, KEPT),
        ("-0.0", "lt", 0, DROPPED),
        ("1e400", "$lt", 10**399, DROPPED),
        ("3", "<=", 3, KEPT),
        ("3", "lte", 2.5, DROPPED),
        ("3", "$lte", "3e0", KEPT),
        (str(BIG), ">", BIG - 1, KEPT),
        (str(BIG), ">", BIG, DROPPED),
        (f'"{BIG}"', "<=", BIG - 1, DROPPED),
        ("0.1", ">=", 0.1, KEPT),
        ("0.1", "<=", 0.1, KEPT),
        ("0.10000000000000000001", ">", 0.1, KEPT),
        ("9" * 5000, ">", 1, KEPT),
        ("10", "==", 10, KEPT),
        ("10", "eq", 10.0, KEPT),
        ("10.0", "$eq", 10, KEPT),
        ("10", "==", "10", DROPPED),
        ('"10"', "==", 10, DROPPED),
        ("0.1", "==", 0.1, KEPT),
        ("0.10000000000000000001", "==", 0.1, DROPPED),
        (str(BIG), "==", BIG, KEPT),
        (str(BIG), "==", BIG - 1, DROPPED),
        ("true", "==", True, KEPT),
        ("true", "==", 1, DROPPED),
        ("1", "==", True, DROPPED),
        ("null", "==", None, KEPT),
        (None, "==", None, KEPT),
        (None, "==", 0, DROPPED),
        ("0", "==", None, DROPPED),
        ('{"a":[1,{"b":2}]}', "==", {"a": [1.0, {"b": 2}]}, KEPT),
        ('{"a":[1,{"b":true}]}', "==", {"a": [1, {"b": 1}]}, DROPPED),
        ('{"a":1,"b":2}', "==", {"b": 2, "a": 1}, KEPT),
        ('{"a":1}', "==", {"a": 1, "b": 2}, DROPPED),
        ("[1,2]", "==", [1], DROPPED),
        ("[1,2]", "==", (1, 2), KEPT),
        ('"caf\\u00e9"', "==", "café", KEPT),
        ('"abc"', "=~", "b", KEPT),
        ('"abc"', "=~", "^b", DROPPED),
        ('"abc"', "=~", "(?i)^ABC$", KEPT),
        ('"caf\\u00e9"', "=~", "é$", KEPT),
        ('""', "=~", "", KEPT),
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["n", 'a "name"'])
def test_skip_keeps_what_passes(
    field: str, value: str | None, operator: str, match: object, kept: bool
) -> None:
    function = f.skip(field=field, operator=operator, match=match)
    text = "{}" if value is None else f'{{ "x": 1, {json.dumps(field)}: {value} }}'
    assert rewritten(function, text) == (text if kept else None)
    assert applied(function, text) == (text if kept else None)


@pytest.mark.parametrize(
    "value, operator, match, complaint",
    [
        ("true", ">", 1, "incompatible type: '>' wants a number, the value is true"),
        ("null", "<", 1, "incompatible type: '<' wants a number, the value is null"),
        (None, "lt", 1, "incompatible type: 'lt' wants a number, the value is null"),
        ("[1]", ">", 1, "the value is a list, [1]"),
        ('{"a":1}', ">", 1, "the value is an object"),
        ('"ten"', ">", 1, 'the value is a string, "ten"'),
        ('" 10"', ">", 1, "the value is a string"),
        ('"1_0"', ">", 1, "the value is a string"),
        ('"NaN"', ">", 1, "the value is a string"),
        ('"inf"', ">", 1, "the value is a string"),
        ('"0x10"', ">", 1, "the value is a string"),
        ('"١"', ">", 1, "the value is a string"),
        ('""', ">", 1, "the value is a string"),
        ("1e99999999999999999999", ">", 1, "the value is a number"),
        ("5", "=~", "5", "'=~' wants a string, the value is a number, 5"),
        (None, "=~", "5", "'=~' wants a string, the value is null"),
        ("1e99999999999999999999", "==", 1, "cannot be compared"),
        ("9" * 5000, "==", 1, "cannot be compared"),
    ],
)  # fmt: skip
def test_skip_refuses_what_it_cannot_decide(
    value: str | None, operator: str, match: object, complaint: str
) -> None:
    text = "{}" if value is None else f'{{"n":{value}}}'
    with pytest.raises(FunctionError) as error:
        rewritten(f.skip(field="n", operator=operator, match=match), text)
    assert error.value.message.startswith("field 'n': ")
    assert complaint in error.value.message


def test_no_message_holds_skip_up() -> None:
    """Python's engine takes some minutes for 36 letters, and twice as long for each further one."""
    keeps = f.skip(field="v", operator="=~", match="^(a+)+$")
    assert rewritten(keeps, '{"v":"' + "a" * 36 + '!"}') is None
    assert rewritten(pickle.loads(pickle.dumps(keeps)), '{"v":"aaa"}') == '{"v":"aaa"}'


@settings(deadline=None, max_examples=50)
@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False), st.integers())
def test_skip_compares_without_losing_a_digit(value: object, limit: int) -> None:
    text = f'{{"n":"{value}"}}'
    kept = rewritten(f.skip(field="n", operator=">", match=limit), text) is not None
    assert kept is (value > limit)  # type: ignore[operator]


@pytest.mark.parametrize(
    "make, settings, complaint",
    [
        (f.omit, {"field": ["a"]}, "function 'omit': unknown setting 'field'; did you mean 'fields'?"),
        (f.omit, {}, "function 'omit': setting 'fields' is missing"),
        (f.omit, {"fields": "abc"}, "function 'omit': setting 'fields': expected array, got str"),
        (f.omit, {"fields": [1]}, "function 'omit': setting 'fields[0]': expected str, got int"),
        (f.pick, {"fields": []}, "function 'pick': setting 'fields': expected at least one name, got none"),
        (f.rename, {"field_map": {"a": 1}}, "expected str, got int"),
        (f.rename, {"fields": {}}, "unknown setting 'fields'"),
        (f.remap, {"ns_map": {"a": ""}}, "the new namespace for 'a' is empty"),
        (f.skip, {"field": "a", "operator": "gtt", "match": 1}, "unknown operator 'gtt'; did you mean 'gt'?"),
        (f.skip, {"field": "a", "operator": "!=", "match": 1}, "unknown operator '!='"),
        (f.skip, {"field": "a", "operator": "=~", "match": "("}, "bad pattern '(', character 1: missing )"),
        (f.skip, {"field": "a", "operator": "=~", "match": "a(?=b)"}, "character 2: look-around is not supported"),
        (f.opfilter, {"whitelist": ["inserrt"]}, "setting 'whitelist': unknown op 'inserrt'; did you mean 'insert'?"),
        (f.opfilter, {"blacklist": [""]}, "setting 'blacklist': unknown op ''"),
        (f.opfilter, {"blacklist": "delete"}, "expected array, got str"),
        (f.opfilter, {"whitlist": ["insert"]}, "did you mean 'whitelist'?"),
        (f.pretty, {"spaces": -1}, "function 'pretty': setting 'spaces': expected 0 to 16, got -1"),
        (f.pretty, {"spaces": "two"}, "setting 'spaces': "),
        (f.sql, {"text": " -- nothing\n"}, "function 'sql': setting 'text': expected a query, got nothing"),
        (f.sql, {"text": "DROP TABLE messages"}, "expected a query (SELECT …, WITH …), it begins with 'DROP'"),
        (f.sql, {"text": "SELECT 1; SELECT * FROM messages"}, "expected one query, got several"),
        (f.sql, {"text": "SELECT 'messages'"}, "the query does not read the view 'messages'"),
        (f.sql, {"text": "SELECT * FROM old_messages"}, "the query does not read the view 'messages'"),
        (f.skip, {"field": "a", "operator": "=~", "match": 1}, "'=~' wants a pattern, got 1"),
        (f.skip, {"field": "a", "operator": ">", "match": "x"}, "a comparison wants a number, got 'x'"),
        (f.skip, {"field": "a", "operator": ">", "match": True}, "a comparison wants a number, got True"),
        (f.skip, {"field": "a", "operator": ">", "match": float("nan")}, "wants a number, got nan"),
        (f.skip, {"field": "a", "operator": "==", "match": float("inf")}, "expected a JSON value, got inf"),
        (f.skip, {"field": "a", "operator": "==", "match": [{1}]}, "expected a JSON value, got {1}"),
        (f.skip, {"field": "a", "operator": "=="}, "setting 'match' is missing"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_at_load(
    make: Callable[..., Function], settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(UsageError) as error:
        make(**settings)
    assert complaint in error.value.message


def test_settings_take_variables_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELD", "password")
    assert applied(f.omit(fields=["${FIELD}"]), '{"password":1}') == "{}"


@pytest.mark.parametrize("text", ["", "[1]", "5", "{", '{"a":1}{"b":2}', '{"a":1,}'])
@pytest.mark.parametrize(
    "function",
    [
        f.omit(fields=["a"]),
        f.pick(fields=["a"]),
        f.rename(field_map={"a": "b"}),
        f.skip(field="a", operator="==", match=1),
        f.skip(field='"', operator="==", match=1),
    ],
)
def test_data_that_is_no_object_is_refused(function: TextFunction, text: str) -> None:
    with pytest.raises(FunctionError, match="data is not a JSON object"):
        rewritten(function, text)


SAMPLES: dict[str, Function] = {
    "arrow": f.arrow(lambda batch: batch.slice(0, 1)),
    "js": f.js(source="function transform(msg) { msg.data.a = 1; return msg }"),
    "omit": f.omit(fields=["a"]),
    "opfilter": f.opfilter(whitelist=["insert"]),
    "pick": f.pick(fields=["a"]),
    "pretty": f.pretty(),
    "python": f.python(lambda message: {**message.data, "a": 1}),
    "remap": f.remap(ns_map={"orders": "sales"}),
    "rename": f.rename(field_map={"a": "b"}),
    "skip": f.skip(field="a", operator="=~", match="x"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_used_function_survives_the_way_to_a_worker(name: str) -> None:
    function = SAMPLES[name]
    before = applied(function, '{"a":"x","c":1}')
    arrived = messages.shipped(function)
    assert applied(arrived, '{"a":"x","c":1}') == before
    if name not in ("python", "arrow"):  # lambdas equal nothing but themselves, and plain pickle takes none
        assert pickle.loads(pickle.dumps(function)) == arrived == function


@pytest.mark.parametrize("name", f.ALL)
def test_every_function_says_what_it_is_for(name: str) -> None:
    kind = f.ALL[name]
    assert name == "sql" or isinstance(SAMPLES[name], kind)
    assert kind.name == name
    assert kind.description
    assert all(setting.help and setting.example is not None for setting in settings_of(kind))


def test_importing_functions_and_adaptors_imports_neither_arrow_nor_spark() -> None:
    code = (
        "import sys, penstock.functions, penstock.functions.chain, penstock.adaptors;"
        "sys.exit(', '.join({'pyarrow', 'numpy', 'pyspark'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=SOURCE, check=True, timeout=60)
