"""JavaScript and TypeScript source: the answer for each construct, and what remains readable in broken code."""

from textwrap import dedent
from typing import Any

import pytest

from gateway.artifacts.formats.source_code.parser_process import answer
from gateway.artifacts.formats.source_code.source_artifact import (
    ECMASCRIPT_SYMBOL_KINDS,
    SourceArtifact,
    SpooledEcmascriptArtifact,
)
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import InvalidToolArgs
from tests.artifacts.formats.document_turns import ask, turn_with

pytestmark = pytest.mark.anyio


def ecmascript(text: str, **options: Any) -> SpooledEcmascriptArtifact:
    return SpooledEcmascriptArtifact(InMemoryReader(dedent(text)), **options)


def facts(text: str, language: str = "ts") -> dict[str, Any]:
    found: dict[str, Any] = answer({"language": language}, text.encode())["facts"]
    return found


def symbols(text: str, language: str = "ts") -> list[tuple[str, str, bool]]:
    return [(each["kind"], each["name"], each["exported"]) for each in facts(text, language)["symbols"]]


SYMBOLS: dict[str, tuple[str, list[tuple[str, str, bool]]]] = {
    "function": ("function f() {}", [("function", "f", False)]),
    "async function": ("async function f() {}", [("function", "f", False)]),
    "generator": ("function* g() {}", [("function", "g", False)]),
    "exported async generator": ("export async function* g() {}", [("function", "g", True)]),
    "overloads": (
        "function f(a: string): void;\nfunction f(a: number): void;\nfunction f(a: any) {}",
        [("function", "f", False)] * 3,
    ),
    "declared function": ("declare function f(a: number): void;", [("function", "f", False)]),
    "class": ("class A {}", [("class", "A", False)]),
    "abstract class": ("export abstract class A {}", [("class", "A", True)]),
    "decorated class": ("@dec() export class A {}", [("class", "A", True)]),
    "declared class": ("declare class A { m(): void }", [("class", "A", False)]),
    "interface": ("export interface I extends J {}", [("interface", "I", True)]),
    "merged interface": ("interface I {}\ninterface I {}", [("interface", "I", False)] * 2),
    "type": ("type T<A> = A[];", [("type", "T", False)]),
    "enum": ("enum E { A, B }", [("enum", "E", False)]),
    "const enum": ("export const enum E { A }", [("enum", "E", True)]),
    "declared enum": ("declare enum E { A }", [("enum", "E", False)]),
    "const": ("const a = 1", [("const", "a", False)]),
    "let without a value": ("let a", [("let", "a", False)]),
    "var": ("var a = 1", [("var", "a", False)]),
    "several declarators": ("let a = 1, b, c = 3", [("let", "a", False), ("let", "b", False), ("let", "c", False)]),
    "declared const": ("export declare const a: string;", [("const", "a", True)]),
    "object pattern": ("const { a, b: [c] } = x", [("const", "a", False), ("const", "c", False)]),
    "rest in patterns": (
        "const { a, ...b } = x, [c, ...d] = y",
        [("const", "a", False), ("const", "b", False), ("const", "c", False), ("const", "d", False)],
    ),
    "defaults in patterns": (
        "const { a = 1, b: { c } = {}, d: e = 2 } = x",
        [("const", "a", False), ("const", "c", False), ("const", "e", False)],
    ),
    "holes in a pattern": ("const [, a, , b] = x", [("const", "a", False), ("const", "b", False)]),
    "exported pattern": ("export const { a, b } = x", [("const", "a", True), ("const", "b", True)]),
    "default export of a named function": ("export default function f() {}", [("function", "f", True)]),
    "default export of a nameless function": ("export default function () {}", [("function", "default", True)]),
    "default export of a nameless generator": ("export default function* () {}", [("function", "default", True)]),
    "default export of a nameless class": ("export default class {}", [("class", "default", True)]),
    "default export of an interface": ("export default interface I {}", [("interface", "I", True)]),
    "default export of an expression": ("export default { a: 1 }", []),
    "exported by a clause": ("const a = 1, b = 2; export { a as c }", [("const", "a", True), ("const", "b", False)]),
    "exported by default": ("class A {}\nexport default A", [("class", "A", True)]),
    "exported by assignment": ("function f() {}\nexport = f", [("function", "f", True)]),
    "a clause from elsewhere exports nothing of ours": ('const a = 1; export { a } from "m"', [("const", "a", False)]),
    "namespaces have no kind": ("namespace N { const a = 1 }\ndeclare module 'm' {}\ndeclare global {}", []),
    "only the top level": ("function f() { const a = 1 }\nif (x) { var b }\n{ let c }", [("function", "f", False)]),
    "an expression": ("a = 1; (function f() {})(); x.y = class A {}", []),
}


