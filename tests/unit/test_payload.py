from __future__ import annotations

import math
from typing import Any

import bson
import pytest

from models.errors import Unparseable
from webhook.payload import DEEPEST_STORED, read_object, storable


def nested(levels: int, *, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return opening * levels + b"1" + closing * levels


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a":1}', {"a": 1}),
        (b' \n{"a" : 1}\t\r\n', {"a": 1}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'{"a":"\\/\\u00e9\xc3\xa9"}', {"a": "/éé"}),
        (b'{"a":Infinity,"b":-Infinity}', {"a": math.inf, "b": -math.inf}),
        (b'{"a":"\\ud800"}', {"a": "\ud800"}),
        (b'{"\\ud800":1}', {"\ud800": 1}),
        (b'{"a":-9223372036854775808,"b":9223372036854775807}', {"a": -(2**63), "b": 2**63 - 1}),
        (b'{"a":18446744073709551615}', {"a": 2**64 - 1}),
        (b'{"a\\u0000b":1}', {"a\x00b": 1}),
        (b'{"$set":{"a.b":1},"":2}', {"$set": {"a.b": 1}, "": 2}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b"{}", {}),
    ],
)
def test_everything_that_is_a_json_object_is_read(raw: bytes, value: dict[str, Any]) -> None:
    assert read_object(raw) == value


def test_nan_is_read_as_no_number() -> None:
    assert math.isnan(read_object(b'{"a":NaN}')["a"])


@pytest.mark.parametrize("digits", [b"18446744073709551616", b"36893488147419103231"])
def test_integers_of_65_bits_are_numbers_that_are_no_amount(digits: bytes) -> None:
    assert read_object(b'{"a":' + digits + b"}")["a"] == pytest.approx(int(digits))


@pytest.mark.parametrize("sign", [b"", b"-"])
def test_integers_of_thousands_of_digits_are_read(sign: bytes) -> None:
    digits = sign + b"9" * 5000
    # NaN beside it leads to the tolerant reader
    assert read_object(b'{"n":NaN,"a":' + digits + b"}")["a"] == digits.decode()
    assert not isinstance(read_object(b'{"a":' + digits + b"}")["a"], int)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"[]",
        b'[{"a":1}]',
        b"null",
        b"true",
        b"7",
        b'"text"',
        b"NaN",
        b"{",
        b'{"a":1}}',
        b'{"a":1}{"a":1}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":01}',
        b'{"a":"\xff"}',
        b"\xff\xfe\x00",
        b"\x00",
        b'{"a":"\x00"}',
        b"event=payment.captured",
        b"<xml/>",
        nested(10_000, opening=b"[", closing=b"]"),
        b"[" * 10_000,
        b'{"a":' * 10_000,
    ],
    ids=lambda raw: ascii(raw)[2:22],
)
def test_everything_else_is_unparseable(raw: bytes) -> None:
    with pytest.raises(Unparseable):
        read_object(raw)


def test_ten_thousand_levels_are_unparseable_or_not_stored_but_never_a_crash() -> None:
    try:
        body = read_object(nested(10_000))
    except Unparseable:
        return
    assert storable(body) is None


def test_depth_is_measured_without_recursion() -> None:
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"a": [deep]}
    assert storable(deep) is None
    while deep:  # taken apart level by level, since freeing it at once is deep too
        deep = deep["a"][0]


@pytest.mark.parametrize(("opening", "closing"), [(b'{"a":', b"}"), (b'{"a":[', b"]}")])
def test_what_is_nested_as_deep_as_allowed_is_stored_and_one_level_more_is_not(opening: bytes, closing: bytes) -> None:
    per_step = opening.count(b"{") + opening.count(b"[")
    fits = read_object(nested(DEEPEST_STORED // per_step - 1, opening=opening, closing=closing))
    assert storable(fits) == fits
    assert storable(read_object(nested(DEEPEST_STORED // per_step, opening=opening, closing=closing))) is None


def test_what_a_server_would_refuse_as_too_deep_is_never_stored() -> None:
    assert storable(read_object(nested(100))) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":NaN}',
        b'{"a":1e400}',
        b'{"$set":{"a.b":1},"a.b":{"$c":1},"":2}',
        b'{"a":18446744073709551616}',
        b'{"a":"\\u0000"}',
        b'{"a":[1,"x",null,true,{"b":[]}]}',
        b'{"a":9223372036854775807}',
        b"{}",
    ],
)
def test_what_bson_can_hold_is_stored_as_it_is(raw: bytes) -> None:
    body = read_object(raw)
    assert storable(body) is body
    assert list(bson.decode(bson.encode(body))) == list(body)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":"\\ud800"}',
        b'{"\\ud800":1}',
        b'{"a":{"b":["\\udfff"]}}',
        b'{"a":9223372036854775808}',
        b'{"n":NaN,"a":18446744073709551616}',
        b'{"a":{"b\\u0000c":1}}',
    ],
)
def test_what_bson_cannot_hold_is_left_out_and_is_no_error(raw: bytes) -> None:
    assert storable(read_object(raw)) is None
