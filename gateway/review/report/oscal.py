"""The findings of a report as OSCAL assessment results (NIST), for tools of compliance.

The sections of the report are the assessed controls. A finding of the report is an observation, and a risk if it is
high or medium. Ids are UUIDs of version 5 over the content, so that equal reports have equal bytes. Links join findings
with observations and risks: NIST's schema requires `observation-uuid` in `related-observations` and forbids it there.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time
from hashlib import sha256
from typing import Any, Final
from uuid import UUID, uuid5

from gateway.model import escape_invisible
from gateway.review.report.report_data import ReportData
from gateway.review.report.report_input import NoData
from gateway.review.report.section_titles import TITLES, section_field
from gateway.review.report.sections.summary import ReviewFinding

VERSION: Final = "1.1.3"
NAMESPACE: Final = "https://agent-gateway.dev/ns/oscal"
_ROOT: Final = UUID("6f0dfd2e-6f3f-5b1a-9a52-0d6b6a1d1c3e")
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]<>()#|~])")
_CONTROL: Final = "gateway-"
_TYPES: Final = {"test-fails": "TEST", "audit-log": "TEST"}
_LONGEST: Final = 2_000


def render_oscal(report: ReportData, files: Mapping[str, bytes]) -> str:
    """Return assessment results as JSON. `files` are the page and the data that the results refer to, by name."""
    return json.dumps(build_oscal(report, files), indent=1, ensure_ascii=True) + "\n"


def build_oscal(report: ReportData, files: Mapping[str, bytes]) -> dict[str, Any]:
    return _Results(report, files).document()


class _Results:
    def __init__(self, report: ReportData, files: Mapping[str, bytes]) -> None:
        self._report = report
        self._files = files
        self._day = datetime.combine(report.sections.revision.day, time(12), UTC).isoformat().replace("+00:00", "Z")
        whole = sha256(b"".join(sha256(content).digest() for _, content in sorted(files.items())))
        self._seed = uuid5(_ROOT, whole.hexdigest())
        self._page = next((name for name in files if name.endswith(".html")), "")

    def document(self) -> dict[str, Any]:
        revision = self._report.sections.revision
        plan = self._id("plan")
        return {
            "assessment-results": {
                "uuid": self._id("results"),
                "metadata": {
                    "title": _line(f"Review report of {revision.title}"),
                    "last-modified": self._day,
                    "version": revision.revision[:12],
                    "oscal-version": VERSION,
                    "props": list(self._metadata_props()),
                },
                "import-ap": {"href": f"#{plan}"},
                "results": [self._result()],
                "back-matter": {"resources": list(self._resources(plan))},
            }
        }

    def _metadata_props(self) -> Iterator[dict[str, str]]:
        revision = self._report.sections.revision
        yield _prop("revision", revision.revision)
        yield _prop("gateway-version", revision.version)
        if revision.environment:
            yield _prop("environment", revision.environment)
        if revision.commit:
            yield _prop("commit", revision.commit)

    def _result(self) -> dict[str, Any]:
        findings = self._report.summary.findings
        risks = [self._risk(number, found) for number, found in enumerate(findings) if found.grade != "low"]
        result = {
            "uuid": self._id("result"),
            "title": "Review of the declared configuration",
            "description": _line(self._report.summary.verdict),
            "start": self._day,
            "reviewed-controls": {
                "control-selections": [
                    {"include-controls": [{"control-id": f"{_CONTROL}{name}"} for name in self._assessed()]}
                ]
            },
            "findings": [self._finding(name) for name in self._assessed()],
        }
        if findings:
            result["observations"] = [self._observation(number, found) for number, found in enumerate(findings)]
        if risks:
            result["risks"] = risks
        if absent := [name for name in TITLES if name not in self._assessed() and name != "summary"]:
            result["remarks"] = _line(f"Not assessed, because there was no data: {', '.join(absent)}")
        return result

    def _assessed(self) -> list[str]:
        """Return the sections that have data."""
        found = []
        for name in TITLES:
            section = None if name == "summary" else getattr(self._report.sections, section_field(name))
            if section is not None and not isinstance(section, NoData):
                found.append(name)
        return found

    def _finding(self, name: str) -> dict[str, Any]:
        numbered = [(number, each) for number, each in enumerate(self._report.summary.findings) if each.section == name]
        failed = any(each.grade != "low" for _, each in numbered)
        found: dict[str, Any] = {
            "uuid": self._id(f"finding:{name}"),
            "title": TITLES[name],
            "description": f"{len(numbered)} findings" if numbered else "no findings",
            "target": {
                "type": "objective-id",
                "target-id": f"{_CONTROL}{name}",
                "status": {"state": "not-satisfied" if failed else "satisfied"},
            },
        }
        if numbered:
            found["links"] = [
                {"href": f"#{self._id(f'{kind}:{number}')}", "rel": kind}
                for number, each in numbered
                for kind in (("observation",) if each.grade == "low" else ("observation", "risk"))
            ]
        return found

    def _observation(self, number: int, found: ReviewFinding) -> dict[str, Any]:
        props = [_prop("code", found.code), _prop("grade", found.grade)]
        if found.position is not None:
            props += [_prop("file", found.position.file), _prop("line", str(found.position.line))]
        return {
            "uuid": self._id(f"observation:{number}"),
            "title": _line(found.title),
            "description": _line(found.words),
            "props": props,
            "methods": [_TYPES.get(found.code, "EXAMINE")],
            "types": ["finding"],
            "relevant-evidence": [
                {"href": f"{self._page}#{found.section}", "description": f"Section {TITLES[found.section]}"}
            ],
            "collected": self._day,
        }

    def _risk(self, number: int, found: ReviewFinding) -> dict[str, Any]:
        return {
            "uuid": self._id(f"risk:{number}"),
            "title": _line(found.title),
            "description": _line(found.words),
            "statement": _line(f"{found.title}: {found.words}"),
            "props": [_prop("grade", found.grade)],
            "status": "open",
            "links": [{"href": f"#{self._id(f'observation:{number}')}", "rel": "observation"}],
        }

    def _resources(self, plan: str) -> Iterator[dict[str, Any]]:
        yield {
            "uuid": plan,
            "title": "Assessment plan",
            "description": "The sections of the review report that gateway report writes, each assessed as a control.",
        }
        for name, content in sorted(self._files.items()):
            media = "text/html" if name.endswith(".html") else "application/json"
            digest = {"algorithm": "SHA-256", "value": sha256(content).hexdigest()}
            yield {
                "uuid": self._id(f"file:{name}"),
                "title": _line(name),
                "rlinks": [{"href": name, "media-type": media, "hashes": [digest]}],
            }

    def _id(self, name: str) -> str:
        return str(uuid5(self._seed, name))


def _prop(name: str, value: str) -> dict[str, str]:
    return {"name": name, "ns": NAMESPACE, "value": escape_invisible(value).strip() or "none"}


def _line(text: str) -> str:
    """Return one line in which Markdown and HTML have no meaning, and nothing is hidden."""
    shown = escape_invisible(text[:_LONGEST]).strip()
    return _MARKDOWN.sub(r"\\\1", shown) or "none"
