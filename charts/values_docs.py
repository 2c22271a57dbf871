"""Write the generated documentation of the chart: `python charts/values_docs.py`.

The comments of values.yaml are the source of the table of charts/gateway/README.md, between its two marks,
and the descriptions in values.schema.json, which editors show. The rules of dashboards/alerts.yaml are copied to
files/metrics.yaml: a chart is packed without what is outside of its folder. With --check nothing is written, and
exit code 1 means that a file is out of date.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parent / "gateway"
ALERTS: Final = CHART.parent.parent / "dashboards" / "alerts.yaml"
COPIED: Final = "# Copied from dashboards/alerts.yaml by make charts.\n"
BEGIN: Final = "<!-- values: written by make charts -->"
END: Final = "<!-- end of values -->"


@dataclass(frozen=True)
class Value:
    """One value: its path, its heading, its comment and its default."""

    path: tuple[str, ...]
    heading: str
    text: str
    default: Any


def values_of(text: str) -> Iterator[Value]:
    """Yield every leaf of the values with the comment above it. Raise `ValueError` for a value without a comment."""
    defaults = yaml.safe_load(text)
    for path, heading, comment in _commented(text.splitlines()):
        default = _at(defaults, path)
        is_branch = isinstance(default, dict) and bool(default)
        if not is_branch:
            if not comment:
                raise ValueError(f"values.yaml says nothing about {'.'.join(path)}; write a comment above it")
            yield Value(path, heading, comment, default)


def _commented(lines: list[str]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    heading, comment, path = "", [], []
    for line in lines:
        indent = (len(line) - len(line.lstrip())) // 2
        if line.startswith("## "):
            heading, comment = line.removeprefix("## "), []
        elif line.lstrip().startswith("# "):
            comment.append(line.strip().removeprefix("# "))
        elif found := re.match(r" *([\w-]+):", line):
            path = [*path[:indent], found[1]]
            yield tuple(path), heading, " ".join(comment)
            comment = []
        elif not line.strip():
            comment = []


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if isinstance(values, list):  # the default of a list is shown whole, at the list
            return values
        values = values[key]
    return values


def table(values: list[Value]) -> str:
    """Markdown: one table for each heading."""
    lines: list[str] = []
    for heading in dict.fromkeys(value.heading for value in values):
        lines += [f"### {heading}", "", "| value | unless you say otherwise | |", "|---|---|---|"]
        lines += [
            f"| `{'.'.join(value.path)}` | `{json.dumps(value.default)}` | {value.text.replace('|', chr(92) + '|')} |"
            for value in values
            if value.heading == heading
        ]
        lines.append("")
    return "\n".join(lines)


def described(schema: dict[str, Any], values: list[Value]) -> dict[str, Any]:
    """The schema with a description at each value. Raises `KeyError` for a value that the schema does not know."""
    for value in values:
        node = schema
        for key in value.path:
            name = node.get("$ref", "").removeprefix("#/$defs/")
            node = (schema["$defs"][name] if name else node)["properties"]
            shared = bool(name)
            node = node[key]
        if not shared:
            node["description"] = value.text
    return schema


def rules_of(alerts: str) -> str:
    """The rules of the only group, as they stand there."""
    _, _, rules = alerts.partition("    rules:\n")
    return COPIED + textwrap.dedent(rules)


def written() -> dict[Path, str]:
    """What each file should contain."""
    values = list(values_of((CHART / "values.yaml").read_text(encoding="utf-8")))
    readme, schema = CHART / "README.md", CHART / "values.schema.json"
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    known = json.loads(schema.read_text(encoding="utf-8"))
    return {
        CHART / "files" / "metrics.yaml": rules_of(ALERTS.read_text(encoding="utf-8")),
        readme: f"{before}{BEGIN}\n\n{table(values)}\n{END}{after}",
        schema: json.dumps(described(known, values), indent=2, ensure_ascii=False) + "\n",
    }


def main() -> int:
    old = {path: text for path, text in written().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in old.items():
        if "--check" in sys.argv:
            print(f"{path.relative_to(CHART.parent.parent)} is old; run: make charts", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(CHART.parent.parent)}")
    return 1 if old and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
