"""Drives a headless Chromium through its DevTools protocol, over a pair of pipes: no port, no library.

    with Chromium(path) as browser:
        browser.open("file:///report.html")
        browser.click("#rows a")
        browser.evaluate("document.title")

Chromium reads commands on descriptor 3 and writes answers and events to 4, each JSON that ends with a
null byte (``--remote-debugging-pipe``).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60.0


def find_chromium() -> str | None:
    """The browser of the system packages, or whatever is called like it."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page.  ``console`` collects errors, warnings and uncaught exceptions."""

    def __init__(self, path: str) -> None:
        self.console: list[str] = []
        self._profile = Path(tempfile.mkdtemp(prefix="chromium-"))
        self._number = 0
        self._buffer = b""
        command_reader, self._commands = os.pipe()
        self._answers, answer_writer = os.pipe()

        def place_pipes() -> None:
            # Out of the way first: one of the two may already be 3 or 4.
            reader, writer = (os.dup(end) for end in (command_reader, answer_writer))
            os.dup2(reader, 3)
            os.dup2(writer, 4)

        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self._profile}"]
        flags += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,900"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium's own does not start as root
        self._log = (self._profile / "stderr").open("wb")
        self._process = subprocess.Popen(
            [path, *flags, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(3, 4),
            preexec_fn=place_pipes,
            start_new_session=True,
        )
        os.close(command_reader)
        os.close(answer_writer)
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._send("Browser.close")
            self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, address: str) -> None:
        """Loads a page and waits until it has loaded."""
        self.call("Page.navigate", url="about:blank")  # so that another fragment is another load
        self.call("Page.navigate", url=address)
        self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of the first element that ``selector`` finds."""
        text = self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
        assert isinstance(text, str)
        return text

    def wait_for(self, expression: str) -> None:
        """Waits until a JavaScript expression is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never true on the page: {expression}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Clicks with the mouse in the middle of an element, which must be what lies there in sight."""
        quoted = json.dumps(selector)
        x, y, hit = self.evaluate(
            f"(() => {{ const found = document.querySelector({quoted}); const box ="
            " found.getBoundingClientRect(); const x = box.x + box.width / 2, y = box.y + box.height / 2;"
            " return [x, y, found.contains(document.elementFromPoint(x, y))]; })()"
        )
        assert hit, f"{selector} is covered or out of sight"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Presses and releases a key that has a name, such as ArrowDown, or types one character."""
        text = {"text": key} if len(key) == 1 else {}
        codes = {"ArrowUp": 38, "ArrowDown": 40}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def type(self, text: str) -> None:
        """Types into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to the page; returns its answer."""
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = self._send(method, session, **parameters)
        answer = self._read_until(lambda message: message.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        return self._number

    def _read_until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._answers], [], [], max(0, deadline - time.monotonic()))
                data = os.read(self._answers, 1 << 16) if ready else b""
                if not data:
                    log = (self._profile / "stderr").read_text(errors="replace")[-2000:]
                    raise AssertionError(f"Chromium ended or does not answer:\n{log}")
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(line)
            self._note(message)
            if wanted(message):
                return dict(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.console.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.console.append(parameters["entry"]["text"])
