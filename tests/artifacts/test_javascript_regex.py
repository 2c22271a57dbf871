r"""Patterns match what a real JavaScript engine matches, line by line over one buffer."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.artifacts.javascript_regex import MAX_PATTERN_LENGTH, Pattern
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import PatternNotSupported

# One request per line: a pattern, flags and lines; the answer has one match result per line.
SCRIPT = """
const answer = ([pattern, flags, lines]) => {
  try {
    const compiled = new RegExp(pattern, flags);
    return lines.map((line) => compiled.test(line));
  } catch (error) {
    return error.name;
  }
};
require("readline").createInterface({ input: process.stdin, crlfDelay: Infinity }).on("line", (line) => {
  process.stdout.write(JSON.stringify(answer(JSON.parse(line))) + "\\n");
});
"""

Ask = Callable[[str, str, list[str]], Any]

WORDS = [
    "",
    "a",
    "b",
    "ab",
    "aab",
    "abc",
    "xaby",
    "A",
    "aB",
    "a b",
    "a-b",
    "a{2}",
    "a,b",
    "1",
    "a1_",
    "_",
    "[",
    "]",
    "}",
]
SPACES = [
    "\t", "\v", "\f", "\r", " ", "\xa0", "\u1680", "\u180e", "\u2000", "\u200a", "\u200b", "\u2028", "\u2029",
    "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\x1c", "\x1f", "\x85", "", "a",
]  # fmt: skip
LETTERS = ["é", "É", "ß", "Σ", "σ", "ς", "中", "١", "½", "ñ", "n\u0303", "e", "E", "z", "Z"]
CONTROLS = ["\0", "\x01", "\b", "\t", "\v", "\f", "\r", "\x1a", "\x1b", "\x1f", "\x7f", "c", "J", "\\", "\\c", "x", "u"]
ENDS = ["a", "a\r", "\ra", "x\ra", "a\rx", "a\u2028x", "x\u2029a", "xa", "ax", "\r", "a\r\rx", "", "x\r"]
EVERYTHING = [*WORDS, *SPACES, *LETTERS, *CONTROLS, *ENDS]
UNICODE = ["a", "😀", "x😀y", "😀😀", "\U00010000", "é", "中", "Ω", "\u03a9", "1", "१", "!", "€", "\u0301", " ", ""]
FOLDS = ["k", "K", "\u212a", "s", "S", "ſ", "å", "\u212b", "ω", "\u2126", "ß", "ẞ", "a", "1"]

# pattern, flags, lines: our matches must equal those of JavaScript
TABLE: list[tuple[str, str, list[str]]] = [
    ("", "", WORDS),
    ("a", "", WORDS),
    ("a|b", "", WORDS),
    ("a|", "", WORDS),
    ("|", "", WORDS),
    ("(?:)", "", WORDS),
    ("()", "", WORDS),
    ("^", "", EVERYTHING),
    ("$", "", EVERYTHING),
    ("^$", "", EVERYTHING),
    ("^a", "", ENDS),
    ("a$", "", ENDS),
    ("^a$", "", ENDS),
    ("^a", "m", ENDS),
    ("a$", "m", ENDS),
    ("^a$", "m", ENDS),
    ("^$", "m", EVERYTHING),
    ("^", "m", EVERYTHING),
    ("(^|x)a", "m", ENDS),
    ("a(?:$|x)", "m", ENDS),
    ("^x$|^a$", "m", ENDS),
    (r"^\s+$", "m", SPACES),
    ("a.", "", ENDS),
    ("a.", "s", ENDS),
    (".", "", EVERYTHING),
    (".", "s", EVERYTHING),
    ("^.$", "", EVERYTHING),
    ("^.$", "sm", EVERYTHING),
    (r"\s", "", EVERYTHING),
    (r"\S", "", EVERYTHING),
    (r"[\s]", "", EVERYTHING),
    (r"[\S]", "", EVERYTHING),
    (r"[^\s]", "", EVERYTHING),
    (r"[^\S]", "", EVERYTHING),
    (r"[\s\S]", "", EVERYTHING),
    (r"[^\s\S]", "", EVERYTHING),
    (r"[\s-x]", "", EVERYTHING),
    (r"[a-\s]", "", EVERYTHING),
    (r"[\w-]", "", EVERYTHING),
    (r"[\d-z]", "", EVERYTHING),
    (r"\d", "", EVERYTHING),
    (r"\D", "", EVERYTHING),
    (r"\w", "", EVERYTHING),
    (r"\W", "", EVERYTHING),
    (r"^\w+$", "", EVERYTHING),
    (r"\bb", "", WORDS),
    (r"\Bb", "", WORDS),
    (r"\bé", "", LETTERS),
    (r"é\b", "", ["éa", "é", "é "]),
    (r"\u0061", "", WORDS),
    (r"\u00e9", "", LETTERS),
    (r"\u00E9", "i", LETTERS),
    (r"\ud83d\ude00", "", UNICODE),
    (r"[\ud83d\ude00]", "u", UNICODE),
    (r"\u{1F600}", "u", UNICODE),
    (r"\u{00000061}", "u", UNICODE),
    (r"\u{61}", "u", WORDS),
    (r"[\u{1f600}-\u{1f64f}]", "u", UNICODE),
    (r"^.$", "u", UNICODE),
    (r"^[^a]$", "u", UNICODE),
    (r"^[^]$", "u", UNICODE),
    (r"\u00", "", ["u00", "\0", "u", "00"]),
    (r"\u", "", CONTROLS),
    (r"\x61", "", WORDS),
    (r"\xE9", "", LETTERS),
    (r"\x6", "", ["x6", "l", "6"]),
    (r"\x", "", CONTROLS),
    (r"\x{3}", "", ["xxx", "xx", "\x03"]),
    (r"\cJ", "", CONTROLS),
    (r"\cA|\ca", "", CONTROLS),
    (r"\cM", "", CONTROLS),
    (r"\c1", "", [*CONTROLS, "\\c1", "\x11"]),
    (r"\c", "", CONTROLS),
    (r"[\cA\c1\c_]", "", [*CONTROLS, "\x11", "\x1f", "_", "1"]),
    (r"[\c]", "", CONTROLS),
    (r"[\c?]", "", [*CONTROLS, "?"]),
    (r"\0", "", CONTROLS),
    (r"[\0]", "", CONTROLS),
    (r"\t|\v|\f|\r", "", EVERYTHING),
    (r"\n", "", EVERYTHING),
    (r"[\n]", "", EVERYTHING),
    (r"[^\n]", "", EVERYTHING),
    (r"a\nb|b", "", WORDS),
    (r"[\b]", "", CONTROLS),
    (r"[\t\v\f\r]", "", EVERYTHING),
    (r"[\B\k\q]", "", ["B", "k", "q", "b"]),
    ("[^]", "", EVERYTHING),
    ("[]", "", EVERYTHING),
    ("[]|a", "", WORDS),
    ("[^]a", "", WORDS),
    ("[]]", "", WORDS),
    ("[^]]", "", WORDS),
    (r"[\]]", "", WORDS),
    ("]", "", WORDS),
    ("}", "", WORDS),
    ("[[]", "", WORDS),
    ("[[:alpha:]]", "", ["a]", ":]", "[]", "a", "b]"]),
    ("[a-]", "", [*WORDS, "-"]),
    ("[-a]", "", [*WORDS, "-"]),
    ("[a-b-z]", "", [*WORDS, "-", "y", "z"]),
    ("[--/]", "", ["-", ".", "/", "0", "+"]),
    (r"[\--\/]", "", ["-", ".", "/", "0", "+"]),
    (r"[a\-z]", "", ["a", "-", "m", "z"]),
    ("[^a-z]", "", WORDS),
    ("[a^]", "", ["a", "^", "b"]),
    ("[.*+?|()$]", "", [".", "*", "+", "?", "|", "(", ")", "$", "a", "^"]),
    ("[&&a]", "", ["&", "a", "b"]),
    ("[a&&b]", "", ["&", "a", "b"]),
    ("[é-ñ]", "", LETTERS),
    ("{", "", WORDS),
    ("a{", "", WORDS),
    ("a{2", "", [*WORDS, "a{2"]),
    ("a{2}", "", WORDS),
    ("a{02}", "", WORDS),
    ("a{2,}", "", WORDS),
    ("a{1,2}b", "", WORDS),
    ("a{0}b", "", WORDS),
    ("a{,2}", "", [*WORDS, "a{,2}"]),
    ("a{x}", "", [*WORDS, "a{x}"]),
    ("a{1,x}", "", [*WORDS, "a{1,x}"]),
    ("a{ 2}", "", [*WORDS, "a{ 2}"]),
    ("a{٢}", "", [*WORDS, "a{٢}", "aa"]),
    ("a{}", "", [*WORDS, "a{}"]),
    (r"a\{2\}", "", WORDS),
    ("a{2}?", "", WORDS),
    ("a*?b", "", WORDS),
    ("a+?b", "", WORDS),
    ("a??b", "", WORDS),
    ("(a|ab)(c|bcd)?$", "", WORDS),
    ("(?:a|b)+", "", WORDS),
    ("(?:a*)*b", "", WORDS),
    ("(?:a?){3}b", "", WORDS),
    ("(?<first>a)(?<_$2>b)", "", WORDS),
    ("(?<é>a)", "", WORDS),
    ("((((a))))", "", WORDS),
    (r"\a\e\z\A\Z\Q\E\C\G\h", "", ["aezAZQECGh", "a"]),
    (r"\_\-\ \!\@\#\%\&\=\~\`\'\"\:\;\<\>\,\/", "", ["_- !@#%&=~`'\":;<>,/", "_"]),
    (r"\.\*\+\?\(\)\[\]\{\}\|\^\$\\", "", [".*+?()[]{}|^$\\", "."]),
    (r"\é\中", "", ["é中", "\\é"]),
    (r"\pL\PL", "", ["pLPL", "a"]),
    (r"\k", "", ["k", "\\k"]),
    ("a#b c", "", ["a#b c", "a"]),
    ("a//b", "", ["a//b", "ab"]),
    ("AB", "i", WORDS),
    ("[A-B]+", "i", WORDS),
    ("[^a]", "i", WORDS),
    ("é", "i", LETTERS),
    ("σ", "i", LETTERS),
    ("[ς]", "i", LETTERS),
    ("[^σ]", "i", LETTERS),
    (r"\x41", "i", WORDS),
    ("k", "iu", FOLDS),
    ("s", "iu", FOLDS),
    ("[k-s]", "iu", FOLDS),
    ("å", "iu", FOLDS),
    ("ω", "iu", FOLDS),
    ("ß", "iu", FOLDS),
    (r"\w", "iu", FOLDS),
    (r"\W", "iu", FOLDS),
    (r"[^\W]", "iu", FOLDS),
    (r"[^\w]", "iu", FOLDS),
    ("k", "u", FOLDS),
    (r"\p{L}", "u", UNICODE),
    (r"\P{L}", "u", UNICODE),
    (r"\p{Letter}", "u", UNICODE),
    (r"\p{gc=Lu}", "u", LETTERS),
    (r"\p{General_Category=Uppercase_Letter}", "u", LETTERS),
    (r"\p{Lu}", "iu", LETTERS),
    (r"[^\p{Lu}]", "iu", LETTERS),
    (r"\p{Nd}|\p{Decimal_Number}|\p{digit}", "u", UNICODE),
    (r"\p{Sc}", "u", UNICODE),
    (r"\p{Script=Greek}", "u", UNICODE),
    (r"\p{sc=Han}", "u", UNICODE),
    (r"[\p{Script=Greek}\p{Nd}!]", "u", UNICODE),
    (r"[^\p{L}]", "u", UNICODE),
    (r"[\P{L}]", "u", UNICODE),
    (r"\p{Any}", "u", UNICODE),
    (r"\p{ASCII}", "u", UNICODE),
    (r"\P{ASCII}", "u", UNICODE),
    (r"\p{M}|\p{punct}", "u", UNICODE),
    ("😀", "", UNICODE),
    ("😀", "u", UNICODE),
    ("😀+$", "u", UNICODE),
    ("[😀-😂]", "u", UNICODE),
]  # fmt: skip

REFUSED: list[tuple[str, str, str]] = [
    ("(?=a)", "", "search for the wider text"),
    ("a(?!b)", "", "search for the wider text"),
    ("(?<=a)b", "", "search for the wider text"),
    ("(?<!a)b", "", "search for the wider text"),
    (r"(a)\1", "", "write the repeated text out"),
    (r"\9", "", "write the repeated text out"),
    (r"(?<n>a)\k<n>", "", "write the repeated text out"),
    (r"[\1]", "", r"write \xHH"),
    (r"\01", "", r"write \xHH"),
    (r"[\07]", "", r"write \xHH"),
    ("(?i)a", "", "give flags such as i beside the pattern"),
    ("(?i:a)", "", "give flags such as i beside the pattern"),
    ("(?P<n>a)", "", r"use (?:...) or (?<name>...)"),
    ("(?>a)", "", r"use (?:...) or (?<name>...)"),
    ("(?", "", r"use (?:...) or (?<name>...)"),
    ("(?<n", "", "add the missing >"),
    ("(?<>a)", "", "use letters, digits and _"),
    ("(?<1>a)", "", "use letters, digits and _"),
    ("(?<n>a)(?<n>b)", "", "each name once"),
    ("a", "ii", "give each flag once"),
    ("a", "g", "use any of i, m, s, u"),
    ("a", "y", "use any of i, m, s, u"),
    ("a", "v", "use any of i, m, s, u"),
    ("a", "I", "use any of i, m, s, u"),
    ("a", " ", "use any of i, m, s, u"),
    ("a" * (MAX_PATTERN_LENGTH + 1), "", "search for a shorter part"),
    ("a" * 10_000_000, "", "search for a shorter part"),
    ("a{1001}", "", "repeat at most 1000 times"),
    ("a{0,1001}", "", "repeat at most 1000 times"),
    ("a{1001,}", "", "repeat at most 1000 times"),
    ("a{" + "9" * 4_000 + "}", "", "repeat at most 1000 times"),
    ("(?:a{100}){100}", "", "repeat at most 1000 times"),
    (r"\p{L}{1000}", "u", "repeat at most 1000 times"),
    ("a{2,1}", "", "write the smaller one first"),
    ("a\\", "", r"write \\ for a backslash"),
    ("[\\", "", r"write \\ for a backslash"),
    ("[a", "", "add the missing ]"),
    ("[", "", "add the missing ]"),
    ("[a-", "", "add the missing ]"),
    ("[^", "", "add the missing ]"),
    ("[b-a]", "", "write the smaller character first"),
    ("(a", "", "add the missing )"),
    ("a)", "", r"write \) for a parenthesis"),
    ("*a", "", r"write \* for the character"),
    ("{2}", "", r"write \{ for the character"),
    ("a**", "", r"write \* for the character"),
    ("a???", "", r"write \? for the character"),
    ("a{2}{3}", "", r"write \{ for the character"),
    ("^*", "", r"write \* for the character"),
    ("$+", "", r"write \+ for the character"),
    (r"\b+", "", r"write \+ for the character"),
    ("(*a)", "", r"write \* for the character"),
    ("a|*", "", r"write \* for the character"),
    (r"\ud83d", "", "write the whole character"),
    (r"\ude00", "", "write the whole character"),
    (r"\ud83d\u0061", "", "write the whole character"),
    (r"\ud83d\uzzzz", "", "write the whole character"),
    (r"[\ud83d-\ude00x]", "", "write the whole character"),
    ("a\ud83d", "", "write the whole character"),
    ("\ude00", "", "write the whole character"),
    (r"\u{110000}", "u", "write hex digits"),
    (r"\u{}", "u", "write hex digits"),
    (r"\u{xyz}", "u", "write hex digits"),
    (r"\u{ 61}", "u", "write hex digits"),
    (r"\u{61", "u", "add the missing }"),
    (r"\p{L", "u", "add the missing }"),
    (r"\p{Nonsense}", "u", "use a general category"),
    (r"\p{Emoji}", "u", "use a general category"),
    (r"\p{scx=Greek}", "u", "use a general category"),
    (r"\p{}", "u", "use a general category"),
    (r"\p{L}}\p{^L}", "u", "use a general category"),
    (r"\p{Script=}", "u", "use a general category"),
    ("(?<" + "1" * 4_000 + ">a)", "", "use letters, digits and _"),
    (r"\p{" + "L" * 4_000 + "}", "u", "use a general category"),
    (r"\p{" + "!" * 4_000 + "}", "u", "use a general category"),
    (r"\p{x=" + "L" * 4_000 + "}", "u", "use a general category"),
]  # fmt: skip

# pattern, flags, line, our match, JavaScript's match: the differences that the module documents
DIFFERENCES: list[tuple[str, str, str, bool, bool]] = [
    ("^.$", "", "😀", True, False),
    ("^[😀]$", "", "😀", True, False),
    ("k", "i", "\u212a", True, False),
    (r"\w", "i", "ſ", True, False),
    (r"\u{61}", "", "a", True, False),
    (r"\u{3}", "", "uuu", False, True),
    (r"\p{L}", "", "é", True, False),
    (r"\p{L}", "", "p{L}", True, True),
    (r"a\r^b", "m", "a\rb", False, True),
    (r"a$\rb", "m", "a\rb", False, True),
    (r"\P{Lu}", "iu", "A", False, True),
    (r"\bſ", "iu", "ſ", False, True),
    (r"\p{C}", "u", "\U000e0fff", False, True),
]  # fmt: skip
SLOPPY = [r"\-", "a{", "]", r"\_", r"[\w-x]", r"\c1", r"\a"]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Asks one Node process, which serves all tests of this module."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, so there is nothing to compare with")
    with subprocess.Popen([node, "-e", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        stdin, stdout = process.stdin, process.stdout

        def answer(pattern: str, flags: str, lines: list[str]) -> Any:
            stdin.write(json.dumps([pattern, flags, lines]) + "\n")
            stdin.flush()
            return json.loads(stdout.readline())

        yield answer


def find_lines(pattern: str, flags: str, lines: list[str]) -> list[str]:
    """The matching lines of one buffer that holds all of them; a leading line prevents an empty buffer."""
    reader = InMemoryReader("\n".join(["", *lines]))
    answer = list(reader.search(Pattern(pattern, flags)))
    return answer[1:] if Pattern(pattern, flags).matches("") else answer


def expected(ask: Ask, pattern: str, flags: str, lines: list[str]) -> list[str]:
    answers = ask(pattern, flags, lines)
    assert isinstance(answers, list), f"{answers}: /{pattern}/{flags}"
    return [line for line, is_found in zip(lines, answers, strict=True) if is_found]


@pytest.mark.parametrize(("pattern", "flags", "lines"), TABLE, ids=[f"/{row[0]}/{row[1]}" for row in TABLE])
def test_pattern_finds_the_lines_that_javascript_finds(ask: Ask, pattern: str, flags: str, lines: list[str]) -> None:
    wanted = expected(ask, pattern, flags, lines)

    assert find_lines(pattern, flags, lines) == wanted
    assert [line for line in lines if Pattern(pattern, flags).matches(line)] == wanted


@pytest.mark.parametrize(
    ("pattern", "flags", "lines", "wanted"),
    [
        ("b", "", ["a", "abc", "b"], ["abc", "b"]),
        ("^b$", "", ["b", "ab", "b\r"], ["b"]),
        ("^b$", "m", ["b", "ab", "b\r"], ["b", "b\r"]),
        (r"\s", "", ["a", "\xa0", "\ufeff", "\x1c", "\x85"], ["\xa0", "\ufeff"]),
        (r"\d", "", ["1", "١"], ["1"]),
        (r"(?<year>\d{4})-\d\d", "", ["2026-01", "26-01"], ["2026-01"]),
        ("É", "i", ["é", "e"], ["é"]),
        ("a.b", "", ["a\rb", "a\u2028b", "axb"], ["axb"]),
        ("a.b", "s", ["a\rb", "a\u2028b", "axb"], ["a\rb", "a\u2028b", "axb"]),
        ("[^]", "", ["", "x"], ["x"]),
        (r"\u{1f600}", "", ["😀", "x"], ["😀"]),
        (r"\n", "", ["a", "b"], []),
        ("", "", ["", "a"], ["", "a"]),
    ],
    ids=range(13),
)
def test_pattern_finds_lines_without_a_javascript_engine(
    pattern: str, flags: str, lines: list[str], wanted: list[str]
) -> None:
    assert find_lines(pattern, flags, lines) == wanted
    assert [line for line in lines if Pattern(pattern, flags).matches(line)] == wanted


@pytest.mark.parametrize(("pattern", "flags", "help"), REFUSED, ids=[f"/{row[0][:20]}/{row[1]}" for row in REFUSED])
def test_refused_pattern_states_what_to_write_instead(pattern: str, flags: str, help: str) -> None:
    with pytest.raises(PatternNotSupported) as caught:
        Pattern(pattern, flags)

    assert help in (caught.value.help or "")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("pattern", [None, 5, b"a"], ids=repr)
def test_pattern_is_text(pattern: Any) -> None:
    with pytest.raises(PatternNotSupported, match="must be text"):
        Pattern(pattern)
    with pytest.raises(PatternNotSupported, match="must be text"):
        Pattern("a", pattern)


@pytest.mark.parametrize(("pattern", "flags", "line", "here", "there"), DIFFERENCES)
def test_difference_is_the_documented_one(
    ask: Ask, pattern: str, flags: str, line: str, here: bool, there: bool
) -> None:
    assert Pattern(pattern, flags).matches(line) is here
    assert ask(pattern, flags, [line]) == [there]


@pytest.mark.parametrize("pattern", SLOPPY)
def test_sloppy_spelling_is_accepted_under_u(ask: Ask, pattern: str) -> None:
    lines = [*WORDS, *CONTROLS, "-"]

    assert ask(pattern, "u", lines) == "SyntaxError"
    assert find_lines(pattern, "u", lines) == expected(ask, pattern, "", lines)


@pytest.mark.parametrize("flags", ["", "i", "m", "s", "u", "ms", "imsu"])
def test_flags_may_be_combined(flags: str) -> None:
    assert Pattern("a", flags).matches("a")


def test_pattern_shows_what_it_was_made_from() -> None:
    assert repr(Pattern("a+", "i")) == "Pattern('a+', 'i')"


def test_half_a_pair_in_a_line_reads_as_a_replacement() -> None:
    assert Pattern("^\ufffd$").matches("\ud800")
    assert not Pattern(r"\?").matches("\ud800")
    assert Pattern("😀").matches("\ud83d\ude00")


def test_longest_pattern_is_accepted() -> None:
    assert Pattern("a" * MAX_PATTERN_LENGTH).matches("a" * MAX_PATTERN_LENGTH)


@pytest.mark.parametrize(
    "pattern",
    ["(" * 2_048 + ")" * 2_048, "(?:" * 800 + "a" + ")*" * 800, "[" * 4_096, "\\" * 4_096, "a|" * 2_048, "(?:" * 1_365],
    ids=["groups", "nested stars", "brackets", "backslashes", "alternatives", "unclosed groups"],
)
def test_monstrous_pattern_is_run_or_refused(pattern: str) -> None:
    try:
        Pattern(pattern).matches("aaa")
    except PatternNotSupported as error:
        assert error.help  # noqa: PT017 - both outcomes are right


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("(a+)+$", "a" * 100_000 + "!"),
        ("(a|aa)+$", "a" * 100_000 + "!"),
        (r"(.*)*x", "a" * 100_000),
        (r"(\w+\s?)+!$", "a " * 50_000),
    ],
)
async def test_pattern_that_would_explode_elsewhere_returns(pattern: str, line: str) -> None:
    with anyio.fail_after(30):
        assert not await anyio.to_thread.run_sync(Pattern(pattern).matches, line)


def patterns(*, atoms: st.SearchStrategy[str], assertions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Small patterns. `^` and `$` stand only at the ends of an alternative, where `m` is exact."""
    quantifiers = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?", "??", "{2}?"])

    def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        grouped = st.builds("{}{}{}".format, st.sampled_from(["(", "(?:"]), inner, st.just(")"))
        repeated = st.builds("{}{}".format, atoms | grouped, quantifiers)
        sequence = st.lists(repeated | assertions, min_size=1, max_size=4).map("".join)
        return sequence | st.lists(sequence, min_size=1, max_size=3).map("|".join)

    bodies = st.recursive(atoms, wider, max_leaves=8)
    anchored = st.builds(
        "{}{}{}".format, st.sampled_from(["", "", "^"]), bodies.map("(?:{})".format), st.sampled_from(["", "", "$"])
    )
    return st.lists(anchored, min_size=1, max_size=2).map("|".join)