@pytest.mark.parametrize(("text", "expected"), SYMBOLS.values(), ids=SYMBOLS)
def test_symbols_of(text: str, expected: list[tuple[str, str, bool]]) -> None:
    assert symbols(text) == expected


def test_javascript_knows_using_and_jsx() -> None:
    assert symbols("using a = b();", "js") == [("const", "a", False)]
    assert symbols("export const A = () => <b>{c}</b>", "jsx") == [("const", "A", True)]


def test_symbols_carry_inclusive_lines_from_zero() -> None:
    text = "\n@dec\nexport class A {\n}\nconst\n  a = [\n  ],\n  b = 1\n"

    assert facts(text)["symbols"] == [
        {"kind": "class", "name": "A", "exported": True, "startLine": 1, "endLine": 3},
        {"kind": "const", "name": "a", "exported": False, "startLine": 5, "endLine": 6},
        {"kind": "const", "name": "b", "exported": False, "startLine": 7, "endLine": 7},
    ]


def entry(specifier: str, named: list[str], *, types: bool = False, **names: str) -> dict[str, Any]:
    return {"moduleSpecifier": specifier, "named": named, **names, "typeOnly": types, "line": 0}


IMPORTS = {
    "default": ('import x from "m"', entry("m", [], default="x")),
    "named": ('import { a, b } from "m"', entry("m", ["a", "b"])),
    "renamed": ('import { y as z } from "m"', entry("m", ["z"])),
    "default and named": ('import x, { y as z } from "m"', entry("m", ["z"], default="x")),
    "default and namespace": ('import x, * as ns from "m"', entry("m", [], default="x", namespace="ns")),
    "namespace": ("import * as ns from 'm'", entry("m", [], namespace="ns")),
    "side effect": ('import "m"', entry("m", [])),
    "nothing": ('import {} from "m"', entry("m", [])),
    "type": ('import type { T } from "m"', entry("m", ["T"], types=True)),
    "type default": ('import type T from "m"', entry("m", [], types=True, default="T")),
    "typeof": ('import typeof T from "m"', entry("m", [], types=True, default="T")),
    "types among values": ('import { type T, v } from "m"', entry("m", ["T", "v"])),
    "default by name": ('import { default as d } from "m"', entry("m", ["d"])),
    "a string for a name": ('import { "a b" as c } from "m"', entry("m", ["c"])),
    "attributes": ('import j from "./j.json" with { type: "json" }', entry("./j.json", [], default="j")),
    "require": ('import x = require("m")', entry("m", [], default="x")),
    "type require": ('import type x = require("m")', entry("m", [], types=True, default="x")),
    "a phase the grammar does not know": ('import defer * as ns from "m"', entry("m", [], namespace="ns")),
}


@pytest.mark.parametrize(("text", "expected"), IMPORTS.values(), ids=IMPORTS)
def test_import_of(text: str, expected: dict[str, Any]) -> None:
    found = facts(text)

    assert found["imports"] == [expected]
    assert list(found["imports"][0]) == list(expected)
    assert found["symbols"] == []


def test_alias_of_a_namespace_is_no_import() -> None:
    assert facts("import a = N.S")["imports"] == []


def export(named: list[str], *flags: str, specifier: str | None = None) -> dict[str, Any]:
    return {
        "line": 0,
        **({} if specifier is None else {"moduleSpecifier": specifier}),
        "named": named,
        "isDefault": "default" in flags,
        "isNamespaceReExport": "namespace" in flags,
        "isTypeOnly": "type" in flags,
    }


