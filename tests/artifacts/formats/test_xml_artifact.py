"""SpooledXmlArtifact: the projection to JSON, its queries, the way back to XML, and refused documents."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.formats.converter_tools import write_xml
from gateway.artifacts.formats.xml_artifact import SpooledXmlArtifact
from gateway.artifacts.formats.xml_parser import parse_xml
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import XmlParseFailed
from gateway.model.primitives.canonical_json import UNDEFINED
from tests.artifacts.formats.document_turns import ask

pytestmark = pytest.mark.anyio

CATALOGUE = """<?xml version="1.0" encoding="ISO-8859-1"?>
<!-- a catalogue -->
<catalogue year="2026">
  <book id="1"><title>Sword</title><price>12.50</price></book>
  <?render now?>
  <book id="2"><title>Möby</title><price>8</price></book>
  <open>true</open>
</catalogue>
"""
BOOKS = [{"_id": "1", "title": "Sword", "price": 12.5}, {"_id": "2", "title": "Möby", "price": 8}]


def xmldoc(text: str, **options: Any) -> SpooledXmlArtifact:
    return SpooledXmlArtifact(InMemoryReader(text), **options)


def project(text: str) -> dict[str, Any]:
    content: dict[str, Any] = parse_xml(text).content
    return content


@pytest.mark.parametrize(
    ("text", "content"),
    [
        pytest.param("<a/>", {"a": ""}, id="empty element"),
        pytest.param("<a>text</a>", {"a": "text"}, id="text alone is the value"),
        pytest.param("<a>  \n text \t</a>", {"a": "text"}, id="text is trimmed"),
        pytest.param('<a x="1"/>', {"a": {"_x": "1"}}, id="attribute, which stays text"),
        pytest.param('<a x="1">5</a>', {"a": {"_x": "1", "#text": 5}}, id="text beside an attribute"),
        pytest.param("<a><b/></a>", {"a": {"b": ""}}, id="child"),
        pytest.param("<a><b>1</b><c/><b>2</b><b/></a>", {"a": {"b": [1, 2, ""], "c": ""}}, id="repeated siblings"),
        pytest.param("<a>one<b/>two <c/> </a>", {"a": {"b": "", "c": "", "#text": "one two"}}, id="mixed content"),
        pytest.param("<a>x<!-- c -->y<?pi z?></a>", {"a": "xy"}, id="comments and instructions"),
        pytest.param("<a><![CDATA[<b>&]]></a>", {"a": "<b>&"}, id="character data"),
        pytest.param("<a>&lt;&#65;&amp;</a>", {"a": "<A&"}, id="references"),
        pytest.param('<n:a xmlns:n="u"><n:b/></n:a>', {"n:a": {"_xmlns:n": "u", "n:b": ""}}, id="prefixes"),
        pytest.param(
            '<a xmlns="u" xmlns:n="v" n:x="1"/>', {"a": {"_xmlns": "u", "_xmlns:n": "v", "_n:x": "1"}}, id="namespaces"
        ),
        pytest.param('<a xml:lang="en"/>', {"a": {"_xml:lang": "en"}}, id="the prefix xml"),
        pytest.param('<a b="&lt;&quot;">é</a>', {"a": {"_b": '<"', "#text": "é"}}, id="characters"),
        pytest.param('<a _b="1"><_b>2</_b></a>', {"a": {"__b": "1", "_b": 2}}, id="names with the prefix"),
        pytest.param('<a b="1"><_b>2</_b></a>', {"a": {"_b": ["1", 2]}}, id="attribute and child of one name"),
        pytest.param("\ufeff \n<?xml version='1.0'?><a/>", {"a": ""}, id="white space before the declaration"),
        pytest.param("", {}, id="nothing"),
        pytest.param(" \n\t", {}, id="blank"),
    ],
)
def test_projection(text: str, content: dict[str, Any]) -> None:
    assert project(text) == content


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("0", 0), ("7", 7), ("-7", -7), ("1.50", 1.5), ("1e3", 1000.0), ("-2.5E-1", -0.25), ("true", True)],
        *[("false", False), ("007", "007"), ("0x1F", "0x1F"), ("+1", "+1"), (".5", ".5"), ("1.", "1."), ("1,5", "1,5")],
        *[("True", "True"), ("null", "null"), ("NaN", "NaN"), ("1e999", "1e999"), ("1 2", "1 2"), ("٣", "٣")],
        ("999999999999999", 999999999999999),
        ("9999999999999999", "9999999999999999"),
        ("0.1234567890123456", "0.1234567890123456"),
        ("1" * 1_000, "1" * 1_000),
    ],
)
def test_text_that_spells_a_scalar_becomes_one(text: str, value: Any) -> None:
    found = project(f"<a>{text}</a>")["a"]

    assert (found, type(found)) == (value, type(value))


async def test_attribute_prefix_can_be_chosen() -> None:
    assert await xmldoc('<a b="1"/>', attribute_name_prefix="attr-").value() == {"a": {"attr-b": "1"}}


async def test_attributes_can_be_left_out() -> None:
    text = '<a xmlns="u" b="1"><c d="2">3</c></a>'

    assert await xmldoc(text, ignore_attributes=True).value() == {"a": {"c": 3}}


async def test_root_skips_the_declaration() -> None:
    assert await xmldoc(CATALOGUE).xml_root() == "catalogue"
    assert await xmldoc('<s:Envelope xmlns:s="u"/>').xml_root() == "s:Envelope"
    assert await xmldoc("").xml_root() is UNDEFINED


async def test_keys_are_those_under_the_root() -> None:
    assert await xmldoc(CATALOGUE).xml_keys() == ["_year", "book", "open"]
    assert await xmldoc('<a b="1">t</a>').xml_keys() == ["_b", "#text"]
    assert await xmldoc("<a>text</a>").xml_keys() == []
    assert await xmldoc("").xml_keys() == []


async def test_tags_are_sorted_and_without_attributes() -> None:
    assert await xmldoc(CATALOGUE).xml_tags() == ["book", "catalogue", "open", "price", "title"]
    assert await xmldoc("").xml_tags() == []


async def test_length_is_one_root_or_none() -> None:
    assert [await xmldoc(text).xml_length() for text in (CATALOGUE, "<a/>", "")] == [1, 1, 0]


async def test_paths_start_above_the_root() -> None:
    document = xmldoc(CATALOGUE)

    assert await document.xml_get("$.catalogue.book") == [BOOKS]
    assert await document.xml_get("$..book[?(@.price > 10)].title") == ["Sword"]
    assert await document.xml_get("$..book[?(@._id == 2)].title") == ["Möby"]
    assert await document.xml_pluck("$.catalogue._year") == ["2026"]
    assert await xmldoc("").xml_get("$") == []


@pytest.mark.parametrize(
    ("path", "elements"),
    [
        pytest.param("$..title", BOOKS, id="the elements around"),
        pytest.param("$..book[0].*", [BOOKS[0]], id="each once"),
        pytest.param("$..book[?(@.price < 10)]", "catalogue", id="the element around repeated siblings"),
        pytest.param("$.catalogue", "document", id="around the root"),
        pytest.param("$", [], id="nothing is around everything"),
        pytest.param("$..nothing", [], id="no match"),
    ],
)
async def test_filter_returns_the_elements_around_matches(path: str, elements: Any) -> None:
    document = xmldoc(CATALOGUE)
    content = await document.value()
    named = {"catalogue": [content["catalogue"]], "document": [content]}

    assert await document.xml_filter(path) == (named[elements] if isinstance(elements, str) else elements)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("<a><b></a>", "opening and ending tag mismatch: b line 1 and a (line 1:11)", id="wrong order"),
        pytest.param("\n\n<a>", "(line 3:4)", id="not closed"),
        pytest.param("<a/><b/>", "extra content at the end of the document (line 1:5)", id="two roots"),
        pytest.param("text", "start tag expected, '<' not found (line 1:1)", id="no markup"),
        pytest.param("<!-- only -->", "(line 1:14)", id="only a comment"),
        pytest.param("<!-- open", "(line 1:10)", id="open comment"),
        pytest.param('<a b="1" b="2"/>', "attribute b redefined (line 1:15)", id="doubled attribute"),
        pytest.param("<n:a/>", "namespace prefix n on a is not defined (line 1:5)", id="unknown prefix"),
        pytest.param("<a>\x01</a>", "(line 1:4)", id="control character"),
        pytest.param("<a>&unknown;</a>", "entity 'unknown' not defined (line 1:13)", id="unknown entity"),
        pytest.param("<a>" + "x" * 10_100_000 + "</a>", None, id="a text past the parser's limit"),
    ],
)
def test_bad_xml_is_refused_with_its_place(text: str, message: str | None) -> None:
    with pytest.raises(XmlParseFailed) as refused:
        project(text)

    assert message is None or refused.value.message.endswith(message)
    assert "\n" not in refused.value.message
    assert "HUGE" not in refused.value.message
    assert (refused.value.code, refused.value.status) == ("E_XML_PARSE_FAILED", 422)


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE a [<!ENTITY e "x">]>',
        '<!DOCTYPE a SYSTEM "file:///etc/passwd">',
        "<!doctype html>",
        '<?xml version="1.0"?>\n<!-- c --><?p i?>\n<!DOCTYPE a>',
    ],
)
def test_document_type_is_refused(doctype: str) -> None:
    with pytest.raises(XmlParseFailed, match="a document type and the entities it declares are not supported"):
        project(f"{doctype}<a>&e;</a>")


def test_text_about_document_types_is_harmless() -> None:
    assert project("<a><!-- <!DOCTYPE --><![CDATA[<!DOCTYPE]]></a>") == {"a": "<!DOCTYPE"}


def test_lists_count_toward_the_depth() -> None:
    with pytest.raises(XmlParseFailed, match="nested deeper than 256 levels"):
        project("<a><a/>" * 200 + "</a>" * 200)


async def test_forged_tools_answer_in_text() -> None:
    document = xmldoc(CATALOGUE)

    assert await ask(document, "artifact_xml_root") == "catalogue"
    assert await ask(xmldoc(""), "artifact_xml_root") == "(undefined)"
    assert await ask(document, "artifact_xml_keys") == "_year\nbook\nopen"
    assert await ask(document, "artifact_xml_tags") == "book\ncatalogue\nopen\nprice\ntitle"
    assert await ask(document, "artifact_xml_length") == "1"
    assert await ask(document, "artifact_xml_get", path="$..price") == "[\n  12.5,\n  8\n]"
    assert await ask(document, "artifact_xml_pluck", path="$..title") == "Sword\nMöby"
    assert await ask(document, "artifact_xml_filter", path="$..nothing") == "(empty list)"


def test_class_lists_only_its_own_tools() -> None:
    names = ["root", "keys", "tags", "length", "get", "pluck", "filter"]

    assert [method.name for method in SpooledXmlArtifact.tool_methods] == [f"artifact_xml_{name}" for name in names]
    assert [method.method for method in SpooledXmlArtifact.tool_methods] == [f"xml_{name}" for name in names]


@pytest.mark.parametrize(
    ("value", "body"),
    [
        pytest.param({"a": "x < y & z"}, "<a>x &lt; y &amp; z</a>", id="text"),
        pytest.param({"a": None}, "<a/>", id="null"),
        pytest.param({"a": True, "b": 1.0}, "<root>\n  <a>true</a>\n  <b>1</b>\n</root>", id="several keys"),
        pytest.param([1, [2]], "<root>\n  <item>1</item>\n  <item>\n    <item>2</item>\n  </item>\n</root>", id="list"),
        pytest.param({"a": [1, 2]}, "<root>\n  <a>1</a>\n  <a>2</a>\n</root>", id="a list is no root"),
        pytest.param({"_a": 1}, '<root a="1"/>', id="an attribute is no root"),
        pytest.param({"#text": "x"}, "<root>x</root>", id="text is no root"),
        pytest.param("x", "<root>x</root>", id="a bare text"),
        pytest.param({"a": {"_b": '"\n&', "#text": "t"}}, '<a b="&quot;&#10;&amp;">t</a>', id="attribute"),
        pytest.param({"a": {"#text": "t", "b": {"c": 1}}}, "<a>t<b><c>1</c></b></a>", id="mixed content in one line"),
        pytest.param({"a": {"b": []}}, "<a>\n</a>", id="empty list"),
        pytest.param(
            {"a": {"_": 1, "#text": {"x": 1}}},
            "<a>\n  <_>1</_>\n  <n_text>\n    <x>1</x>\n  </n_text>\n</a>",
            id="odd keys",
        ),
        pytest.param({"1 b": "\x00\ud800\r"}, "<n1_b>\ufffd\ufffd&#13;</n1_b>", id="what XML cannot carry"),
        pytest.param({"": 1}, "<n>1</n>", id="empty name"),
        pytest.param({"a:b": 1}, "<a_b>1</a_b>", id="unknown prefix"),
        pytest.param({"a:b": {"_xmlns:a": "u"}}, '<a:b xmlns:a="u"/>', id="declared prefix"),
        pytest.param({"a": {"_xmlns:x": ""}}, '<a xmlns_x=""/>', id="prefix of nothing"),
        pytest.param({"a": {"_xmlns:xmlx": "u"}}, '<a xmlns_xmlx="u"/>', id="reserved prefix"),
        pytest.param({"a": {"_xmlns": 5}}, "<a>\n  <_xmlns>5</_xmlns>\n</a>", id="namespace that is no text"),
        pytest.param({"a": {"_b c": 1, "_b_c": 2}}, '<a b_c="1">\n  <_b_c>2</_b_c>\n</a>', id="names that become one"),
        pytest.param(
            {"a": {"_xmlns:p": "u", "_xmlns:q": "u", "_p:x": 1, "_q:x": 2}},
            '<a xmlns:p="u" xmlns:q="u" p:x="1">\n  <_q_x>2</_q_x>\n</a>',
            id="attributes that mean the same",
        ),
    ],
)
def test_writing(value: Any, body: str) -> None:
    text = write_xml(value)

    assert text == f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'
    project(text)


KEYS = st.text() | st.sampled_from(
    ["_xmlns:a", "_xmlns:b", "_a:x", "_b:x", "a:y", "_xmlns", "#text", "_xml:lang", "_:"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["urn:x", "http://a:b", "a:"]),
    lambda children: st.lists(children) | st.dictionaries(KEYS, children),
    max_leaves=12,
)


@settings(deadline=None)  # a busy machine is not a failure
@given(VALUES)
def test_whatever_is_written_is_well_formed(value: Any) -> None:
    assert len(project(write_xml(value))) == 1


SCALARS = st.sampled_from(["", "x", "a b", 5, -1.5, True, False, "007", "<&>\"'", "true story", "é\nz"])
ATTRIBUTES = st.dictionaries(st.sampled_from(["_id", "_n:k", "_xml:lang"]), st.text("ab <&\"'\n1", max_size=5))
NAMES = st.sampled_from(["a", "b", "n:c", "item", "root", "é"])


def element(attributes: dict[str, str], children: dict[str, Any], text: Any) -> Any:
    content = attributes | children
    return content | {"#text": text} if content and text != "" else content or text


ELEMENTS = st.recursive(
    SCALARS,
    lambda inner: st.builds(
        element,
        ATTRIBUTES,
        st.dictionaries(NAMES, inner | st.lists(inner, min_size=2, max_size=3), max_size=3),
        SCALARS,
    ),
    max_leaves=10,
)


@settings(deadline=None)  # a busy machine is not a failure
@given(ELEMENTS)
def test_projection_survives_the_way_there_and_back(value: Any) -> None:
    content = {"r": {"_xmlns:n": "urn:n", "v": value}}

    assert project(write_xml(content)) == content
