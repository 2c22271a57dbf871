"""Extracts declarations, imports and exports from the syntax tree of a Python source.

Module level includes the bodies of `if`, `try`, `with`, loops and `match`, since they bind names of the
module, too; loop variables and `with … as` are not declarations. Syntax only: `__all__` is read only
as far as it is a literal. In regions that the parser could not parse, indentation decides.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gateway.artifacts.formats.source_code.source_facts import (
    ByteSpan,
    Declaration,
    FactCollector,
    Facts,
    SourceText,
    SyntaxNode,
    children,
    span_of,
)

MODULE: Final = ""
"""The name of the module's own docstring."""

_TRANSPARENT: Final = frozenset(
    {
        "block",
        "case_clause",
        "elif_clause",
        "else_clause",
        "except_clause",
        "except_group_clause",
        "finally_clause",
        "for_statement",
        "if_statement",
        "match_statement",
        "try_statement",
        "while_statement",
        "with_statement",
    }
)
_IMPORTS: Final = frozenset({"future_import_statement", "import_from_statement", "import_statement"})
_IMPORTED: Final = frozenset({"aliased_import", "dotted_name", "wildcard_import"})
_DEFINITIONS: Final = {"class_definition": "class", "function_definition": "function"}
_HEADINGS: Final = {"class": "class", "def": "function"}
_PATTERNS: Final = frozenset({"list_pattern", "list_splat_pattern", "pattern_list", "tuple_pattern"})
_LISTS: Final = frozenset({"list", "tuple"})
_LISTED_IN: Final = _LISTS | {"argument_list", "binary_operator", "parenthesized_expression"}
_LISTING_CALLS: Final = frozenset({"__all__.append", "__all__.extend"})
_PROPERTIES: Final = frozenset({"cached_property", "deleter", "getter", "property", "setter"})
_MEMBER_KINDS: Final = {"class": "class", "function": "method", "type": "attribute", "variable": "attribute"}
_INITIALISERS: Final = frozenset({"__init__", "__post_init__"})
_TYPE_CHECKING: Final = frozenset({"TYPE_CHECKING", "typing.TYPE_CHECKING"})
_DEEPEST_INDENT: Final = 256


@dataclass(frozen=True, slots=True)
class _Symbol:
    """A declaration, and what is needed to read the members of a class: its definition, or its broken remains."""

    declaration: Declaration
    decorators: frozenset[str] = frozenset()
    definition: SyntaxNode | None = None
    remains: "list[_Symbol]" = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.declaration.kind

    @property
    def name(self) -> str:
        return self.declaration.name


@dataclass(slots=True)
class _Module:
    """The imported names of a module and those in `__all__`, with their lines."""

    imported: dict[str, int] = field(default_factory=dict)
    listed: dict[str, int] | None = None
    """The names in `__all__`; `None` if it is missing or computed."""


def extract_python_facts(root: SyntaxNode, source: SourceText) -> Facts:
    findings = FactCollector(source)
    module = _Module()
    variables: set[str] = set()
    classes: list[tuple[str, _Symbol]] = []
    for found in _declarations(_read_statements(root, findings, module), source, margin=True):
        if found.kind == "variable":
            if found.name in variables:
                continue
            variables.add(found.name)
        findings.declare(found.declaration, exported=not found.name.startswith("_"))
        if found.kind == "class":
            classes.append((found.name, found))
    _outline(classes, findings)
    facts = findings.finish()
    facts.exports = _exports(module, facts.symbols)
    facts.docs[MODULE] = _docstring(root, source)
    return facts


