"""Review the definition of a tool, prompt or template: findings with positions for a person, no verdict.

Findings are hidden characters, mixed alphabets, long texts, values that are sentences, foreign URLs, undeclared
arguments, mentions of other servers' tools, and instructions to the model.

Hidden characters are marks that change the direction of text, fillers, tags and selectors. `is_visible` refuses all of
them; `find_hidden_characters` accepts the few that scripts and emoji need.

The list of instructions is short on purpose: each entry is one way to take over a model, and legitimate definitions do
not match. It is a hint, not a proof; an attacker can avoid it.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.model import BLANK_LETTERS, confusable_skeleton, glob_matches
from gateway.registries.diagnostics import Diagnostic, Position
from gateway.registries.imported_definition import UpstreamDefinition, iter_texts

_BLANK: Final = re.compile(f"[{BLANK_LETTERS}]")
_BIDIRECTIONAL: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")
"""Required inside words of some scripts and inside emoji."""


def is_visible(text: str) -> bool:
    """Whether every character is visible; a line break is not."""
    return text.isprintable() and _BLANK.search(text) is None


def is_bidirectional(character: str) -> bool:
    return character in _BIDIRECTIONAL


def find_hidden_characters(text: str) -> Iterator[tuple[int, str]]:
    """Yield hidden characters with their indexes, without tabs, line breaks and no-break spaces.

    A single joiner is accepted after a letter or sign that is not ASCII.
    """
    if text.isascii() and text.isprintable():
        return
    for index, character in enumerate(text):
        if character in "\t\n\r\xa0\u202f" or (character.isprintable() and not _BLANK.match(character)):
            continue
        if unicodedata.category(character) == "Zs":
            continue
        if character in _JOINERS and index and _is_joined(text[index - 1]):
            continue
        yield index, character


def _is_joined(before: str) -> bool:
    """Whether a joiner may follow the character. The only ASCII characters are those of keycaps."""
    if before in "#*0123456789":
        return True
    return not before.isascii() and before not in _JOINERS - {"\ufe0f"} and unicodedata.category(before)[0] in "LMSN"


_RULES: Final = r"(?:instruction|prompt|rule|guideline|message|direction|policy|policie|command|constraint)s?"
_PEOPLE: Final = r"(?:users?|humans?|anyone|anybody|customer|operator|person)"
_TELL: Final = r"(?:tell|mention|inform|reveal|notify|alert|disclose|disclos|warn)(?:ing)?"
_HAND: Final = (
    "read|send|include|pass|provide|attach|append|upload|forward|copy|put|paste|cat|fetch|submit|contents? of"
)
_FILES: Final = (
    r"~/\.|/home/|/root/|/etc/passwd|/etc/shadow|id_rsa|\.ssh\b|\.aws/|\.env\b|\.netrc|\.npmrc|\.kube/|mcp\.json"
)
_TALK: Final = "private keys?|system prompt|environment variables|(?:chat|conversation) history"
_ALL_OF_IT: Final = "(?:whole|entire|full|previous) conversation"
_BEFORE: Final = "before|prior to|instead of|after|whenever"
_OTHERS: Final = r"(?:any|every|all|each)\s+(?:of\s+)?(?:the\s+)?(?:other\s+)?(?:tools?|functions?|calls?|actions?)"


@dataclass(frozen=True, slots=True)
class SuspiciousPhrase:
    """A pattern of instructions, with the end of the sentence "it instructs the model ..."."""

    says: str
    pattern: re.Pattern[str]


def _phrase(says: str, pattern: str) -> SuspiciousPhrase:
    return SuspiciousPhrase(says, re.compile(pattern, re.IGNORECASE))


PHRASES: Final = (
    _phrase(
        "to ignore other instructions",
        r"\b(?:ignore|disregard|forget|override|bypass)\b[^.]{0,30}"
        r"\b(?:previous|prior|above|earlier|all|any|other|your|system|user'?s?)\b[^.]{0,25}"
        rf"\b{_RULES}\b",
    ),
    _phrase(
        "to hide something from people",
        r"\b(?:do not|don'?t|never|must not|mustn'?t|without|avoid|refrain from)\b[^.]{0,20}"
        rf"\b{_TELL}\b[^.]{{0,25}}\b{_PEOPLE}\b",
    ),
    _phrase(
        "to call it before or instead of other tools",
        rf"\b(?:always|must|first|required to|have to|need to|should)\b[^.]{{0,60}}\b(?:{_BEFORE})\b[^.]{{0,30}}"
        rf"\b{_OTHERS}\b",
    ),
    _phrase(
        "to prefer it over others",
        r"\b(?:prefer|choose|select|use|call|prioriti[sz]e)\b[^.]{0,25}\bthis (?:tool|function|one)\b[^.]{0,20}"
        r"\b(?:over|instead of|rather than|and not|above)\b[^.]{0,15}\b(?:any|all|every|others?|similar)\b",
    ),
    _phrase(
        "to hand over secrets or the conversation",
        rf"\b(?:{_HAND})\b[^.]{{0,60}}?(?:{_FILES}|{_TALK}|{_ALL_OF_IT})",
    ),
    _phrase(
        "with markup for models",
        r"<\s*/?\s*(?:important|system|secret|instructions?|critical|admin|hidden|assistant)\b[^>]{0,40}>"
        r"|<\|(?:im_start|im_end|system|endoftext)\|>|\[/?(?:INST|SYSTEM)\]|(?:^|\n)\s*(?:system|assistant)\s*:\s",
    ),
)


def find_phrase(text: str) -> tuple[SuspiciousPhrase, str] | None:
    """Return the first suspicious phrase of a text and its words, or `None`."""
    plain = _plain(text)
    for phrase in PHRASES:
        found = phrase.pattern.search(plain)
        if found is not None:
            return phrase, found[0].strip()
    return None


def _plain(text: str) -> str:
    """Return the text as a model may read it: normalised to NFKC, without hidden characters."""
    hidden = {index for index, _ in find_hidden_characters(text)}
    seen = "".join(char for index, char in enumerate(text) if index not in hidden) if hidden else text
    return re.sub(r"[^\S\n]+", " ", unicodedata.normalize("NFKC", seen)).replace("\u2019", "'")


DefinitionPath = tuple[str | int, ...]

LONGEST_DESCRIPTION: Final = 8_000
LONGEST_PART: Final = 4_000
"""Maximum length of any other text."""

LONGEST_VALUE: Final = 200
"""Maximum length of a value, such as an enum entry or a default."""

_VALUES: Final = frozenset({"enum", "default", "const", "title"})
_NOT_READ: Final = frozenset({"$schema", "$id", "$ref", "pattern", "uriTemplate", "format"})
"""Keys whose values are read by programs only."""

_URL: Final = re.compile(
    r"\b(https?|wss?|ftp|file)://([^\s/?#\"'<>)\]}\\,;]+)|\b(javascript|data|vbscript):[^\s]", re.IGNORECASE
)
_OPEN_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]", "example.com", "*.example.com", "example.org", "*.example.org")
_WORD: Final = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
_ARGUMENT: Final = re.compile(
    r"\b(?:parameter|argument)s?\s+(?:called\s+|named\s+)?[`'\"]([A-Za-z_][\w-]{0,63})[`'\"]"
    r"|[`'\"]([A-Za-z_][\w-]{0,63})[`'\"]\s+(?:parameter|argument)\b"
)
_DISTINCT: Final = re.compile(r"[A-Za-z0-9][_.-][A-Za-z0-9]|[a-z][A-Z]")
_SHORTEST_NAME: Final = 6
_SCRIPTS: Final = ("LATIN", "CYRILLIC", "GREEK")


@dataclass(frozen=True, slots=True)
class ReviewContext:
    """The context of a review: tools of other upstreams, and hosts that the texts may mention."""

    others: Mapping[str, str] = field(default_factory=dict)
    """Owners by tool name, without the tools of this upstream."""
    hosts: Collection[str] = ()


def review_definition(definition: UpstreamDefinition, around: ReviewContext) -> Iterator[Diagnostic]:
    """Yield each finding once per place. Hidden text is an error, because it is never accidental."""
    known = frozenset(map(confusable_skeleton, _declared_names(definition.given)))
    for path, text in iter_texts(definition.given):
        if path and path[-1] in _NOT_READ:
            continue
        is_key = text == (path[-1] if path else None)
        yield from _find_hidden(definition, path, text)
        yield from _find_mixed(definition, path, text)
        yield from _find_long(definition, path, text)
        if not is_key:
            yield from _find_addresses(definition, path, text, around.hosts)
            yield from _find_undeclared(definition, path, text, known)
            yield from _find_mentions(definition, path, text, around.others)
        yield from _find_instructions(definition, path, text)


def other_upstream_tools(upstream: str, tools: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the owners of other tools by name; `tools` has names by owner."""
    own = {name.casefold() for name in tools.get(upstream, ())}
    return {
        name.casefold(): owner
        for owner, names in sorted(tools.items())
        for name in names
        if owner != upstream and name.casefold() not in own and _is_distinct(name)
    }