EXPORTS = {
    "const": ("export const a = 1, { b } = x", export(["a", "b"])),
    "function": ("export function f() {}", export(["f"])),
    "class": ("export class A {}", export(["A"])),
    "declared": ("export declare function f(): void", export(["f"])),
    "enum": ("export enum E {}", export(["E"])),
    "interface": ("export interface I {}", export(["I"], "type")),
    "type alias": ("export type T = 1", export(["T"], "type")),
    "namespace": ("export namespace N {}", export(["N"])),
    "declared namespace": ("export declare namespace N.M {}", export(["N.M"])),
    "alias": ("export import a = N.S", export(["a"])),
    "clause": ("export { a, b as c }", export(["a", "c"])),
    "clause with a type": ("export { type T, a }", export(["T", "a"])),
    "type clause": ("export type { T }", export(["T"], "type")),
    "empty clause": ("export {}", export([])),
    "default by clause": ("export { a as default, b }", export(["default", "b"], "default")),
    "a string for a name": ('export { a as "b c" }', export(["b c"])),
    "default function": ("export default function f() {}", export(["f"], "default")),
    "default nameless class": ("export default class {}", export([], "default")),
    "default name": ("export default x", export([], "default")),
    "default arrow": ("export default () => 1", export([], "default")),
    "default object": ("export default { a: 1 }", export([], "default")),
    "re-export": ('export { a as b } from "m"', export(["b"], specifier="m")),
    "re-export of the default": ('export { default } from "m"', export(["default"], "default", specifier="m")),
    "type re-export": ('export type { T } from "m"', export(["T"], "type", specifier="m")),
    "everything": ('export * from "m"', export([], "namespace", specifier="m")),
    "everything as": ('export * as ns from "m"', export(["ns"], "namespace", specifier="m")),
    "everything as a string": ('export * as "n s" from "m"', export(["n s"], "namespace", specifier="m")),
    "all types": ('export type * from "m"', export([], "namespace", "type", specifier="m")),
    "all types as": ('export type * as ns from "m"', export(["ns"], "namespace", "type", specifier="m")),
    "assignment": ("export = f", export([], "default")),
    "global namespace": ("export as namespace Lib", export(["Lib"])),
}


@pytest.mark.parametrize(("text", "expected"), EXPORTS.values(), ids=EXPORTS)
def test_export_of(text: str, expected: dict[str, Any]) -> None:
    found = facts(text)["exports"]

    assert found == [expected]
    assert list(found[0]) == list(expected)


MEMBERS = {
    "method": ("class A { m() {} }", [("m", "method")]),
    "static async generator": ("class A { static async *m() {} }", [("m", "method")]),
    "constructor": ("class A { constructor(private a: string) {} }", [("constructor", "method")]),
    "overloads": ("class A { m(a: string): void; m(a: any) {} }", [("m", "method"), ("m", "method")]),
    "abstract method": ("abstract class A { abstract m(): void }", [("m", "method")]),
    "accessors": ("class A { get a() { return 1 } set a(v) {} }", [("a", "accessor"), ("a", "accessor")]),
    "abstract accessor": ("abstract class A { abstract get a(): number }", [("a", "accessor")]),
    "auto accessor": ("class A { accessor a = 1 }", [("a", "accessor")]),
    "a method called get": ("class A { get() {} set() {} }", [("get", "method"), ("set", "method")]),
    "field": ("class A { a = 1; static b?: number; declare c: string }", [(x, "property") for x in "abc"]),
    "function in a field": ("class A { a = () => {} }", [("a", "property")]),
    "private": ("class A { #a = 1; #m() {} }", [("#a", "property"), ("#m", "method")]),
    "computed": ("class A { [Symbol.iterator]() {} }", [("[Symbol.iterator]", "method")]),
    "string and number": ("class A { 'a b'() {} 12 = 3 }", [("a b", "method"), ("12", "property")]),
    "index signature": ("class A { [key: string]: any }", [("[key: string]", "signature")]),
    "static block": ("class A { static {} }", []),
    "interface": ("interface I { a: string; m?(): void }", [("a", "signature"), ("m", "signature")]),
    "nameless signatures": (
        "interface I { (a: number): string; new (a: number): I; [k: string]: any }",
        [("()", "signature"), ("new ()", "signature"), ("[k: string]", "signature")],
    ),
    "accessors of an interface": ("interface I { get a(): number; set a(v: number) }", [("a", "accessor")] * 2),
}


@pytest.mark.parametrize(("text", "expected"), MEMBERS.values(), ids=MEMBERS)
def test_members_of(text: str, expected: list[tuple[str, str]]) -> None:
    (outlined,) = facts(text)["outline"]

    assert [(each["name"], each["kind"]) for each in outlined["members"]] == expected