def _statements(parent: SyntaxNode, source: SourceText, *, margin: bool) -> Iterator[tuple[SyntaxNode, bool]]:
    """Yield statements in order, and whether each is for type checkers only.

    With `margin`, indented statements of a broken region are left out.
    """
    if parent.type == "ERROR":
        yield parent, False
    pending = [(children(parent), False, False, parent.type == "ERROR")]
    while pending:
        nodes, for_types, types_in_block, broken = pending[-1]
        node = next(nodes, None)
        if node is None:
            pending.pop()
        elif node.type in _TRANSPARENT:
            inside = for_types or (types_in_block and node.type == "block")
            pending.append((children(node), inside, _is_type_checking(node, source), broken))
        elif node.type == "ERROR":
            yield node, for_types
            pending.append((children(node), for_types, False, True))
        elif not (broken and margin and _indent(node.start_byte, source)):
            yield node, for_types


def _is_type_checking(node: SyntaxNode, source: SourceText) -> bool:
    condition = node.child_by_field_name("condition")
    return condition is not None and source.text(condition) in _TYPE_CHECKING


def _indent(offset: int, source: SourceText) -> int:
    before = source.data[max(offset - _DEEPEST_INDENT, 0) : offset]
    return len(before) - before.rfind(b"\n") - 1


def _read_statements(root: SyntaxNode, findings: FactCollector, module: _Module) -> Iterator[SyntaxNode]:
    """Yield the statements of a module; record imports and `__all__` on the way."""
    source = findings.source
    for node, for_types in _statements(root, source, margin=True):
        if node.type in _IMPORTS:
            line = source.line(node.start_byte)
            for entry, names in _imports(node, source):
                findings.add(1 + len(names))
                findings.facts.imports.append({**entry, "typeOnly": for_types, "line": line})
                module.imported |= dict.fromkeys(names, line)
        elif node.type == "expression_statement":
            _read_all_names(node, findings, module)
        yield node


def _imports(node: SyntaxNode, source: SourceText) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield each module that a statement imports, with the names it binds."""
    origin = node.child_by_field_name("module_name")
    names: list[str] = []
    before_names = True
    for child in children(node):
        if before_names or child.type not in _IMPORTED:
            before_names = before_names and child.type != "import"
            continue
        name = source.text(child.child_by_field_name("name") or child)
        alias = child.child_by_field_name("alias")
        if node.type == "import_statement":
            bound = source.text(alias) if alias else name.partition(".")[0]
            yield {"moduleSpecifier": name, "named": [], "namespace": bound}, [bound]
        else:
            names.append(source.text(alias) if alias else name)
    if node.type != "import_statement":
        specifier = "".join(source.text(origin).split()) if origin else "__future__"
        yield {"moduleSpecifier": specifier, "named": names}, names


def _read_all_names(statement: SyntaxNode, findings: FactCollector, module: _Module) -> None:
    source = findings.source
    for node in children(statement):
        target = node.child_by_field_name("left") or node.child_by_field_name("function")
        if target is None or source.text(target) not in _LISTING_CALLS | {"__all__"}:
            continue
        value = node.child_by_field_name("right") or node.child_by_field_name("arguments")
        names = {} if value is None else dict(_literal_names(value, source))
        if names or (value and value.type in _LISTS):
            findings.add(len(names))
            module.listed = (module.listed or {}) | names


def _literal_names(value: SyntaxNode, source: SourceText) -> Iterator[tuple[str, int]]:
    pending = [value]
    while pending:
        node = pending.pop()
        if node.type in _LISTED_IN:
            pending += reversed([*children(node)])
        elif content := _string_content(node, source):
            yield source.data[slice(*content)].decode(), source.line(node.start_byte)


def _exports(module: _Module, symbols: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the names in `__all__`, else the public ones. `kind` is absent if the module does not bind the name."""
    names = module.listed
    if names is None:
        names = {symbol["name"]: symbol["startLine"] for symbol in symbols if symbol["exported"]}
    declared = {symbol["name"]: symbol for symbol in reversed(symbols)}
    entries: list[dict[str, Any]] = []
    for symbol in symbols:
        symbol["exported"] = symbol["name"] in names
    for name, line in names.items():
        if name in declared:
            entries.append({"name": name, "kind": declared[name]["kind"], "line": declared[name]["startLine"]})
        elif name in module.imported:
            entries.append({"name": name, "kind": "import", "line": module.imported[name]})
        else:
            entries.append({"name": name, "line": line})
    return entries


