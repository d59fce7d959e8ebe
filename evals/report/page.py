"""A report as one HTML page in which samples are read: prompt, completion, program, test, verdict.

The page needs no network.  Everything that a model or a problem wrote is in it as one JSON text of ASCII
characters in which ``<``, ``>`` and ``&`` are escapes, so nothing in it can end the element that holds it;
the script puts it on the page as text, never as markup.  A content security policy with the hashes of
script and style stands behind that: no other script would run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from evals.report.markdown import interval_note, notes, partial_note, shown
from evals.report.run import Run


def page(run: Run, report: Mapping[str, Any]) -> str:
    """The page of ``run`` and its report.

    The text may hold halves of surrogate pairs where the settings do: write it with
    ``errors="xmlcharrefreplace"``.
    """
    templates = files("evals.report") / "templates"
    script = (templates / "page.js").read_text(encoding="utf-8")
    style = (templates / "page.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((templates / "page.html.j2").read_text(encoding="utf-8"))
    settings = report["settings"]
    return template.render(
        title=f"{shown(settings.get('suite', 'evaluation'))}: {shown(settings.get('model', ''))}",
        partial=None if report["complete"] else partial_note(report),
        scores=report["pass_at_k"],
        interval=interval_note(report),
        notes=notes(report),
        settings=[(name, shown(value)) for name, value in settings.items()],
        data=htmlsafe_json_dumps(_data(run, report)),
        # Ours, and the policy below holds for exactly these bytes.
        script=Markup(script),
        style=Markup(style),
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(run: Run, report: Mapping[str, Any]) -> dict[str, Any]:
    """What the script shows: problems once, and their samples."""
    return {
        "statuses": report["status_counts"],
        "problems": [
            {
                "task": item.asked.task_id,
                "entry_point": item.asked.entry_point,
                "prompt": item.asked.prompt,
                "test": item.asked.test,
                "passed": item.passed,
                "samples": [
                    {
                        "number": sample.sample,
                        "status": sample.status,
                        "detail": sample.detail,
                        "completion": sample.completion,
                        "program": sample.program,
                        "seconds": sample.seconds,
                        "tokens": sample.tokens,
                        # As text: a JavaScript number has 53 bits, a seed 63.
                        "seed": str(sample.seed),
                    }
                    for sample in item.samples
                ],
            }
            for item in run.problems
        ],
    }