def test_fields_of_javascript_are_members() -> None:
    (outlined,) = facts("class A { a = 1; static #b; @dec m() {} }", "js")["outline"]

    assert [(each["name"], each["kind"]) for each in outlined["members"]] == [
        ("a", "property"),
        ("#b", "property"),
        ("m", "method"),
    ]


def test_outline_lists_classes_and_interfaces_with_lines() -> None:
    text = "function f() {}\nexport default class {\n  @dec\n  m() {\n  }\n}\ninterface I {\n  a: string\n}\n"

    assert facts(text)["outline"] == [
        {
            "kind": "class",
            "name": "default",
            "startLine": 1,
            "endLine": 5,
            "members": [{"name": "m", "kind": "method", "startLine": 2, "endLine": 4}],
        },
        {
            "kind": "interface",
            "name": "I",
            "startLine": 6,
            "endLine": 8,
            "members": [{"name": "a", "kind": "signature", "startLine": 7, "endLine": 7}],
        },
    ]


SAMPLE = ecmascript(
    """
    /** The licence. */

    /**
     * Adds.
     * @param a one
     */
    export async function add<T>(a: T, b = { c: 1 }): Promise<T> { return a }
    /** First. */
    function over(a: string): void;
    /** Second. */
    function over(a: number): void;
    function over(a: any) {}
    // not a doc comment
    /**/
    export abstract class Shape<T> extends Base implements Drawn {
        /** How big. */
        @watched
        public static readonly size?: number = 12;
        /** Too short to matter. */
        area(
            scale: number,
        ): number { return 1 }
        /** Belongs to nothing. */ /* nor this */
        get name(): string { return "" }
        set name(value: string) {}
        handler = async (event: Event) => {
            stop()
        };
        add(): void {}
        static table = { a: 1,
            b: 2 };
    }
    interface Drawn extends Thing {
        draw?(where: Canvas): void;
        area: string;
    }
    const before = 1 /** trails */
    const later = 2
    /** Both. */
    const one = 1, /** Just two. */ two: string = "2";
    export type Pair<A> = { left: A;
        right: A };
    export declare const enum Level { Low, High }
    const arrow = (a: number): number => a + 1
    const made = function* named(a) { yield a }
    const Klass = class Inner extends Base { m() {} }
    let long = call(LONG)
    export const { p, q: [r] } = load()
    let undone: string
    /** Line one */ /** and two. */ var tail
    export default function () {}
    """.replace("LONG", "x" * 120)
)


SIGNATURES = {
    "function": ("add", "export async function add<T>(a: T, b = { c: 1 }): Promise<T>"),
    "overloads": ("over", "function over(a: string): void\nfunction over(a: number): void\nfunction over(a: any)"),
    "class": ("Shape", "export abstract class Shape<T> extends Base implements Drawn"),
    "field": ("size", "@watched\npublic static readonly size?: number = 12"),
    "method over several lines": ("Shape.area", "area(\n    scale: number,\n): number"),
    "first of two members": ("area", "area(\n    scale: number,\n): number"),
    "second of two members": ("Drawn.area", "area: string"),
    "accessors": ("name", "get name(): string\nset name(value: string)"),
    "function in a field": ("handler", "handler = async (event: Event) =>"),
    "member that a function hides": ("Shape.add", "add(): void"),
    "field with a long value": ("table", "static table"),
    "interface": ("Drawn", "interface Drawn extends Thing"),
    "method of an interface": ("draw", "draw?(where: Canvas): void"),
    "first declarator": ("one", "const one = 1"),
    "second declarator": ("two", 'const two: string = "2"'),
    "type": ("Pair", "export type Pair<A> = { left: A;\n    right: A }"),
    "enum": ("Level", "export declare const enum Level"),
    "arrow": ("arrow", "const arrow = (a: number): number =>"),
    "function expression": ("made", "const made = function* named(a)"),
    "class expression": ("Klass", "const Klass = class Inner extends Base"),
    "long value": ("long", "let long"),
    "pattern": ("r", "export const { p, q: [r] } = load()"),
    "no value": ("undone", "let undone: string"),
    "nameless": ("default", "export default function ()"),
    "unknown": ("missing", ""),
    "unknown member": ("Shape.missing", ""),
    "empty": ("", ""),
}