def _is_distinct(name: str) -> bool:
    """Whether a name is distinctive, unlike a common word."""
    return len(name) >= _SHORTEST_NAME and _DISTINCT.search(name) is not None


def _find_hidden(definition: UpstreamDefinition, path: DefinitionPath, text: str) -> Iterator[Diagnostic]:
    found = list(find_hidden_characters(text))
    if found:
        _, first = found[0]
        turns = any(is_bidirectional(char) for _, char in found)
        what = "characters that change the direction of text" if turns else "invisible characters"
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        message = f"{_place(definition, path)} has {what}: U+{ord(first):04X}{more}"
        yield Diagnostic("hidden-text", message, _at(definition, path), help="do not import it, or have it fixed")


def _find_mixed(definition: UpstreamDefinition, path: DefinitionPath, text: str) -> Iterator[Diagnostic]:
    """Yield a finding for a word that mixes alphabets, which can imitate another word."""
    if text.isascii():
        return
    for word in re.findall(r"\w+", text):
        scripts = {script for char in word if (script := _script(char)) is not None}
        if len(scripts) > 1:
            message = f"{_place(definition, path)} has a word that mixes alphabets: {_ascii(word)}"
            yield _warning("mixed-alphabets", message, definition, path, "compare it with the word that it resembles")
            return


