"""Write the tables of the README and of docs/benchmarks.md from the result files in docs/results.

    python scripts/results_table.py            # rewrites what lies between the markers
    python scripts/results_table.py --check    # exit code 1 where that would change something

A table lies between ``<!-- NAME begins -->`` and ``<!-- NAME ends -->``, NAME being one of TABLES.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = Path("docs/results/cpu_decode.json")
PAGES = (Path("README.md"), Path("docs/benchmarks.md"))
NOT_YET = f"Not measured yet: `python scripts/bench_compare.py --json {RESULT}` does.\n"
WIDTH = 116
UNKNOWN = "n/a"


def summary(result: dict[str, Any]) -> str:
    """For the README: one line per engine, and what it was measured on."""
    rows = [
        f"| engine | weights | tokens/s | prompt of {result['prompt_tokens']} | times llama.cpp's speed |",
        "|---|---|---|---|---|",
    ]
    for engine in _fastest_first(result):
        against = engine["times_llama_cpp"]
        ratios = UNKNOWN if against is None else f"{against['decode']:.2f}, prompt {against['prompt']:.2f}"
        rows.append(
            f"| {engine['title']} | {engine['weights']} | {engine['tokens_per_second']['median']:.1f} "
            f"| {engine['prompt_seconds']['median']:.2f} s | {ratios} |"
        )
    return "\n".join([*rows, "", _conditions(result), ""])


def details(result: dict[str, Any]) -> str:
    """For the page on benchmarks: spreads, bytes and memory."""
    rows = [
        "| engine | weights | tokens/s (min-max) | MB/token | GB/s | of reading "
        f"| prompt of {result['prompt_tokens']}, s (min-max) | peak memory, MB | same first tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for engine in _fastest_first(result):
        rates, seconds = engine["tokens_per_second"], engine["prompt_seconds"]
        share, same = engine["share_of_read_bandwidth"], engine["first_tokens_as_cpu"]
        memory = engine["peak_resident_bytes"]
        rows.append(
            f"| {engine['title']} | {engine['weights']} "
            f"| {rates['median']:.1f} ({rates['min']:.1f}-{rates['max']:.1f}) "
            f"| {engine['weight_bytes_per_token'] / 1e6:.0f} | {engine['gigabytes_per_second']:.1f} "
            f"| {UNKNOWN if share is None else f'{share:.0%}'} "
            f"| {seconds['median']:.2f} ({seconds['min']:.2f}-{seconds['max']:.2f}) "
            f"| {UNKNOWN if memory is None else f'{memory / 1e6:.0f}'} "
            f"| {UNKNOWN if same is None else same} |"
        )
    bandwidth = result["read_bandwidth"]
    notes = [_conditions(result)]
    if bandwidth is not None:
        low, middle, high = (bandwidth[name] / 1e9 for name in ("min", "median", "max"))
        notes.append(_wrapped(f"Read bandwidth in the same run: {middle:.1f} GB/s ({low:.1f}-{high:.1f})."))
    notes += [_wrapped(f"Left out: {name}, {reason}.") for name, reason in result["missing"].items()]
    return "\n".join([*rows, "", "\n\n".join([*notes, _versions(result)]), ""])


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "cpu_decode summary": summary,
    "cpu_decode details": details,
}


def with_tables(page: str, result: dict[str, Any] | None) -> str:
    """The text of a page with its tables made anew; without a result they say how to get one.

    Raises :class:`ValueError` for a marker that begins and does not end.
    """
    for name, make in TABLES.items():
        begins, ends = f"<!-- {name} begins -->\n", f"<!-- {name} ends -->"
        if begins not in page:
            continue
        before, rest = page.split(begins, 1)
        if ends not in rest:
            raise ValueError(f"{begins.strip()} has no {ends}")
        _, after = rest.split(ends, 1)
        page = before + begins + (NOT_YET if result is None else make(result)) + ends + after
    return page


def main() -> int:
    """Rewrite the pages, or say which of them are out of date."""
    parser = argparse.ArgumentParser(description="Write the tables in README and docs from docs/results.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if out of date")
    arguments = parser.parse_args()
    stale = 0
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        made = with_tables(text, read_result())
        if made != text:
            stale += 1
            print(f"{page}: {'out of date' if arguments.check else 'rewritten'}")
            if not arguments.check:
                (ROOT / page).write_text(made, encoding="utf-8")
    return int(arguments.check and stale > 0)


def read_result() -> dict[str, Any] | None:
    """The committed result; None where there is none."""
    path = ROOT / RESULT
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _fastest_first(result: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(result["engines"], key=lambda engine: -engine["tokens_per_second"]["median"])


def _conditions(result: dict[str, Any]) -> str:
    cores = f"{result['processor']}, {result['cores']} cores"
    shares = [
        f"; `cpu` reads weights at {engine['share_of_read_bandwidth']:.0%} of the read bandwidth, measured "
        "in the same run"
        for engine in result["engines"]
        if engine["name"] == "cpu" and engine["share_of_read_bandwidth"] is not None
    ]
    return _wrapped(
        f"{result['model'].split('.')[0]}, one request, {result['threads']} threads on {cores}, "
        f"{result['date'][:10]}, commit {result['commit'][:8]}: medians of {result['runs']} runs in turns, "
        f"{result['new_tokens']} tokens after a prompt of {result['decode_prompt_tokens']}{''.join(shares)}."
    )


def _versions(result: dict[str, Any]) -> str:
    found = {"python": result["python"]}
    for engine in result["engines"]:
        found |= engine["packages"]
    return _wrapped(
        f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(found.items()))}. "
        f"Load of the machine before and after: {result['load_average']['before']:.1f}, "
        f"{result['load_average']['after']:.1f} (that of the benchmark included). Command:"
    ) + (f"\n\n```\n{result['command']}\n```")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    raise SystemExit(main())