@pytest.mark.parametrize(("name", "expected"), SIGNATURES.values(), ids=SIGNATURES)
async def test_signature_of(name: str, expected: str) -> None:
    assert await SAMPLE.es_signature(name) == expected


DOCS = {
    "every comment in front": ("add", "/** The licence. */\n/**\n * Adds.\n * @param a one\n */"),
    "overloads": ("over", "/** First. */\n/** Second. */"),
    "plain comments do not count": ("Shape", ""),
    "decorators may stand between": ("size", "/** How big. */"),
    "member": ("Shape.area", "/** Too short to matter. */"),
    "without": ("Drawn", ""),
    "a comment behind something is not for what follows": ("later", ""),
    "statement": ("one", "/** Both. */"),
    "statement and declarator": ("two", "/** Both. */\n/** Just two. */"),
    "on the same line": ("tail", "/** Line one */\n/** and two. */"),
    "unknown": ("missing", ""),
}


@pytest.mark.parametrize(("name", "expected"), DOCS.values(), ids=DOCS)
async def test_jsdoc_of(name: str, expected: str) -> None:
    assert await SAMPLE.es_jsdoc(name) == expected


def test_member_is_found_in_the_first_class_that_has_it() -> None:
    text = "class A { m(a): void; m(b) {} }\nclass B { m(c) {} }\nfunction n() {}\nclass C { n() {} }"

    found = {
        name: [text[start:end] for pieces in places for start, end in pieces]
        for name, places in facts(text)["signatures"].items()
    }

    assert found["m"] == found["A.m"] == ["m(a): void", "m(b)"]
    assert found["B.m"] == ["m(c)"]
    assert found["n"] == ["function n()"]
    assert found["C.n"] == ["n()"]


REFERENCES = {
    "every role": (
        "class name { name() { this.name = name } }; name: for (;;) break name",
        "name",
        [6, 13, 27, 34, 44, 65],
    ),
    "types": ("let a: T<T> = b as T", "T", [7, 9, 19]),
    "properties and shorthands": ("const { a, b: a1 } = { a, a: 1 }; x.a", "a", [8, 23, 26, 36]),
    "imports and exports": ('import { a as b } from "a"; export { b as a }', "a", [9, 42]),
    "private names": ("class A { #a; m() { this.#a } }", "#a", [10, 25]),
    "only whole names": ("a; aa; a$; _a; a1; $a; ä; aä; a", "a", [0, 30]),
    "not in strings and comments": ("// a\n'a'; `a`; /a/", "a", []),
    "in templates": ("`${a} a`", "a", [3]),
    "in broken code": ("let = a; } (a", "a", [6, 12]),
    "a name with a dollar": ("$a + $b", "$a", [0]),
    "undefined": ("undefined = a", "undefined", [0]),
    "keywords are no names": ("this; let a", "this", []),
    "nothing of that name": ("a", "b", []),
    "no name": ("a", "", []),
    "more than a name": ("a.b", "a.b", []),
}


@pytest.mark.parametrize(("text", "name", "columns"), REFERENCES.values(), ids=REFERENCES)
def test_references_in(text: str, name: str, columns: list[int]) -> None:
    found = answer({"language": "ts", "name": name}, text.encode())["references"]

    assert [column for _, column in found] == columns


async def test_references_count_lines_from_zero_and_columns_in_utf16() -> None:
    artifact = ecmascript("let 𝒳 = '😀é', b = 𝒳;\r\nb\n\n\tb")

    assert await artifact.es_references("b") == [
        {"line": 0, "column": 16},
        {"line": 1, "column": 0},
        {"line": 3, "column": 1},
    ]
    assert await artifact.es_references("𝒳") == [{"line": 0, "column": 4}, {"line": 0, "column": 20}]


async def test_references_to_nothing_are_none() -> None:
    assert await ecmascript("a").es_references("") == []


async def test_references_inside_jsx() -> None:
    artifact = ecmascript("const a = <A b={a}>a</A>", script_kind="tsx")

    assert await artifact.es_references("a") == [{"line": 0, "column": 6}, {"line": 0, "column": 16}]
    assert await artifact.es_references("A") == [{"line": 0, "column": 11}, {"line": 0, "column": 22}]


