"""The spec of an intent, read again: valid text is read whatever newer rules say, invalid text is a named error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import SpecError
from headrace.spec.reader import parse_intent_spec
from headrace.validate.load import loads

TEXT = "pipeline: web\nsource: {generate: {}}\ntable: {path: t}\n"


def test_the_text_of_a_spec_is_read_as_the_spec_it_was(tmp_path: Path) -> None:
    (spec,) = loads(TEXT, tmp_path)
    again = parse_intent_spec(spec.text, tmp_path)
    assert (again, again.digest, again.text) == (spec, spec.digest, spec.text)


def test_rules_between_keys_do_not_stop_it(tmp_path: Path) -> None:
    text = TEXT.replace("{path: t}", "{path: t, z_order: [id, id]}") + "maintenance: {}\n"
    with pytest.raises(SpecError, match="z_order"):
        loads(text, tmp_path)
    assert parse_intent_spec(text, tmp_path).table.z_order == ("id", "id")


def test_keys_that_this_version_does_not_know_are_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"unfinished batch.*upkeep.*version of Headrace that started the batch"):
        parse_intent_spec(TEXT + "upkeep: {}\n", tmp_path)


def test_a_reference_that_leads_nowhere_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"table\.path"):
        parse_intent_spec(TEXT.replace("path: t", "path: '${env:HEADRACE_NO_SUCH_NAME}'"), tmp_path)