def _script(char: str) -> str | None:
    if char.isascii():
        return "LATIN" if char.isalpha() else None
    name = unicodedata.name(char, "")
    return next((script for script in _SCRIPTS if name.startswith(script)), None)


def _find_long(definition: UpstreamDefinition, path: DefinitionPath, text: str) -> Iterator[Diagnostic]:
    limit = LONGEST_DESCRIPTION if path == ("description",) else LONGEST_PART
    if len(text) > limit:
        message = f"{_place(definition, path)} has {len(text)} characters; reviewers rarely read more than {limit}"
        yield _warning("long-text", message, definition, path, "read all of it")
    elif _is_value(path) and len(text) > LONGEST_VALUE and text.count(" ") > 8:
        message = f"{_place(definition, path)} is a value of {len(text)} characters that looks like prose"
        yield _warning("long-text", message, definition, path, "read all of it")


def _is_value(path: DefinitionPath) -> bool:
    return len(path) > 1 and any(step in _VALUES for step in path[-2:])


def _find_addresses(
    definition: UpstreamDefinition, path: DefinitionPath, text: str, hosts: Collection[str]
) -> Iterator[Diagnostic]:
    for found in _URL.finditer(text):
        if found[3] and "icons" in path:  # small inline images
            continue
        host = (found[2] or "").rpartition("@")[2].casefold()
        bare = host if host.startswith("[") else host.partition(":")[0]
        is_known = bool(bare) and any(glob_matches(bare.rstrip("."), each) for each in (*_OPEN_HOSTS, *hosts))
        if not is_known:
            target = _ascii(bare or f"{found[3]}:")
            message = f"{_place(definition, path)} has a URL of {target}"
            help = "if it is legitimate, add the host to the Upstream: review: {hosts: [...]}"
            yield _warning("foreign-address", message, definition, path, help)
            return


def _find_undeclared(
    definition: UpstreamDefinition, path: DefinitionPath, text: str, known: frozenset[str]
) -> Iterator[Diagnostic]:
    if definition.kind != "tool":
        return
    for found in _ARGUMENT.finditer(text):
        name = found[1] or found[2]
        if confusable_skeleton(name) not in known:
            message = f"{_place(definition, path)} mentions an argument {name!r} that is not declared"
            yield _warning("undeclared-argument", message, definition, path, "find out where a value would go")
            return


def _declared_names(value: Any) -> Iterator[str]:
    """Yield the names of all properties, at any depth."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "properties" and isinstance(item, Mapping):
                yield from item
            yield from _declared_names(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _declared_names(item)


def _find_mentions(
    definition: UpstreamDefinition, path: DefinitionPath, text: str, others: Mapping[str, str]
) -> Iterator[Diagnostic]:
    for found in _WORD.finditer(text):
        owner = others.get(found[0].casefold())
        if owner is not None:
            message = f"{_place(definition, path)} mentions {found[0]!r}, a tool of {owner}"
            yield _warning("mentions-tool", message, definition, path, "a server must not direct the use of others")
            return


def _find_instructions(definition: UpstreamDefinition, path: DefinitionPath, text: str) -> Iterator[Diagnostic]:
    found = find_phrase(text)
    if found is not None:
        phrase, words = found
        message = f"{_place(definition, path)} instructs the model {phrase.says}: {_ascii(words)}"
        yield _warning(
            "instructs-model", message, definition, path, "a definition describes a tool and gives no instructions"
        )


def _warning(code: str, message: str, definition: UpstreamDefinition, path: DefinitionPath, help: str) -> Diagnostic:
    return Diagnostic(code, message, _at(definition, path), "warning", help)


def _place(definition: UpstreamDefinition, path: DefinitionPath) -> str:
    shown = ".".join(str(step) for step in path)
    kind = "" if definition.kind == "tool" else f"{definition.kind} "
    return f"{kind}{_ascii(definition.identity)}: {_ascii(shown)}"


def _at(definition: UpstreamDefinition, path: DefinitionPath) -> Position:
    if definition.locate is not None:
        return definition.locate(path)
    return definition.position or Position(definition.upstream, 1)


def _ascii(text: str, limit: int = 80) -> str:
    """Return the text as one short line without hidden characters."""
    line = " ".join(text.split())
    shown = line if len(line) <= limit else f"{line[:limit]}…"
    return ascii(shown) if not shown.isascii() or " " in shown else shown
