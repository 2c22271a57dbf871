"""The verifier in the documentation is complete: it runs, and finds the same faults as ours."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.audit.chain import ChainRow
from tests.audit.sample_logs import log, mark, write_lines
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "audit.md"
ALPHA = log("alpha")
BETA = log("beta", 4, after=[mark(ALPHA[-1])])


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        pytest.param([*ALPHA, *BETA], "good", id="good"),
        pytest.param([*ALPHA[:4], *ALPHA[5:]], "alpha:5 is bad", id="deleted"),
        pytest.param([*ALPHA, BETA[0]._replace(body=BETA[1].body)], "beta:1 is bad", id="altered"),
    ],
)
def test_verifier_of_the_document_runs(tmp_path: Path, rows: list[ChainRow], answer: str) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    path = write_lines(tmp_path / "log.jsonl", rows)

    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, path], capture_output=True, text=True, check=True
    )

    assert run.stdout == f"{answer}\n"
