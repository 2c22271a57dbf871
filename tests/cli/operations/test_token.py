"""`gateway token new`: a token that is shown once, and the digest that is stored instead."""

import json
from datetime import UTC, date, datetime
from hashlib import sha256

from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.identity.credentials import ApiTokens
from gateway.identity.provider_settings import ApiToken


def test_token_is_printed_with_its_digest_and_how_to_use_it() -> None:
    answer = CliRunner().invoke(app, ["token", "new"])

    assert answer.exit_code == 0
    printed = dict(line.split() for line in answer.stdout.splitlines())
    assert printed["sha256"] == sha256(printed["token"].encode()).hexdigest()
    assert "Authorization: Bearer" in answer.stderr
    assert "type: token" in answer.stderr
    assert printed["token"] not in answer.stderr


def test_programs_get_a_token_that_is_accepted_and_never_the_same_twice() -> None:
    answers = [json.loads(CliRunner().invoke(app, ["token", "new", "--output", "json"]).stdout) for _ in range(2)]

    assert answers[0]["token"] != answers[1]["token"]
    known = ApiTokens([ApiToken(answers[0]["sha256"], "agent:bot", date(2999, 1, 1))])
    admission = known.verify(answers[0]["token"].encode(), now=datetime.now(UTC))
    assert admission is not None
    assert admission.principal.subject == "agent:bot"
    assert known.verify(answers[1]["token"].encode(), now=datetime.now(UTC)) is None


def test_group_without_a_word_shows_how_it_is_used() -> None:
    answer = CliRunner().invoke(app, ["token"])

    assert answer.exit_code == 2
    assert "new" in answer.output
