"""The page of a report in a real browser: click, keyboard, filters, links, and text that attacks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.report.report import build_report, write_report
from evals.report.run import read_run
from tests.evals.report.chromium import Chromium
from tests.evals.report.run_folders import write_run

CURRENT = "#rows a[aria-current=true]"


def write_page(folder: Path) -> str:
    run = read_run(folder)
    return write_report(run, build_report(run, resamples=50), folder)[-1].as_uri()


def row(link: str) -> str:
    return f'#rows a[href="#{link}"]'


@pytest.fixture
def page(tmp_path: Path) -> str:
    wrong = {
        "status": "failed",
        "detail": "AssertionError: 4 is not 3",
        "completion": "    return x + 2\n",
        "program": "def f2(x):\n    return x + 2\n",
        "seconds": 1.5,
    }
    late = {"status": "timeout", "detail": "longer than 10 s"}
    none = {"status": "no-code", "detail": "nothing", "program": None}
    return write_page(write_run(tmp_path / "run", [[True], [True], [wrong], [late], [none]]))


def test_a_click_on_the_failing_sample_shows_all_of_it(browser: Chromium, page: str) -> None:
    browser.open(page)
    assert "HumanEval/0" in browser.text("article h2")  # the first sample, until one is chosen
    browser.click(row("HumanEval/2/0"))
    browser.wait_for("document.querySelector('article h2').textContent.includes('HumanEval/2')")
    assert browser.text(".verdict strong") == "failed"
    assert browser.text(".verdict .detail") == "AssertionError: 4 is not 3"
    assert browser.text(".prompt pre") == 'def f2(x):\n    """Problem 2."""\n'
    assert browser.text(".completion pre") == "    return x + 2\n"
    assert browser.text(".program pre") == "def f2(x):\n    return x + 2\n"
    assert browser.text(".test pre") == "def check(candidate):\n    assert candidate(2) == 3\n"
    facts = browser.text(".facts")
    assert "f2(), 0 of 1 samples passed" in facts
    assert f"1.5 s, 17 tokens, seed {2**62}" in facts
    assert browser.evaluate("location.hash") == "#HumanEval/2/0"
    assert browser.text(CURRENT) == "HumanEval/2failed"
    prompt, completion = (
        browser.evaluate(f"document.querySelector('.{name}').getBoundingClientRect().toJSON()")
        for name in ("prompt", "completion")
    )
    assert prompt["y"] == completion["y"] and prompt["right"] <= completion["x"]  # side by side


def test_filters_and_search(browser: Chromium, page: str) -> None:
    browser.open(page)

    def tasks() -> list[str]:
        found = browser.evaluate(
            "[...document.querySelectorAll('#rows .task')].map(task => task.textContent)"
        )
        assert isinstance(found, list)
        return found

    assert len(tasks()) == 5
    buttons = browser.evaluate("[...document.querySelectorAll('#filters button')].map(b => b.textContent)")
    assert buttons == ["all 5", "passed 2", "failed 1", "timeout 1", "no-code 1"]
    browser.click('button[data-status="passed"]')
    assert tasks() == ["HumanEval/0", "HumanEval/1"]
    assert browser.text("#count") == "2 of 5 samples"
    browser.click('button[data-status="no-code"]')
    assert tasks() == ["HumanEval/4"]
    browser.click(row("HumanEval/4/0"))
    browser.wait_for("document.querySelector('.verdict strong').textContent === 'no-code'")
    assert browser.text(".program pre") == "none: the completion holds no program"
    browser.click('button[data-status=""]')
    browser.press("/")
    browser.type("EVAL/3")
    assert tasks() == ["HumanEval/3"]
    browser.type("nothing like it")
    assert tasks() == []
    browser.press("ArrowDown")  # nowhere to go


def test_arrow_keys_move_within_what_is_listed(browser: Chromium, page: str) -> None:
    browser.open(page)
    browser.press("ArrowUp")
    assert browser.text(CURRENT) == "HumanEval/0passed"
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    assert browser.text(CURRENT) == "HumanEval/2failed"
    assert "HumanEval/2" in browser.text("article h2")
    assert browser.evaluate("location.hash") == "#HumanEval/2/0"
    browser.click('button[data-status="passed"]')
    browser.press("ArrowDown")  # what was chosen is not listed: the first that is
    assert browser.text(CURRENT) == "HumanEval/0passed"


def test_links_lead_to_a_sample(browser: Chromium, page: str) -> None:
    browser.open(f"{page}#HumanEval/3/0")
    assert "HumanEval/3" in browser.text("article h2")
    browser.open(f"{page}#HumanEval%2F4/0")
    assert "HumanEval/4" in browser.text("article h2")
    browser.evaluate("location.hash = '#HumanEval/1/0'")
    browser.wait_for("document.querySelector('article h2').textContent.includes('HumanEval/1')")
    browser.open(f"{page}#HumanEval/9/%zz")
    assert browser.text("article") == "This report has no sample HumanEval/9/%zz"


def test_1640_samples_are_listed_without_drawing_them_all(browser: Chromium, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [[index % 3 == 0 for index in range(10)] for _ in range(164)])
    browser.open(f"{write_page(folder)}#HumanEval/163/9")
    assert browser.text("article h2") == "HumanEval/163, sample 9"
    assert browser.text("#count") == "1640 of 1640 samples"
    assert browser.text(CURRENT) == "HumanEval/163 · 9passed"  # scrolled to
    assert 0 < browser.evaluate("document.querySelectorAll('#rows a').length") < 100
    browser.evaluate("document.getElementById('list').scrollTop = 30 * 800")
    browser.wait_for(f"document.querySelector({json.dumps(row('HumanEval/80/5'))}) !== null")
    browser.click(row("HumanEval/80/5"))
    browser.wait_for("document.querySelector('article h2').textContent === 'HumanEval/80, sample 5'")


HOSTILE = {
    "script end": "</script><script>window.broken = 1</script>",
    "comment": "<!-- <script> -->",
    "image": "<img src=x onerror='window.broken = 1'>\"'&amp;{{ 7 * 7 }}",
    "separators": "a\u2028b\u2029c",
    "null": "a\0b",
    "half a pair": "a\ud800b\udfffc",
    "ansi": "\x1b[31mred\x1b[0m",
    "bidirectional": "a\u202eb\u2066c",
    "carriage return": "a\r\nb\rc",
    "long line": "x" * 50_000,
    "deep markup": "]]><style>*{display:none}</style></textarea></title>",
}
# What the page shows instead of characters that cannot be seen.
SHOWN = {
    "separators": "a\\u2028b\\u2029c",
    "null": "a\u2400b",
    "half a pair": "a\\ud800b\\udfffc",
    "ansi": "\u241b[31mred\u241b[0m",
    "bidirectional": "a\\u202eb\\u2066c",
    "carriage return": "a\u240d\nb\u240dc",
}


def test_text_that_attacks_the_page_is_only_text(browser: Chromium, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = []
    outcomes: list[list[bool | dict[str, Any]]] = []
    for text in HOSTILE.values():
        changes.append(
            {"task_id": f"Task {text[:40]}", "prompt": text, "test": text, "entry_point": text[:40]}
        )
        outcomes.append([{"status": "failed", "detail": text, "completion": text, "program": text}])
    settings = {"model": "</title><script>window.broken = 1</script>\ud800", "extra": ["<b>", "\0"]}
    page = write_page(write_run(tmp_path / "run", outcomes, settings=settings, prompts=changes))
    browser.open(page)
    for name, text in HOSTILE.items():
        shown = SHOWN.get(name, text)
        for place in (".prompt pre", ".completion pre", ".program pre", ".test pre", ".detail"):
            assert browser.text(place) == shown, (name, place)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        link = browser.evaluate("location.href")
        browser.press("ArrowDown")
    browser.open(link)  # the address of a task with any name leads back to it
    assert browser.text(".completion pre") == HOSTILE["deep markup"]
    assert browser.evaluate("window.broken") is None
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.text("h1").startswith("humaneval: </title><script>window.broken = 1</script>")


def test_a_huge_text_is_shown_whole_when_asked_for(browser: Chromium, tmp_path: Path) -> None:
    text = "0123456789" * 20_000
    outcome = {"status": "passed", "detail": "", "completion": text}
    browser.open(write_page(write_run(tmp_path / "run", [[outcome]])))
    assert browser.text(".completion pre") == text[:50_000]
    assert browser.text(".completion button") == "show all 200000 characters"
    browser.evaluate("document.querySelector('.completion button').scrollIntoView()")
    browser.click(".completion button")
    assert browser.text(".completion pre") == text
    assert browser.evaluate("document.querySelector('.completion button')") is None


def test_the_page_is_one_file_that_asks_for_nothing(page: str, tmp_path: Path) -> None:
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "http://" not in text and "https://" not in text
    assert "default-src 'none'" in text.replace("&#39;", "'")
    assert text.count("</script>") == 2 and "<!--" not in text


def test_the_policy_would_stop_other_scripts(chromium_path: str, page: str) -> None:
    with Chromium(chromium_path) as browser:
        browser.open(page)
        browser.evaluate(
            "(() => { const script = document.createElement('script'); script.textContent ="
            " 'window.broken = 1'; document.body.append(script); })()"
        )
        assert browser.evaluate("window.broken") is None
        assert any("Content Security Policy" in text for text in browser.console)


def test_colours_follow_the_readers_choice(browser: Chromium, page: str) -> None:
    browser.open(page)
    shades = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[feature])
        shades.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shades == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]


def test_a_partial_run_says_so_on_top(browser: Chromium, tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [[True], []], complete=False))
    report = build_report(run, resamples=50, partial=True)
    browser.open(write_report(run, report, tmp_path / "elsewhere")[-1].as_uri())
    assert browser.text(".partial").startswith("PARTIAL: the run is not finished (1 of 2 samples")
