"""Parse YAML text to documents with positions and diagnostics.

Refused are syntax errors, repeated and non-text keys, tags, merge keys, aliases that multiply or contain themselves,
deep nesting and invisible characters. Parsing continues after a problem if possible; after a syntax error, at the next
`---`.
"""

from functools import cached_property
from typing import Any, Final

import yaml

from gateway.config.yaml.document import (
    MAX_BYTES,
    LineOffsets,
    ProblemList,
    TokenRange,
    TooManyProblems,
    YamlDocument,
    check_characters,
    decode_file,
    size_problem,
    split_lines,
    truncate_line,
)
from gateway.config.yaml.tree_builder import NestingTooDeep, TreeBuilder
from gateway.registries import Diagnostic, Position, sort_diagnostics

_MAX_RESTARTS: Final = 20
"""Maximum number of restarts; each parses the rest of the file again."""

_Loader: Final[Any] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

_SYNTAX_HELP: Final = (
    ("mapping values are not allowed", "put a value that contains ': ' in quotes"),
    ("cannot start any token", "put the value in quotes"),
    ("scanning a quoted scalar", "close the quote"),
    ("scanning an alias", "put a value that starts with '*' in quotes"),
    ("scanning an anchor", "put a value that starts with '&' in quotes"),
    ("could not find expected ':'", "write each line of a mapping as 'key: value'"),
)


def parse_bytes(
    data: bytes, file: str, *, loader: Any = _Loader, limit: int = MAX_BYTES
) -> tuple[list[YamlDocument], list[Diagnostic]]:
    """Decode the bytes of a file and parse them."""
    text, problems = decode_file(data, file, limit=limit)
    return ([], problems) if text is None else parse_text(text, file, loader=loader, limit=limit)


def parse_text(
    text: str, file: str, *, loader: Any = _Loader, limit: int = MAX_BYTES
) -> tuple[list[YamlDocument], list[Diagnostic]]:
    """Return the readable documents of a file and all problems, in the order of the file.

    Documents with local problems (a repeated key, a tag) are included, so that later layers can report further
    problems. Documents with a syntax error and documents that are no mapping are not. `file` is only a name.
    """
    if len(text) > limit or (not text.isascii() and len(text.encode(errors="replace")) > limit):
        return [], [size_problem(file, limit)]
    problems = ProblemList()
    tree = TreeBuilder(file, problems)
    try:
        _FileParser(check_characters(text, file, problems=problems), file, tree=tree, problems=problems).run(loader)
    except TooManyProblems:
        problems.close()
    return tree.documents, sort_diagnostics(problems.found)


class _FileParser:
    """One pass over a file, which converts parser events to calls of the tree builder."""

    def __init__(self, text: str, file: str, *, tree: TreeBuilder, problems: ProblemList) -> None:
        self._text = text
        self._file = file
        self._tree = tree
        self._problems = problems
        self._lines_before = 0
        self._characters_before = 0

    def run(self, loader: Any) -> None:
        """Parse to the end. After an error that stops the parser, continue at the next document."""
        for _ in range(_MAX_RESTARTS):
            try:
                self._parse(loader(self._text[self._characters_before :]))
                return
            except yaml.MarkedYAMLError as error:
                line = self._add_syntax_error(error)
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
    def _places(self) -> LineOffsets:
        return LineOffsets(self._text, self._file)

    @cached_property
    def _lines(self) -> list[str]:
        return split_lines(self._text)

    @cached_property
    def _markers(self) -> list[int]:
        """Lines, counted from 0, that start a document: `---` in the first column."""
        numbered = enumerate(self._lines)
        return [number for number, line in numbered if line[:3] == "---" and line[3:4] in ("", " ", "\t")]

    def _parse(self, parser: Any) -> None:
        """Pass each event to the tree, with the most frequent types first: a large folder has 100,000 events."""
        tree, next_event, token = self._tree, parser.get_event, self._token
        try:
            while parser.check_event():
                event = next_event()
                kind = type(event)
                if kind is yaml.ScalarEvent:
                    if event.tag is None:
                        is_plain = event.implicit[0]
                    else:  # a tagged scalar is never implicit; it is plain if it has no quotes
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
        except NestingTooDeep as error:
            raise _Abandoned(self._lines_before + mark.line) from error

    def _token(self, event: Any) -> TokenRange:
        start, end = event.start_mark, event.end_mark
        column = start.column
        # width 1 if it spans lines; substitution relies on the width of a scalar on one line
        width = (end.column - column or 1) if end.line == start.line else 1
        return self._lines_before + start.line + 1, column + 1, width

    def _refuse_tag(self, event: Any) -> None:
        start = end = self._text.index("!", self._characters_before + event.start_mark.index)
        while end < len(self._text) and not self._text[end].isspace() and self._text[end] not in ",[]{}":
            end += 1
        message = f"the tag {truncate_line(self._text[start:end])} is not supported"
        help = "write the value without a tag; put it in quotes if it is text"
        self._problems.note("yaml-tag", message, self._places.at(start, width=end - start), help=help)

    def _add_syntax_error(self, error: yaml.MarkedYAMLError) -> int:
        """Add the error. Return the line, counted from 0, at which the parser stopped."""
        problem = error.problem or "the text is not YAML"
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

    def _syntax_help(self, error: str, position: Position, *, is_end: bool) -> str | None:
        if self._lines[position.line - 1][position.column - 1 :].startswith("\t"):
            return "indent with spaces, not tabs"
        if self._lines[position.line - 1][: position.column].endswith("${"):
            return "put a text with ${...} in quotes inside braces or brackets"
        known = next((help for part, help in _SYNTAX_HELP if part in error), None)
        return known or ("close the bracket or brace that is open above" if is_end else None)

    def _is_blank_from(self, line: int) -> bool:
        return not any(each.strip() for each in self._lines[line:])

    def _last_token(self) -> Position:
        """Return the position after the last text of the file, to report an unexpected end there."""
        number, line = max(
            ((number, line) for number, line in enumerate(self._lines, 1) if line.strip()), default=(1, "")
        )
        return Position(self._file, number, len(line.rstrip()) + 1)

    def _at(self, mark: Any) -> Position:
        return Position(self._file, self._lines_before + mark.line + 1, mark.column + 1)


class _Abandoned(Exception):
    """The rest of the document is skipped; the diagnostic is already added."""

    def __init__(self, line: int) -> None:
        self.line = line