SAFE_MEMBERS = ["a", "b", "c", "x", "A", "B", "0", "9", "_", " ", "é", "É", "中", ".", "a-c", "A-C", "0-9", "é-ï"]
SAFE_SETS = [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S"]
SLOPPY_ATOMS = ["{", "}", "]", "a{,2}", r"\-", r"\_", r"\e", "-", r"\x6", r"\u00", r"\c1", "[a-]", r"[\w-a]"]
ATOMS = [
    "a",
    "b",
    "c",
    "A",
    "1",
    " ",
    "é",
    ".",
    *SAFE_SETS,
    r"\x61",
    r"\u0061",
    r"\t",
    r"\r",
    r"\.",
    r"\\",
    r"\/",
    "[^]",
    "[]",
    r"[\b]",
]


def classes(members: list[str]) -> st.SearchStrategy[str]:
    inside = st.lists(st.sampled_from(members), min_size=1, max_size=4).map("".join)
    return st.builds("[{}{}]".format, st.sampled_from(["", "^"]), inside)


def line_lists(alphabet: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.text(alphabet, max_size=8), min_size=1, max_size=12)


def flag_sets(always: str = "") -> st.SearchStrategy[str]:
    return st.sets(st.sampled_from("ims")).map(lambda flags: always + "".join(sorted(flags)))


# `ask` is one process for the whole module and keeps no state between two questions.
FUZZ = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(
    pattern=patterns(
        atoms=st.sampled_from([*ATOMS, *SLOPPY_ATOMS]) | classes([*SAFE_MEMBERS, *SAFE_SETS]),
        assertions=st.sampled_from([r"\b", r"\B"]),
    ),
    flags=flag_sets(),
    lines=line_lists("abcxABC019_ .\t\r\v\xa0\u2028éÉ中{}-]\\/"),
)
def test_random_pattern_finds_what_javascript_finds(ask: Ask, pattern: str, flags: str, lines: list[str]) -> None:
    assert find_lines(pattern, flags, lines) == expected(ask, pattern, flags, lines)


@FUZZ
@given(
    pattern=patterns(
        atoms=st.sampled_from([*ATOMS, "k", "s", "ß", "ω", "😀", r"\u{1f600}", r"\p{L}", r"\p{Lu}", r"\p{Nd}"])
        | classes([*SAFE_MEMBERS, *SAFE_SETS, "k", "j-t", "😀", "😀-😂", r"\p{Ll}", r"\p{Script=Greek}"]),
        assertions=st.nothing(),  # the engine's \b knows ASCII words only
    ),
    flags=flag_sets("u"),
    lines=line_lists("akKsSſ\u212aßẞωΩ\u2126😀😁é1٣ \r\t_"),
)
def test_random_unicode_pattern_finds_what_javascript_finds(
    ask: Ask, pattern: str, flags: str, lines: list[str]
) -> None:
    assert find_lines(pattern, flags, lines) == expected(ask, pattern, flags, lines)


@settings(deadline=None)
@given(
    source=st.text("ab()[]{}?*+|^$\\.-,0123:<>=!nuxcpkLd é😀\ud83d", max_size=20), flags=st.text("imsugx", max_size=3)
)
def test_any_text_compiles_or_is_refused_with_help(source: str, flags: str) -> None:
    try:
        Pattern(source, flags).matches("aab")
    except PatternNotSupported as error:
        assert error.help  # noqa: PT017 - both outcomes are right


@FUZZ
@given(source=st.text("ab()[]{}?*+|^$\\.-,01:<>ndwbé", max_size=10))
def test_any_text_means_what_javascript_means_or_is_refused(ask: Ask, source: str) -> None:
    try:
        answer = find_lines(source, "", WORDS)
    except PatternNotSupported:
        return
    assert answer == expected(ask, source, "", WORDS)
