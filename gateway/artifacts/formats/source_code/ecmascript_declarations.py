"""Extracts declarations, imports and exports from the syntax tree of an ECMAScript or TypeScript source.

Top level and syntax only: names are not resolved, and CommonJS is not recognised. In regions that the
parser could not parse, headings (`class A`, `export const b`) are recognised outside of brackets.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from gateway.artifacts.formats.source_code.source_facts import (
    MAX_ENTRIES,
    ByteSpan,
    Declaration,
    FactCollector,
    Facts,
    SourceText,
    SyntaxNode,
    bracket_depth,
    children,
    span_of,
)

IDENTIFIERS: Final = frozenset(
    {
        "identifier",
        "private_property_identifier",
        "property_identifier",
        "shorthand_property_identifier",
        "shorthand_property_identifier_pattern",
        "statement_identifier",
        "type_identifier",
        "undefined",
    }
)

_KINDS: Final = {
    "abstract_class_declaration": "class",
    "class": "class",
    "class_declaration": "class",
    "enum_declaration": "enum",
    "function_declaration": "function",
    "function_expression": "function",
    "function_signature": "function",
    "generator_function": "function",
    "generator_function_declaration": "function",
    "interface_declaration": "interface",
    "type_alias_declaration": "type",
}
_VARIABLES: Final = frozenset({"lexical_declaration", "using_declaration", "variable_declaration"})
_WITHOUT_KIND: Final = frozenset({"import_alias", "internal_module", "module"})
_DECLARING: Final = _WITHOUT_KIND | _VARIABLES | _KINDS.keys()
_NAMES: Final = frozenset({"identifier", "nested_identifier", "string"})
_VARIABLE_KINDS: Final = {"let": "let", "var": "var"}
_WITH_BODY: Final = frozenset({"arrow_function", "class", "function_expression", "generator_function"})
_TYPES_ONLY: Final = frozenset({"interface_declaration", "type_alias_declaration"})
_WITH_MEMBERS: Final = frozenset({"class", "interface"})

_METHODS: Final = frozenset({"abstract_method_signature", "method_definition", "method_signature"})
_FIELDS: Final = frozenset({"field_definition", "public_field_definition"})
_SIGNATURES: Final = frozenset({"call_signature", "construct_signature", "index_signature", "property_signature"})
_ACCESSORS: Final = frozenset({"accessor", "get", "set"})
_NAMELESS: Final = {"call_signature": "()", "construct_signature": "new ()"}

_PATTERN_TARGETS: Final = {
    "assignment_pattern": "left",
    "object_assignment_pattern": "left",
    "pair_pattern": "value",
}
_PATTERNS: Final = frozenset({"array_pattern", "object_pattern", "rest_pattern"})
_BOUND_NAMES: Final = frozenset({"identifier", "shorthand_property_identifier_pattern"})

_HEADING_WORDS: Final = frozenset({"abstract", "async", "declare", "default", "export", "*"})
_HEADING_KINDS: Final = {
    "class": "class",
    "const": "const",
    "enum": "enum",
    "function": "function",
    "interface": "interface",
    "let": "let",
    "type": "type",
    "var": "var",
}
_HEADING_NAMES: Final = frozenset({"identifier", "type_identifier"})


@dataclass(frozen=True, slots=True)
class _Item:
    """A statement or member, with the decorators and doc comments before it."""

    node: SyntaxNode
    start: int
    docs: list[ByteSpan]
    depth: int

    @property
    def span(self) -> ByteSpan:
        return self.start, self.node.end_byte


def extract_ecmascript_facts(root: SyntaxNode, source: SourceText) -> Facts:
    findings = FactCollector(source)
    exported: set[str] = set()
    for item in _top_level(root, source):
        if item.node.type == "ERROR":
            _record_broken(item, findings)
        elif item.node.type == "import_statement":
            _import(item.node, findings)
        elif item.node.type == "export_statement":
            exported |= _export(item, findings)
        else:
            _declare(item.node, item, findings, exported=False)
    for symbol in findings.facts.symbols:
        symbol["exported"] = symbol["exported"] or symbol["name"] in exported
    findings.facts.exports.sort(key=lambda entry: int(entry["line"]))
    return findings.finish()


def _top_level(root: SyntaxNode, source: SourceText) -> Iterator[_Item]:
    """Yield statements in order, also in broken regions. Imports and exports are always top level."""
    if root.type == "ERROR":
        yield _Item(root, root.start_byte, [], 0)
    pending = [_items(root, source)]
    while pending:
        item = next(pending[-1], None)
        if item is None:
            pending.pop()
        elif item.depth == 0 or item.node.type in ("import_statement", "export_statement"):
            yield item
            if item.node.type == "ERROR":
                pending.append(_items(item.node, source))


def _items(parent: SyntaxNode, source: SourceText) -> Iterator[_Item]:
    """Yield the items of a list of statements or members. A comment after an item on its line belongs to it."""
    docs: list[ByteSpan] = []
    start: int | None = None
    depth = 0
    end = parent.start_byte
    follows_item = False
    for node in children(parent):
        if source.has_newline(end, node.start_byte):
            docs = [] if follows_item else docs
            follows_item = False
        end = node.end_byte
        if node.type == "comment":
            docs += [span_of(node)] if _is_doc(node, source) else []
        elif node.type == "decorator":
            start = node.start_byte if start is None else start
        elif node.is_named:
            yield _Item(node, node.start_byte if start is None else start, docs, depth)
            docs, start, follows_item = [], None, True
        else:
            depth = bracket_depth(depth, node.type)
            follows_item = True


def _is_doc(comment: SyntaxNode, source: SourceText) -> bool:
    return source.data.startswith(b"/**", comment.start_byte) and comment.end_byte - comment.start_byte > len("/**/")


def _import(node: SyntaxNode, findings: FactCollector) -> None:
    source = findings.source
    entry: dict[str, Any] = {"moduleSpecifier": "", "named": []}
    type_only = False
    for child in children(node):
        if child.type in ("type", "typeof"):
            type_only = True
        elif child.type == "string":
            entry["moduleSpecifier"] = source.unquote(child)
        elif child.type in ("import_clause", "import_require_clause"):
            _import_clause(child, entry, findings)
    findings.add()
    findings.facts.imports.append({**entry, "typeOnly": type_only, "line": source.line(node.start_byte)})


def _import_clause(clause: SyntaxNode, entry: dict[str, Any], findings: FactCollector) -> None:
    source = findings.source
    for child in children(clause):
        if child.type == "identifier":
            entry["default"] = source.text(child)
        elif child.type == "string":  # import x = require("x")
            entry["moduleSpecifier"] = source.unquote(child)
        elif child.type == "namespace_import":
            entry["namespace"] = "".join(source.text(name) for name in children(child) if name.type == "identifier")
        elif child.type == "named_imports":
            entry["named"] = [outer for _, outer in _specifiers(child, findings)]


def _specifiers(clause: SyntaxNode, findings: FactCollector) -> list[tuple[str, str]]:
    """Return both names of each `a as b` of an import or export; without `as` they are the same."""
    found = []
    for child in children(clause):
        if name := child.child_by_field_name("name"):
            findings.add()
            alias = child.child_by_field_name("alias") or name
            found.append((findings.source.unquote(name), findings.source.unquote(alias)))
    return found


def _export(item: _Item, findings: FactCollector) -> set[str]:
    """Record one export statement; return the exported names that are declared elsewhere."""
    source = findings.source
    named: list[str] = []
    elsewhere: set[str] = set()
    specifier: str | None = None
    words: set[str] = set()
    for child in children(item.node):
        if child.type == "export_clause":
            pairs = _specifiers(child, findings)
            named += [outer for _, outer in pairs]
            elsewhere |= {inner for inner, _ in pairs}
        elif child.type == "namespace_export":
            named += [source.unquote(name) for name in children(child) if name.type in ("identifier", "string")]
            words.add("*")
        elif child.type == "string":
            specifier = source.unquote(child)
        elif child.type == "identifier":
            named += [source.text(child)] if "namespace" in words else []
            elsewhere.add(source.text(child))
        elif child.type == "ERROR":  # the grammar does not know `export type *`
            words |= {word.type for word in children(child)}
        elif child.is_named:
            words |= {"type"} if child.type in _TYPES_ONLY else set()
            named += [name for name in _declare(child, item, findings, exported=True) if name != "default"]
        else:
            words.add(child.type)
    _record_export(findings, item.start, named, words, specifier)
    return elsewhere if specifier is None else set()


def _record_export(
    findings: FactCollector, start: int, named: list[str], words: Collection[str], specifier: str | None = None
) -> None:
    findings.add()
    findings.facts.exports.append(
        {
            "line": findings.source.line(start),
            **({} if specifier is None else {"moduleSpecifier": specifier}),
            "named": named,
            "isDefault": "default" in words or "=" in words or "default" in named,
            "isNamespaceReExport": "*" in words,
            "isTypeOnly": "type" in words,
        }
    )


def _declare(node: SyntaxNode, item: _Item, findings: FactCollector, *, exported: bool) -> list[str]:
    """Record the declarations of one statement; return their names."""
    source = findings.source
    if node.type in ("ambient_declaration", "expression_statement"):
        # An expression never starts with `function` or `class`: this is a truncated declaration.
        inner = [child for child in children(node) if child.type in _DECLARING]
        return [name for child in inner for name in _declare(child, item, findings, exported=exported)]
    if node.type in _WITHOUT_KIND:
        return [source.unquote(name) for name in children(node) if name.type in _NAMES][:1]
    names: list[str] = []
    for declaration in _declarations(node, item, source):
        names.append(declaration.name)
        findings.declare(declaration, exported=exported)
        if declaration.kind in _WITH_MEMBERS and (body := node.child_by_field_name("body")):
            members = _members(_items(body, source), declaration.kind, source)
            findings.outline(declaration.kind, declaration.name, declaration.span, members)
    return names


def _declarations(node: SyntaxNode, item: _Item, source: SourceText) -> Iterator[Declaration]:
    if node.type in _VARIABLES:
        yield from _bindings(node, item, source)
    elif node.type in _KINDS:
        yield _to_declaration(node, item, source)


def _to_declaration(node: SyntaxNode, item: _Item, source: SourceText) -> Declaration:
    name = node.child_by_field_name("name")
    nameless = "default" if item.node.type == "export_statement" else ""
    return Declaration(
        _KINDS[node.type],
        source.text(name) if name else nameless,
        item.span,
        [_head(item.span, node, source)],
        item.docs,
    )


def _head(span: ByteSpan, node: SyntaxNode, source: SourceText) -> ByteSpan:
    body = node.child_by_field_name("body")
    return source.trim((span[0], body.start_byte if body else span[1]))


def _bindings(node: SyntaxNode, item: _Item, source: SourceText) -> Iterator[Declaration]:
    word = node.child_by_field_name("kind")
    kind = _VARIABLE_KINDS.get(source.text(word) if word else "var", "const")
    before: ByteSpan | None = None
    for each in _items(node, source):
        if each.node.type == "variable_declarator" and (target := each.node.child_by_field_name("name")):
            before = before or (item.start, each.start)
            signature = [before, _without_body(each.span, each.node, source)]
            for name in _find_bound_names(target, source):
                yield Declaration(kind, name, each.span, signature, [*item.docs, *each.docs])


def _without_body(span: ByteSpan, node: SyntaxNode, source: SourceText) -> ByteSpan:
    value = node.child_by_field_name("value")
    if value and value.type in _WITH_BODY:
        return _head(span, value, source)
    return source.truncate_value(span, value)


def _find_bound_names(target: SyntaxNode, source: SourceText) -> Iterator[str]:
    pending = [target]
    while pending:
        node = pending.pop()
        if node.type in _BOUND_NAMES:
            yield source.text(node)
        elif node.type in _PATTERNS:
            pending += reversed([child for child in children(node) if child.is_named])
        elif (part := _PATTERN_TARGETS.get(node.type)) and (inner := node.child_by_field_name(part)):
            pending.append(inner)


def _members(items: Iterable[_Item], owner: str, source: SourceText) -> Iterator[Declaration]:
    for item in items:
        if kind := _member_kind(item.node, owner):
            head = _without_body if item.node.type in _FIELDS else _head
            signature = [head(item.span, item.node, source)]
            yield Declaration(kind, _member_name(item.node, source), item.span, signature, item.docs)


def _member_kind(node: SyntaxNode, owner: str) -> str | None:
    """Return the kind as TypeScript names it: members of an interface are signatures, unless they are accessors."""
    if node.type in _SIGNATURES:
        return "signature"
    if node.type not in _METHODS and node.type not in _FIELDS:
        return None
    if any(child.type in _ACCESSORS for child in children(node) if not child.is_named):
        return "accessor"
    if owner == "interface":
        return "signature"
    return "method" if node.type in _METHODS else "property"


def _member_name(node: SyntaxNode, source: SourceText) -> str:
    if node.type == "index_signature":
        return source.text(node).partition("]")[0] + "]"
    name = node.child_by_field_name("name") or node.child_by_field_name("property")
    return source.unquote(name) if name else _NAMELESS[node.type]


def _record_broken(region: _Item, findings: FactCollector) -> None:
    """Record headings in a broken region, and the members after the heading of a class or interface."""
    source = findings.source
    headings = [*islice(_headings(region, source), MAX_ENTRIES + 1)]
    starts = [declaration.span[0] for declaration, _ in headings]
    behind: list[list[_Item]] = [[] for _ in headings]
    for item in _items(region.node, source):
        if item.depth == 1 and (index := bisect_right(starts, item.start)):
            behind[index - 1].append(item)
    for (declaration, words), items in zip(headings, behind, strict=True):
        findings.declare(declaration, exported="export" in words)
        if "export" in words:
            _record_export(findings, declaration.span[0], [declaration.name], words - {"*"})
        if declaration.kind in _WITH_MEMBERS:
            members = _members(items, declaration.kind, source)
            findings.outline(declaration.kind, declaration.name, declaration.span, members)


def _headings(region: _Item, source: SourceText) -> Iterator[tuple[Declaration, set[str]]]:
    """Yield the declaration of each heading, with the keywords before its name."""
    docs = region.docs
    words: list[SyntaxNode] = []
    depth = 0
    for node in children(region.node):
        depth = bracket_depth(depth, node.type)
        if depth == 0 and (node.type in _HEADING_WORDS or node.type in _HEADING_KINDS):
            words.append(node)
            continue
        kinds = [_HEADING_KINDS[word.type] for word in words if word.type in _HEADING_KINDS]
        if kinds and depth == 0 and node.type in _HEADING_NAMES:
            start = words[0].start_byte
            signature = source.trim((start, source.line_end(node.end_byte)), b"{=; \t\r\n")
            span = start, region.node.end_byte
            yield Declaration(kinds[-1], source.text(node), span, [signature], docs), {word.type for word in words}
            docs = []
        words = []
