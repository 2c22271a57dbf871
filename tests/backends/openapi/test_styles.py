"""How arguments are serialised: every style in every place, and every value that must not leave its place."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.openapi.document import InvalidArgument
from gateway.backends.openapi.request_builder import cookie_header, serialize_request
from gateway.backends.openapi.request_template import (
    BodyPart,
    RequestBody,
    RequestParameter,
    RequestTemplate,
    parse_request,
)

LIST = ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}
# place, style, explode, value, expected text for the name "color"
TABLE = [
    ("path", "simple", False, "blue", "/c/blue"),
    ("path", "simple", False, LIST, "/c/blue,black,brown"),
    ("path", "simple", False, OBJECT, "/c/R,100,G,200,B,150"),
    ("path", "simple", True, OBJECT, "/c/R=100,G=200,B=150"),
    ("path", "label", False, "blue", "/c/.blue"),
    ("path", "label", False, LIST, "/c/.blue,black,brown"),
    ("path", "label", True, LIST, "/c/.blue.black.brown"),
    ("path", "label", True, OBJECT, "/c/.R=100.G=200.B=150"),
    ("path", "label", False, OBJECT, "/c/.R,100,G,200,B,150"),
    ("path", "matrix", False, "blue", "/c/;color=blue"),
    ("path", "matrix", False, LIST, "/c/;color=blue,black,brown"),
    ("path", "matrix", True, LIST, "/c/;color=blue;color=black;color=brown"),
    ("path", "matrix", False, OBJECT, "/c/;color=R,100,G,200,B,150"),
    ("path", "matrix", True, OBJECT, "/c/;R=100;G=200;B=150"),
    ("query", "form", True, "", "/c?color="),
    ("query", "form", True, "blue", "/c?color=blue"),
    ("query", "form", True, LIST, "/c?color=blue&color=black&color=brown"),
    ("query", "form", False, LIST, "/c?color=blue,black,brown"),
    ("query", "form", True, OBJECT, "/c?R=100&G=200&B=150"),
    ("query", "form", False, OBJECT, "/c?color=R,100,G,200,B,150"),
    ("query", "form", True, [], "/c"),
    ("query", "form", True, None, "/c"),
    ("query", "spaceDelimited", False, LIST, "/c?color=blue%20black%20brown"),
    ("query", "spaceDelimited", False, OBJECT, "/c?color=R%20100%20G%20200%20B%20150"),
    ("query", "pipeDelimited", False, LIST, "/c?color=blue%7Cblack%7Cbrown"),
    ("query", "pipeDelimited", True, LIST, "/c?color=blue&color=black&color=brown"),
    ("query", "deepObject", True, OBJECT, "/c?color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150"),
    (
        "query",
        "deepObject",
        True,
        {"a": {"b": [1, True]}},
        "/c?color%5Ba%5D%5Bb%5D%5B0%5D=1&color%5Ba%5D%5Bb%5D%5B1%5D=true",
    ),
    ("query", "deepObject", True, ["x"], "/c?color%5B0%5D=x"),
]


def request(place: str, style: str, explode: bool, **rest: Any) -> RequestTemplate:
    path = "/c/{color}" if place == "path" else "/c"
    return RequestTemplate("GET", path, (RequestParameter("color", "color", place, style, explode, **rest),))  # type: ignore[arg-type]  # words from a table


@pytest.mark.parametrize(
    ("place", "style", "explode", "value", "target"),
    TABLE,
    ids=[
        f"{row[0]}-{row[1]}-{'exploded' if row[2] else 'joined'}-{type(row[3]).__name__}-{n}"
        for n, row in enumerate(TABLE)
    ],
)
def test_value_is_written_in_its_style(place: str, style: str, explode: bool, value: Any, target: str) -> None:
    assert serialize_request(request(place, style, explode), {"color": value}).target() == target


@pytest.mark.parametrize(
    ("explode", "value", "text"),
    [
        (False, "blue", "blue"),
        (False, LIST, "blue,black,brown"),
        (False, OBJECT, "R,100,G,200,B,150"),
        (True, OBJECT, "R=100,G=200,B=150"),
    ],
    ids=["scalar", "list", "object", "object-exploded"],
)
def test_header_is_written_in_simple_style(explode: bool, value: Any, text: str) -> None:
    assert serialize_request(request("header", "simple", explode), {"color": value}).headers["color"] == text


def test_cookies_are_joined_by_semicolons() -> None:
    two = RequestTemplate(
        "GET",
        "/c",
        (RequestParameter("a", "a", "cookie", "form", True), RequestParameter("b", "b", "cookie", "form", False)),
    )

    assert cookie_header(serialize_request(two, {"a": "x; y=1", "b": ["p", "q"]}).cookies) == "a=x%3B%20y%3D1; b=p,q"


def test_content_parameter_is_written_as_json() -> None:
    query = request("query", "form", True, as_json=True)

    assert (
        serialize_request(query, {"color": {"a": [1, "&"]}}).target() == "/c?color=%7B%22a%22%3A%5B1%2C%22%26%22%5D%7D"
    )


def test_reserved_characters_pass_where_they_may_but_never_start_another_pair() -> None:
    query = request("query", "form", True, reserved=True)

    assert serialize_request(query, {"color": "a/b:c?d&e=f#g%+"}).target() == "/c?color=a/b:c?d%26e%3Df%23g%25%2B"


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_value_that_would_change_the_path_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match="would change the path"):
        serialize_request(request("path", "simple", False), {"color": value})


@pytest.mark.parametrize("place", ["path", "query", "cookie"])
@given(value=st.text())
def test_no_text_leaves_its_place(place: str, value: str) -> None:
    try:
        parts = serialize_request(request(place, "simple" if place == "path" else "form", False), {"color": value})
    except InvalidArgument:
        return

    split = urlsplit(f"https://api.example.com{parts.target()}")
    assert (split.netloc, split.fragment) == ("api.example.com", "")
    if place == "path":
        assert split.path.count("/") == 2
        assert unquote(split.path.rpartition("/")[2]) == value
        assert split.query == ""
    elif place == "query":
        assert parse_qsl(split.query, keep_blank_values=True) == [("color", value)]
    else:
        assert [unquote(text) for pair in parts.cookies for text in pair] == ["color", value]


@given(value=st.text())
def test_no_text_in_a_header_ends_its_line(value: str) -> None:
    try:
        text = serialize_request(request("header", "simple", False), {"color": value}).headers["color"]
    except InvalidArgument:
        return

    assert text == value
    assert all(" " <= character <= "~" for character in text)


REFUSED = [
    ("crlf-in-a-header", "header", "simple", "a\r\nx: y", "has characters that are invalid in headers"),
    ("space-before-a-header", "header", "simple", " a", "has characters that are invalid in headers"),
    ("umlaut-in-a-header", "header", "simple", "ä", "has characters that are invalid in headers"),
    ("comma-in-a-header-list", "header", "simple", ["a,b"], "would become two"),
    ("object-inside-a-list", "query", "form", [{"a": 1}], "has a part that is not a text"),
    ("null-inside-a-list", "query", "form", [None], "has a part that is not a text"),
    ("half-a-character", "query", "form", "\ud800", "contains an unpaired surrogate"),
    ("nothing-in-a-path", "path", "simple", None, "was not given"),
    ("nothing-left-in-a-path", "path", "simple", [], "would change the path"),
    ("bracket-in-a-deep-key", "query", "deepObject", {"a][b": 1}, "has a key with a bracket"),
    (
        "deep-without-end",
        "query",
        "deepObject",
        {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}},
        "nested deeper",
    ),
]


@pytest.mark.parametrize(
    ("place", "style", "value", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_value_that_cannot_stand_there_is_refused(place: str, style: str, value: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        serialize_request(request(place, style, style == "deepObject"), {"color": value})


@pytest.mark.parametrize("key", ["admin", "api_key"])
def test_key_of_an_exploded_object_cannot_be_the_name_of_another_parameter(key: str) -> None:
    parameters = (
        RequestParameter("filter", "filter", "query", "form", True),
        RequestParameter("admin", "admin", "query", "form", True),
    )

    with pytest.raises(InvalidArgument, match="the name of another parameter"):
        serialize_request(RequestTemplate("GET", "/c", parameters), {"filter": {key: "1"}}, taken=["api_key"])


def body(kind: str, *parts: BodyPart, **rest: Any) -> RequestTemplate:
    return RequestTemplate("POST", "/c", body=RequestBody(kind, True, rest.pop("argument", None), parts, **rest))


FORM = "application/x-www-form-urlencoded"
BODIES = [
    (
        "json",
        body("application/json", BodyPart("a", "a"), BodyPart("b_body", "b")),
        {"a": 1, "b_body": {"x": "ä"}},
        b'{"a": 1, "b": {"x": "\xc3\xa4"}}',
    ),
    ("json-whole", body("application/json", argument="body"), {"body": [1, None]}, b"[1, null]"),
    ("form", body(FORM, BodyPart("a", "a"), BodyPart("b", "b")), {"a": "x&y=z", "b": [1, 2]}, b"a=x%26y%3Dz&b=1&b=2"),
    (
        "form-deep",
        body(FORM, BodyPart("m", "m", "deepObject")),
        {"m": {"k": "v", "l": [1]}},
        b"m%5Bk%5D=v&m%5Bl%5D%5B0%5D=1",
    ),
    ("form-object-as-json", body(FORM, BodyPart("m", "m")), {"m": {"k": 1}}, b"m=%7B%22k%22%3A%201%7D"),
    ("text", body("text/plain", argument="body"), {"body": "hé"}, "hé".encode()),
    ("bytes", body("application/octet-stream", argument="body", binary=True), {"body": "AAE="}, b"\x00\x01"),
    ("empty-object", body("application/json", BodyPart("a", "a")), {}, b"{}"),
]


@pytest.mark.parametrize(("request_", "args", "content"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_body_is_written_in_its_media_type(request_: RequestTemplate, args: dict[str, Any], content: bytes) -> None:
    parts = serialize_request(request_, args)

    assert parts.body == content
    assert request_.body is not None
    assert parts.headers["content-type"] == request_.body.media_type


def test_optional_body_without_arguments_is_not_sent() -> None:
    optional = RequestTemplate("POST", "/c", body=RequestBody("application/json", False, None, (BodyPart("a", "a"),)))

    parts = serialize_request(optional, {})

    assert parts.body is None
    assert "content-type" not in parts.headers


def test_parts_of_a_form_cannot_end_each_other() -> None:
    request_ = body(
        "multipart/form-data",
        BodyPart("note", 'no"te\r\nx: y'),
        BodyPart("file", "file", binary=True),
        BodyPart("tags", "tags"),
    )

    parts = serialize_request(request_, {"note": "--boundary\r\n", "file": "AAE=", "tags": ["p", "q"]})

    boundary = parts.headers["content-type"].partition("boundary=")[2].encode()
    assert parts.body is not None
    pieces = parts.body.removesuffix(b"--\r\n").split(b"--" + boundary)
    assert pieces == [
        b"",
        b'\r\nContent-Disposition: form-data; name="no%22te%0D%0Ax: y"\r\n\r\n--boundary\r\n\r\n',
        b'\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\x00\x01\r\n",
        b'\r\nContent-Disposition: form-data; name="tags"\r\n\r\np\r\n',
        b'\r\nContent-Disposition: form-data; name="tags"\r\n\r\nq\r\n',
        b"",
    ]


@pytest.mark.parametrize(
    ("request_", "args", "reason"),
    [
        (body("application/octet-stream", argument="body", binary=True), {"body": "no base64!"}, "is not base64"),
        (body("application/octet-stream", argument="body", binary=True), {}, "was not given"),
        (body("application/json", argument="body"), {"body": float("nan")}, "cannot be written as JSON"),
        (body(FORM, argument="body"), {"body": [1]}, "is not an object"),
        (body("text/plain", argument="body"), {"body": "\udfff"}, "contains an unpaired surrogate"),
    ],
    ids=["not-base64", "missing", "nan", "list-as-a-form", "half-a-character"],
)
def test_body_that_cannot_be_written_is_refused(request_: RequestTemplate, args: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        serialize_request(request_, args)


def test_request_is_the_same_after_it_was_written_down() -> None:
    request_ = RequestTemplate(
        "POST",
        "/a/{b}",
        (
            RequestParameter("b", "b", "path", "matrix", True),
            RequestParameter("c_d", "c[d]", "query", "deepObject", True),
            RequestParameter("e", "e", "query", "form", False, reserved=True),
            RequestParameter("f", "f", "query", "form", True, as_json=True),
        ),
        RequestBody(
            "multipart/form-data",
            True,
            None,
            (BodyPart("x", "y", "form", False, binary=True, media_type="image/png"), BodyPart("z", "z")),
        ),
        "application/json",
    )

    assert parse_request(request_.to_data()) == request_


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"method": "TRACE", "path": "/"},
        {"method": "GET", "path": "evil.example/"},
        {"method": "GET", "path": "/", "accept": "a/b\r\nx: y"},
        {"method": "GET", "path": "/", "parameters": [{"argument": "a", "in": "body"}]},
        {"method": "GET", "path": "/", "parameters": [{"argument": "a", "in": "path", "style": "form"}]},
        {"method": "POST", "path": "/", "body": {"mediaType": "a\r\n/b"}},
    ],
    ids=["nothing", "method", "path", "accept", "place", "style", "media-type"],
)
def test_request_that_was_never_written_down_so_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_request(data)