def _declarations(statements: Iterable[SyntaxNode], source: SourceText, *, margin: bool) -> Iterator[_Symbol]:
    """Yield the declarations of statements. A string right after an assignment is its docstring."""
    pending: list[_Symbol] = []
    for node in statements:
        if node.type == "comment":
            continue
        if pending and (doc := _string_statement(node, source)):
            pending[0].declaration.docs.append(doc)  # one list for all names of the assignment
        yield from pending
        pending = []
        if node.type in _DEFINITIONS or node.type == "decorated_definition":
            yield from _definition(node, source)
        elif node.type == "expression_statement":
            pending = [_Symbol(each) for each in _assignments(node, source)]
        elif node.type == "type_alias_statement":
            yield from _type_alias(node, source)
        elif node.type == "ERROR":
            yield from _remains(node, source, margin=margin)
    yield from pending


def _definition(node: SyntaxNode, source: SourceText) -> Iterator[_Symbol]:
    definition = node.child_by_field_name("definition") or node
    name = definition.child_by_field_name("name")
    if name is None or definition.type not in _DEFINITIONS:
        return
    colon = next((child.start_byte for child in children(definition) if child.type == ":"), definition.end_byte)
    body = definition.child_by_field_name("body")
    declaration = Declaration(
        _DEFINITIONS[definition.type],
        source.text(name),
        span_of(node),
        [source.trim((node.start_byte, colon))],
        _docstring(body, source) if body else [],
    )
    yield _Symbol(declaration, _decorators(node, source), definition)


def _decorators(node: SyntaxNode, source: SourceText) -> frozenset[str]:
    """Return the last names of decorators: `setter` for `@size.setter`."""
    texts = [source.text(child) for child in children(node) if child.type == "decorator"]
    return frozenset(text.partition("(")[0].rpartition(".")[2].lstrip("@").strip() for text in texts)


def _docstring(body: SyntaxNode, source: SourceText) -> list[ByteSpan]:
    first = next((child for child in children(body) if child.type != "comment"), None)
    content = _string_statement(first, source) if first else None
    return [content] if content else []


def _string_statement(node: SyntaxNode, source: SourceText) -> ByteSpan | None:
    if node.type != "expression_statement":
        return None
    only = next(children(node))
    return _string_content(only, source)


def _string_content(node: SyntaxNode, source: SourceText) -> ByteSpan | None:
    """Return the span between the quotes of a plain string; `None` for bytes, f-strings and anything else."""
    if node.type != "string":
        return None
    parts = [*children(node)]
    if parts[-1].type != "string_end" or not source.text(parts[0]).lower().strip("ru").startswith(("'", '"')):
        return None
    return parts[0].end_byte, parts[-1].start_byte


def _assignments(statement: SyntaxNode, source: SourceText) -> list[Declaration]:
    targets, value = _assignment_targets(statement)
    span = span_of(statement)
    signature = [source.truncate_value(span, value)]
    docs: list[ByteSpan] = []
    names = [source.text(target) for target in targets if target.type == "identifier"]
    return [Declaration("variable", name, span, signature, docs) for name in names]


def _assignment_targets(statement: SyntaxNode) -> tuple[list[SyntaxNode], SyntaxNode | None]:
    """Return all targets of `a = b, (c, *d) = value`, and the value."""
    targets: list[SyntaxNode] = []
    value = next((child for child in children(statement) if child.type == "assignment"), None)
    while value and value.type == "assignment":
        pending = [left] if (left := value.child_by_field_name("left")) else []
        while pending:
            node = pending.pop()
            if node.type in _PATTERNS:
                pending += reversed([child for child in children(node) if child.is_named])
            else:
                targets.append(node)
        value = value.child_by_field_name("right")
    return targets, value


