"""YAML text to documents with positions, and to a diagnostic for everything in it that must not be there.

Refused are syntax errors, repeated and non-text keys, tags, merge keys, aliases that multiply or contain
themselves, deep nesting and characters nobody can see. Reading goes on after a problem wherever it can: after a
syntax error, at the next `---`. Knows nothing of kinds, folders or the environment.
"""

from functools import cached_property
from typing import Any, Final

import yaml

from gateway.config.nodes import Document, Path, Token
from gateway.config.text import MAX_BYTES, Places, Problems, TooManyProblems, cleaned, clipped, decode, lines, too_large
from gateway.config.tree import TooDeep, Tree
from gateway.governance.diagnostics import Diagnostic, Position, in_order

__all__ = ["Document", "Path", "read_bytes", "read_text"]

_MAX_RESTARTS: Final = 20
"""Each one hands the rest of the file to the parser again."""

_Loader: Final[Any] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

_SYNTAX_HELP: Final = (
    ("mapping values are not allowed", "put a value that contains ': ' in quotes"),
    ("cannot start any token", "put the value in quotes"),
    ("scanning a quoted scalar", "a quote is opened and never closed"),
    ("scanning an alias", "put a value that starts with '*' in quotes"),
    ("scanning an anchor", "put a value that starts with '&' in quotes"),
    ("could not find expected ':'", "a line of a mapping is 'key: value'"),
)


def read_bytes(
    data: bytes, file: str, *, loader: Any = _Loader, limit: int = MAX_BYTES
) -> tuple[list[Document], list[Diagnostic]]:
    """`read_text` for what a file holds."""
    text, problems = decode(data, file, limit=limit)
    return ([], problems) if text is None else read_text(text, file, loader=loader, limit=limit)


def read_text(
    text: str, file: str, *, loader: Any = _Loader, limit: int = MAX_BYTES
) -> tuple[list[Document], list[Diagnostic]]:
    """The documents of a file that could be read, and every problem found, in the order of the file.

    A document whose problems are local (a repeated key, a tag) is among them, so that later layers can say what
    else is wrong; one that is cut short by a syntax error or is not a mapping is not. `file` only names it.
    """
    if len(text) > limit or (not text.isascii() and len(text.encode(errors="replace")) > limit):
        return [], [too_large(file, limit)]
    problems = Problems()
    tree = Tree(file, problems)
    try:
        _Reading(cleaned(text, file, problems=problems), file, tree=tree, problems=problems).run(loader)
    except TooManyProblems:
        problems.close()
    return tree.documents, in_order(problems.found)


