"""The file can be used with every SQLite since 3.24: no statement needs what a later one has brought."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

import saltext.jobs.core.sqlite

HERE = pathlib.Path(saltext.jobs.core.sqlite.__file__).parent
#: What a later SQLite has brought, by https://sqlite.org/changes.html, with an example of it.
LATER = {
    r"\bOVER\s*\(": "SELECT row_number() OVER (ORDER BY id) FROM jobs",  # 3.25
    r"\bRENAME COLUMN\b": "ALTER TABLE jobs RENAME COLUMN who TO whom",  # 3.25
    r"\bVACUUM\s+INTO\b": "VACUUM INTO 'copy'",  # 3.27
    r"\bFILTER\s*\(": "SELECT count(*) FILTER (WHERE sent > 1) FROM jobs",  # 3.30
    r"\bNULLS\s+(FIRST|LAST)\b": "SELECT jid FROM jobs ORDER BY sent NULLS LAST",  # 3.30
    r"\bGENERATED\s+ALWAYS\b": "CREATE TABLE t (a, b GENERATED ALWAYS AS (a + 1))",  # 3.31
    r"\bIIF\s*\(": "SELECT iif(sent, 1, 2) FROM jobs",  # 3.32
    r"\bUPDATE\s+\w+\s+SET\s[^()]*\sFROM\b": "UPDATE jobs SET sent = b.id FROM banks AS b",  # 3.33
    r"\bRETURNING\b": "DELETE FROM jobs RETURNING jid",  # 3.35
    r"\bDROP\s+COLUMN\b": "ALTER TABLE jobs DROP COLUMN who",  # 3.35
    r"\bMATERIALIZED\b": "WITH a AS MATERIALIZED (SELECT 1) SELECT * FROM a",  # 3.35
    r"\)\s*STRICT\b": "CREATE TABLE t (a INTEGER) STRICT",  # 3.37
    r"->>?\s*['\"?]": "SELECT value ->> '$.a' FROM records",  # 3.38
    r"\bUNIXEPOCH\s*\(": "SELECT unixepoch()",  # 3.38
    r"\bDISTINCT\s+FROM\b": "SELECT jid FROM jobs WHERE sent IS NOT DISTINCT FROM 1",  # 3.39
    r"\b(RIGHT|FULL)\s+(OUTER\s+)?JOIN\b": "SELECT * FROM jobs FULL OUTER JOIN banks",  # 3.39
    r"\bOCTET_LENGTH\s*\(": "SELECT octet_length(who) FROM jobs",  # 3.43
    r"\b(STRING_AGG|CONCAT|CONCAT_WS)\s*\(": "SELECT concat(jid, 'x') FROM jobs",  # 3.44
}


def needs(statement):
    return [pattern for pattern in LATER if re.search(pattern, statement, re.IGNORECASE)]


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.stem)
def test_no_statement_needs_a_later_sqlite(path):
    texts = [
        node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    ]
    statements = [text for text in texts if isinstance(text, str) and re.search(r"[A-Z]{4}", text)]
    assert {text: needs(text) for text in statements if needs(text)} == {}


@pytest.mark.parametrize(("pattern", "example"), LATER.items(), ids=lambda value: value[:20])
def test_a_statement_of_a_later_sqlite_is_found(pattern, example):
    assert needs(example) == [pattern]
