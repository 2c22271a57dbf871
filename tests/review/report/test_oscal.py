"""The OSCAL assessment results are valid by NIST's schema, whatever a report says."""

import json
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from gateway.review.report.oscal import VERSION, render_oscal
from gateway.review.report.report_data import ReportData
from gateway.review.report.sections.summary import ReviewFinding
from tests.review.report.oscal_schema import load_schema
from tests.review.report.report_projects import example_report
from tests.review.report.test_page import HOSTILE, hostile_report

FILES = {"review.html": b"page", "review.json": b"data"}


@pytest.fixture(scope="module")
def validator() -> jsonschema_rs.Draft7Validator:
    schema = json.loads(load_schema())
    assert (
        schema["$id"] == "http://csrc.nist.gov/ns/oscal/1.2.0/oscal-ar-schema.json"
    )  # 1.2 accepts what is valid in 1.1
    return jsonschema_rs.Draft7Validator(schema, validate_formats=True)


def results(report: ReportData) -> Any:
    return json.loads(render_oscal(report, FILES))


def with_findings(*grades: str) -> ReportData:
    report = example_report()
    findings = tuple(ReviewFinding("code", grade, "Title", "words", "rules") for grade in grades)  # type: ignore[arg-type]  # they are grades
    return replace(report, summary=replace(report.summary, findings=findings))


def test_results_of_the_example_are_valid(validator: jsonschema_rs.Draft7Validator) -> None:
    found = results(example_report())

    validator.validate(found)
    assert found["assessment-results"]["metadata"]["oscal-version"] == VERSION


@pytest.mark.parametrize("text", [*HOSTILE, "", " ", "\n", "x" * 5000])
def test_results_with_hostile_texts_are_valid(validator: jsonschema_rs.Draft7Validator, text: str) -> None:
    validator.validate(results(hostile_report(text)))


def test_schema_refuses_what_is_no_result(validator: jsonschema_rs.Draft7Validator) -> None:
    broken = results(example_report())
    del broken["assessment-results"]["import-ap"]

    assert not validator.is_valid(broken)


def test_results_without_findings_are_valid_and_satisfied(validator: jsonschema_rs.Draft7Validator) -> None:
    found = results(with_findings())

    validator.validate(found)
    [result] = found["assessment-results"]["results"]
    assert {each["target"]["status"]["state"] for each in result["findings"]} == {"satisfied"}
    assert "risks" not in result


def test_grave_findings_are_risks_and_leave_their_section_unsatisfied(
    validator: jsonschema_rs.Draft7Validator,
) -> None:
    found = results(with_findings("high", "medium", "low"))

    validator.validate(found)
    [result] = found["assessment-results"]["results"]
    assert (len(result["observations"]), len(result["risks"])) == (3, 2)
    states = {each["target"]["target-id"]: each["target"]["status"]["state"] for each in result["findings"]}
    assert [name for name, state in states.items() if state == "not-satisfied"] == ["gateway-rules"]


def test_sections_without_data_are_not_assessed() -> None:
    [result] = results(example_report())["assessment-results"]["results"]

    assert "gateway-audit" not in {each["target"]["target-id"] for each in result["findings"]}
    assert "audit" in result["remarks"]


def test_equal_reports_have_equal_results_and_other_files_have_other_ids() -> None:
    one, other = results(example_report()), json.loads(render_oscal(example_report(), {**FILES, "review.json": b"x"}))

    assert one == results(example_report())
    assert one["assessment-results"]["uuid"] != other["assessment-results"]["uuid"]


def test_markup_of_a_finding_has_no_meaning() -> None:
    report = with_findings("high")
    finding = replace(report.summary.findings[0], title="[x](javascript:1) <b> *y* \u202e")
    [result] = results(replace(report, summary=replace(report.summary, findings=(finding,))))["assessment-results"][
        "results"
    ]

    assert result["observations"][0]["title"] == r"\[x\]\(javascript:1\) \<b\> \*y\* \<U+202E\>"