def _type_alias(node: SyntaxNode, source: SourceText) -> Iterator[_Symbol]:
    name = node.child_by_field_name("left")
    while name and name.type != "identifier":
        name = next(children(name), None)
    if name:
        signature = [source.trim(span_of(node))]
        yield _Symbol(Declaration("type", source.text(name), span_of(node), signature, []))


def _outline(classes: list[tuple[str, _Symbol]], findings: FactCollector) -> None:
    """Add every class with its members; nested classes follow with dotted names."""
    pending = classes[::-1]
    while pending:
        name, found = pending.pop()
        members: list[Declaration] = []
        attributes: set[str] = set()
        nested: list[tuple[str, _Symbol]] = []
        for each in _members(found, findings.source):
            kind = "property" if each.decorators & _PROPERTIES else _MEMBER_KINDS[each.kind]
            if kind == "attribute" and each.name in attributes:
                continue
            attributes |= {each.name} if kind == "attribute" else set()
            members.append(replace(each.declaration, kind=kind))
            nested += [(f"{name}.{each.name}", each)] if kind == "class" else []
        findings.outline("class", name, found.declaration.span, members)
        pending += reversed(nested)


def _members(found: _Symbol, source: SourceText) -> Iterator[_Symbol]:
    yield from found.remains
    body = found.definition.child_by_field_name("body") if found.definition else None
    if body is None:
        return
    statements = (node for node, _ in _statements(body, source, margin=False))
    for each in _declarations(statements, source, margin=False):
        yield each
        if each.kind == "function" and each.name in _INITIALISERS and each.definition:
            yield from _instance_attributes(each.definition, source)


def _instance_attributes(method: SyntaxNode, source: SourceText) -> Iterator[_Symbol]:
    """Yield the attributes of its first parameter that a method assigns."""
    parameters, body = method.child_by_field_name("parameters"), method.child_by_field_name("body")
    if parameters is None or body is None:
        return
    own = next((source.text(child) for child in children(parameters) if child.is_named), None)
    for statement, _ in _statements(body, source, margin=False):
        targets, value = _assignment_targets(statement)
        for target in targets:
            holder, name = target.child_by_field_name("object"), target.child_by_field_name("attribute")
            if holder and name and source.text(holder) == own:
                span = span_of(statement)
                signature = [source.truncate_value(span, value)]
                yield _Symbol(Declaration("variable", source.text(name), span, signature, []))


def _remains(region: SyntaxNode, source: SourceText, *, margin: bool) -> Iterator[_Symbol]:
    """Yield headings in a broken region. Indented ones after a class at the margin are its members."""
    owner: _Symbol | None = None
    members_at: int | None = None
    for indent, found in _pieces(region, source):
        whole = found.definition is not None
        if not margin:
            yield from [] if whole else [found]
        elif indent == 0:
            yield from [owner] if owner else []
            owner, members_at = None if whole else found, None
        elif owner and owner.kind == "class" and members_at in (None, indent):
            owner.remains.append(found)
            members_at = indent
    yield from [owner] if owner else []


def _pieces(region: SyntaxNode, source: SourceText) -> Iterator[tuple[int, _Symbol]]:
    """Yield definitions, and headings of broken definitions, with their indentation."""
    words: list[SyntaxNode] = []
    for node in children(region):
        if node.type in _HEADINGS or node.type == "async":
            words.append(node)
            continue
        kinds = [_HEADINGS[word.type] for word in words if word.type in _HEADINGS]
        if kinds and node.type == "identifier":
            start = words[0].start_byte
            signature = source.trim((start, source.line_end(node.end_byte)), b": \t\r\n")
            span = start, region.end_byte
            yield _indent(start, source), _Symbol(Declaration(kinds[-1], source.text(node), span, [signature], []))
        elif node.type in _DEFINITIONS or node.type == "decorated_definition":
            for found in _definition(node, source):
                yield _indent(node.start_byte, source), found
        words = []