BROKEN = {
    "unclosed class": (
        'import a from "m"\n/** Doc. */\nexport class B extends C {\n  m() {}\n  n() { if (x) {\n    foo(',
        [("class", "B", True)],
    ),
    "unclosed function hides its locals": (
        "export const a = () => {\n  const b = 1\n  function c() {}\n  if (b) {",
        [("const", "a", True)],
    ),
    "unclosed interface": ("interface I {\n  a: string;\n  b(", [("interface", "I", False)]),
    "unclosed type": ("type T = {\n  a: string;", [("type", "T", False)]),
    "unclosed enum": ("enum E { A, B", [("enum", "E", False)]),
    "unclosed list": ("function ok() {}\nconst x = [1, 2,", [("function", "ok", False), ("const", "x", False)]),
    "unclosed generator": ("export async function* g(a,", [("function", "g", True)]),
    "heading alone": ("function f(a, b", [("function", "f", False)]),
    "class without a body": ("class Z extends", [("class", "Z", False)]),
    "half a declaration before a whole one": (
        "const = 5;\nlet ok = 1;\n}}}\nexport function g() {}",
        [("let", "ok", False), ("function", "g", True)],
    ),
    "missing brace in the middle": ("function a() { if (x) {\nfunction b() {}", [("function", "a", False)]),
    "declarator without a name": ("let a = 1, = 2; let b", [("let", "b", False)]),
    "nothing has a name": ("class {}\nfunction () {}\nclass A { = 3; m() {} }", [("class", "A", False)]),
    "something unknown at the top": ("%%% ???\nclass A {}", [("class", "A", False)]),
    "unclosed template": ("x = `a\nfunction f() {}", [("function", "f", False)]),
    "merge conflict": (
        "<<<<<<< ours\nlet a = 1\n=======\nlet a = 2\n>>>>>>> theirs\nfunction f() {}\n",
        [("let", "a", False), ("function", "f", False)],
    ),
}


@pytest.mark.parametrize(("text", "expected"), BROKEN.values(), ids=BROKEN)
def test_broken_code_still_shows(text: str, expected: list[tuple[str, str, bool]]) -> None:
    assert symbols(text) == expected


async def test_class_that_is_cut_short_keeps_what_was_read() -> None:
    artifact = ecmascript(BROKEN["unclosed class"][0])

    assert await artifact.es_imports() == [entry("m", [], default="a")]
    assert await artifact.es_exports() == [export(["B"]) | {"line": 2}]
    assert await artifact.es_signature("B") == "export class B extends C"
    assert await artifact.es_jsdoc("B") == "/** Doc. */"
    assert await artifact.es_outline() == [
        {
            "kind": "class",
            "name": "B",
            "startLine": 2,
            "endLine": 5,
            "members": [{"name": "m", "kind": "method", "startLine": 3, "endLine": 3}],
        }
    ]


def test_exports_are_seen_inside_an_unclosed_block() -> None:
    found = facts("const a = {\n  b: 1,\n\nexport class C {}\nexport { d }\n")

    assert {"d"} <= {name for each in found["exports"] for name in each["named"]}


KINDS_OF_SCRIPT = {
    **{f"a{extension}": kind for extension, kind in {".js": "js", ".mjs": "js", ".cjs": "js", ".jsx": "jsx"}.items()},
    **{f"a{extension}": kind for extension, kind in {".ts": "ts", ".mts": "ts", ".cts": "ts", ".tsx": "tsx"}.items()},
    "types.d.ts": "ts",
    "dir.js/A.TSX": "tsx",
    "C:\\src\\a.jsx": "jsx",
    "README": "ts",
    "a.py": "ts",
    "": "ts",
}


@pytest.mark.parametrize(("file_name", "kind"), KINDS_OF_SCRIPT.items(), ids=KINDS_OF_SCRIPT)
def test_script_kind_comes_from_the_file_name(file_name: str, kind: str) -> None:
    assert ecmascript("", file_name=file_name).script_kind == kind


def test_script_kind_defaults_to_typescript_and_can_be_given() -> None:
    assert ecmascript("").script_kind == "ts"
    assert ecmascript("", file_name="a.ts", script_kind="jsx").script_kind == "jsx"
    assert ecmascript("", file_name="a.ts").file_name == "a.ts"


def test_unknown_script_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="one of js, jsx, ts and tsx, not 'flow'"):
        ecmascript("", script_kind="flow")


