"""A headless Chromium, spoken to over its own pipe: what a test needs to open a page and look at it."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
QUIET = ("background-networking", "component-update", "dev-shm-usage", "gpu", "quic", "sync")
FLAGS = ("--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe")
PATIENCE = 60  # seconds
TROUBLE = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Browser:
    """One process; every page gets a tab of its own."""

    def __init__(self, folder: Path):
        reads, child_writes = os.pipe()
        child_reads, writes = os.pipe()
        command = [
            CHROMIUM,
            *FLAGS,
            *(f"--disable-{name}" for name in QUIET),
            f"--user-data-dir={folder}",
            "about:blank",
        ]
        script = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'  # the browser speaks on these two
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], pass_fds=(child_reads, child_writes), stderr=subprocess.DEVNULL
        )
        os.close(child_reads)
        os.close(child_writes)
        self.incoming, self.outgoing = os.fdopen(reads, "rb", buffering=0), os.fdopen(writes, "wb", buffering=0)
        self.rest, self.count, self.events = b"", 0, []

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError, OSError, subprocess.TimeoutExpired):
            self.call("Browser.close")
            self.process.wait(20)
        self.process.kill()
        self.process.wait()
        self.incoming.close()
        self.outgoing.close()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self.outgoing.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self.count:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.incoming], [], [], PATIENCE)
            part = self.incoming.read(1 << 20) if ready else b""
            if not part:
                raise RuntimeError(
                    "the browser has gone away" if ready else f"the browser said nothing for {PATIENCE} s"
                )
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)


class Tab:
    """A page that is open, at a width and in a colour scheme."""

    def __init__(self, browser: Browser, path: Path, width: int = 1440, scheme: str = "light"):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def run(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not self.run(expression):
            if time.monotonic() > end:
                raise TimeoutError(expression)
            time.sleep(0.02)

    def key(self, name: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            codes = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
            text = {"text": "\r"} if name == "Enter" and kind == "rawKeyDown" else {}
            kind = "keyDown" if text else kind
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name], **text
            )

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y), held in (("mousePressed", start, 1), ("mouseMoved", end, 1), ("mouseReleased", end, 0)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=held, clickCount=1)

    def resize(self, width: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def troubles(self) -> list[Any]:
        """Everything on the console: errors, warnings and prints."""
        return [event["params"] for event in self._own() if event["method"] in TROUBLE]

    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"] for event in self._own() if event["method"] == "Network.requestWillBeSent"
        ]

    def _own(self) -> list[dict[str, Any]]:
        self.run("0")  # so that what came before has been read
        return [event for event in self.browser.events if event.get("sessionId") == self.session]

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