class _Reading:
    """One pass over a file: the parser's events in, calls to the tree out."""

    def __init__(self, text: str, file: str, *, tree: Tree, problems: Problems) -> None:
        self._text = text
        self._file = file
        self._tree = tree
        self._problems = problems
        self._lines_before = 0
        self._characters_before = 0

    def run(self, loader: Any) -> None:
        """Read to the end, going on at the next document after what stops the parser."""
        for _ in range(_MAX_RESTARTS):
            try:
                self._parse(loader(self._text[self._characters_before :]))
                return
            except yaml.MarkedYAMLError as error:
                line = self._syntax(error)
            except _Abandoned as abandoned:
                line = abandoned.line
            self._tree.begin()
            resume = next((marker for marker in self._markers if marker >= line and marker > self._lines_before), None)
            if resume is None:
                return
            self._lines_before = resume
            self._characters_before = self._places.offset_of(resume)
        raise TooManyProblems

    @cached_property
    def _places(self) -> Places:
        return Places(self._text, self._file)

    @cached_property
    def _lines(self) -> list[str]:
        return lines(self._text)

    @cached_property
    def _markers(self) -> list[int]:
        """Lines (from 0) that start a document: `---` at the margin does so wherever it stands."""
        numbered = enumerate(self._lines)
        return [number for number, line in numbered if line[:3] == "---" and line[3:4] in ("", " ", "\t")]

    def _parse(self, parser: Any) -> None:
        """Hand each event to the tree; the most frequent first, as a large folder has a hundred thousand of them."""
        tree, next_event, token = self._tree, parser.get_event, self._token
        try:
            while parser.check_event():
                event = next_event()
                kind = type(event)
                if kind is yaml.ScalarEvent:
                    if event.tag is None:
                        is_plain = event.implicit[0]
                    else:  # never implicit: without its tag it is plain if it has no quotes
                        self._refuse_tag(event)
                        is_plain = not event.style
                    tree.scalar(event.value, token(event), is_plain=is_plain, anchor=event.anchor)
                elif kind is yaml.MappingStartEvent:
                    self._start({}, event)
                elif kind is yaml.SequenceStartEvent:
                    self._start([], event)
                elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                    tree.end()
                elif kind is yaml.AliasEvent:
                    tree.alias(event.anchor, token(event))
                elif kind is yaml.DocumentEndEvent:
                    tree.finish()
        finally:
            parser.dispose()

    def _start(self, container: Any, event: Any) -> None:
        if event.tag is not None:
            self._refuse_tag(event)
        mark = event.start_mark
        try:
            self._tree.start(container, (self._lines_before + mark.line + 1, mark.column + 1, 1), anchor=event.anchor)
        except TooDeep as error:
            raise _Abandoned(self._lines_before + mark.line) from error

    def _token(self, event: Any) -> Token:
        start, end = event.start_mark, event.end_mark
        column = start.column
        # 1 for what spans lines: only a scalar on one line is as wide as its text, which substitution relies on
        width = (end.column - column or 1) if end.line == start.line else 1
        return self._lines_before + start.line + 1, column + 1, width

    def _refuse_tag(self, event: Any) -> None:
        start = end = self._text.index("!", self._characters_before + event.start_mark.index)
        while end < len(self._text) and not self._text[end].isspace() and self._text[end] not in ",[]{}":
            end += 1
        message = f"the tag {clipped(self._text[start:end])} is not read"
        help = "write the value without a tag; put it in quotes if it is text"
        self._problems.note("yaml-tag", message, self._places.at(start, width=end - start), help=help)

    def _syntax(self, error: yaml.MarkedYAMLError) -> int:
        """Note the error; the line (from 0) at which the parser stopped."""
        problem = error.problem or "this is not YAML"
        stopped = self._at(error.problem_mark)
        position = self._last_token() if self._is_blank_from(stopped.line - 1) else stopped
        related: tuple[tuple[str, Position], ...] = ()
        if error.context and error.context_mark:
            began = self._at(error.context_mark)
            related = ((error.context, began),) if began.line != position.line else ()
        is_end = position is not stopped or stopped.line - 1 in self._markers
        help = self._syntax_help(f"{error.context} {problem}", position, is_end=is_end)
        self._problems.note("yaml-syntax", problem, position, help=help, related=related)
        return stopped.line - 1

    def _syntax_help(self, told: str, position: Position, *, is_end: bool) -> str | None:
        if self._lines[position.line - 1][position.column - 1 :].startswith("\t"):
            return "indent with spaces, not tabs"
        if self._lines[position.line - 1][: position.column].endswith("${"):
            return "put a text with ${...} in quotes where it stands between braces or brackets"
        known = next((help for part, help in _SYNTAX_HELP if part in told), None)
        return known or ("a bracket or brace above is opened and never closed" if is_end else None)

    def _is_blank_from(self, line: int) -> bool:
        return not any(each.strip() for each in self._lines[line:])

    def _last_token(self) -> Position:
        """What the end of a file breaks off: shown there rather than on an empty line below it."""
        number, line = max(
            ((number, line) for number, line in enumerate(self._lines, 1) if line.strip()), default=(1, "")
        )
        return Position(self._file, number, len(line.rstrip()) + 1)

    def _at(self, mark: Any) -> Position:
        return Position(self._file, self._lines_before + mark.line + 1, mark.column + 1)


class _Abandoned(Exception):
    """The document is not read to its end; the diagnostic is already noted."""

    def __init__(self, line: int) -> None:
        self.line = line