async def test_script_kind_decides_the_grammar() -> None:
    assert await ecmascript("const a = <b>1</b>", file_name="a.jsx").es_symbols("const") != []
    assert (await ecmascript("let a = <b>c</b>;\nlet d", script_kind="tsx").es_symbols())[-1]["name"] == "d"


async def test_symbols_are_narrowed_by_kind() -> None:
    artifact = ecmascript("class A {}\nlet a\nfunction f() {}")

    assert [each["name"] for each in await artifact.es_symbols("class")] == ["A"]
    assert [each["name"] for each in await artifact.es_symbols("")] == ["A", "a", "f"]
    assert [each["name"] for each in await artifact.es_symbols()] == ["A", "a", "f"]
    assert await artifact.es_symbols("enum") == []


async def test_answers_are_copies() -> None:
    artifact = ecmascript('import { a } from "m"\nclass A { m() {} }')

    (await artifact.es_symbols())[0].clear()
    (await artifact.es_imports())[0]["named"].clear()
    (await artifact.es_outline())[0]["members"].clear()

    assert (await artifact.es_symbols())[0]["name"] == "A"
    assert (await artifact.es_imports())[0]["named"] == ["a"]
    assert (await artifact.es_outline())[0]["members"] != []


ASKED = {
    "symbols": ("symbols", {"kind": "class"}, '[\n  {\n    "kind": "class",\n    "name": "A",\n    "exported": true'),
    "symbols of every kind": ("symbols", {"kind": ""}, '[\n  {\n    "kind": "class"'),
    "imports": (
        "imports",
        {},
        '[\n  {\n    "moduleSpecifier": "m",\n    "named": [\n      "a"\n    ],\n    "typeOnly": false',
    ),
    "exports": ("exports", {}, '[\n  {\n    "line": 1,\n    "named": [\n      "A"\n    ],\n    "isDefault": false'),
    "outline": ("outline", {}, '[\n  {\n    "kind": "class",\n    "name": "A"'),
    "signature": ("signature", {"name": "A.m"}, "m(): void"),
    "jsdoc": ("jsdoc", {"name": "m"}, "/** M. */"),
    "references": ("references", {"name": "m"}, '[\n  {\n    "line": 1,\n    "column": 27\n  }\n]'),
    "no references": ("references", {"name": "zzz"}, "(empty list)"),
}


@pytest.mark.parametrize(("query", "args", "expected"), ASKED.values(), ids=ASKED)
async def test_model_asks_for(query: str, args: dict[str, Any], expected: str) -> None:
    artifact = ecmascript('import { a } from "m"\nexport class A { /** M. */ m(): void {} }')

    assert (await ask(artifact, f"artifact_es_{query}", **args)).startswith(expected)


@pytest.mark.parametrize(
    ("query", "args"),
    [("symbols", {"kind": "namespace"}), ("signature", {}), ("signature", {"name": ""}), ("imports", {"kind": "a"})],
    ids=["unknown kind", "no name", "empty name", "unknown argument"],
)
async def test_wrong_arguments_are_refused(query: str, args: dict[str, Any]) -> None:
    with pytest.raises(InvalidToolArgs):
        await ask(ecmascript("let a"), f"artifact_es_{query}", **args)


def test_forged_tools_are_the_base_seven_and_these_seven() -> None:
    forged = SpooledEcmascriptArtifact.forge_tools(turn_with(c1=ecmascript("")))
    own = [method.name for method in SpooledEcmascriptArtifact.tool_methods]

    assert own == [
        f"artifact_es_{query}"
        for query in ("symbols", "imports", "exports", "outline", "signature", "jsdoc", "references")
    ]
    assert [tool.name for tool in forged.all()][-7:] == own
    assert len(forged.all()) == 14


def test_kind_argument_offers_every_kind_and_the_empty_text() -> None:
    tool = SpooledEcmascriptArtifact.forge_tools(turn_with(c1=ecmascript(""))).get("artifact_es_symbols")

    assert tool is not None
    assert tool.describe()["input_schema"]["properties"]["kind"]["enum"] == [*ECMASCRIPT_SYMBOL_KINDS, ""]
    assert tool.describe()["input_schema"]["required"] == ["callId"]


def test_a_language_must_be_named() -> None:
    with pytest.raises(NotImplementedError):
        _ = SourceArtifact(InMemoryReader("")).language
