"""Drives headless Chromium, and reads its screenshots, without packages."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any


class Chromium:
    """A browser that is told what to do through pipes, as its DevTools are."""

    def __init__(self, program: str, profile: str) -> None:
        commands, self.commands = os.pipe()
        self.events, events = os.pipe()

        def connect() -> None:
            # Above 4, so that no number is taken before it is moved.
            ends = [os.dup(commands), os.dup(events)]
            ends = [os.dup(end) if end <= 4 else end for end in ends]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--force-device-scale-factor=1",
                "--force-color-profile=srgb",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self.unread = b""
        self.number = 0
        self.session: str | None = None
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")
        self.session = self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=1300,
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.unread:
            part = os.read(self.events, 1 << 16)
            if not part:
                sys.exit("Chromium ended")
            self.unread += part
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {
            "id": self.number,
            "method": method,
            "params": parameters,
        } | ({"sessionId": self.session} if self.session else {})
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            self.note(answer)
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def note(self, event: dict[str, Any]) -> None:
        """Keeps the addresses that are asked for; ends at errors of the page."""
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        failed = method == "Runtime.exceptionThrown" or (
            method == "Log.entryAdded"
            and parameters["entry"]["level"] == "error"
        )
        if failed:
            sys.exit(f"the page failed: {parameters}")

    def open(self, page: Path) -> None:
        self.call("Page.navigate", url=page.as_uri())
        while self.value("document.readyState") != "complete":
            pass

    def value(self, script: str) -> Any:
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True
        )
        if "exceptionDetails" in result:
            sys.exit(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=1,
            )

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
            )

    def middle(self, selector: str) -> tuple[float, float]:
        """Returns the middle of an element, which is scrolled into view."""
        return tuple(
            self.value(
                f"(() => {{ const e = document.querySelector({selector!r});"
                " e.scrollIntoView({block: 'nearest'});"
                " const b = e.getBoundingClientRect();"
                " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
            )
        )

    def screenshot(self, box: list[float]) -> bytes:
        """Returns a PNG of this part of the window: x, y, width, height."""
        clip = dict(zip(("x", "y", "width", "height"), box), scale=1)
        shot = self.call("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        if self.process.poll() is None:
            self.call("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Picture:
    """The pixels of a PNG of 8 bits for red, green and blue."""

    def __init__(self, data: bytes) -> None:
        at, packed = 8, b""
        while at < len(data):
            size, name = struct.unpack(">I4s", data[at : at + 8])
            content = data[at + 8 : at + 8 + size]
            if name == b"IHDR":
                self.width, self.height, depth, kind = struct.unpack(
                    ">IIBB", content[:10]
                )
                self.step = {2: 3, 6: 4}[kind]
                assert depth == 8
            elif name == b"IDAT":
                packed += content
            at += size + 12
        self.rows = self.unfilter(zlib.decompress(packed))

    def unfilter(self, data: bytes) -> list[bytearray]:
        length, step = self.width * self.step, self.step
        above, rows = bytearray(length), []
        for y in range(self.height):
            start = y * (length + 1)
            kind, row = data[start], bytearray(data[start + 1 :][:length])
            for i in range(length if kind else 0):
                left = row[i - step] if i >= step else 0
                corner = above[i - step] if i >= step else 0
                row[i] = (row[i] + self.guess(kind, left, above[i], corner)) % 256
            rows.append(row)
            above = row
        return rows

    @staticmethod
    def guess(kind: int, left: int, up: int, corner: int) -> int:
        if kind == 4:  # Paeth's
            near = [abs(up - corner), abs(left - corner)]
            near.append(abs(left + up - 2 * corner))
            return (left, up, corner)[near.index(min(near))]
        return {1: left, 2: up, 3: (left + up) // 2}[kind]

    def color(self, x: int, y: int) -> tuple[int, ...]:
        return tuple(self.rows[y][x * self.step :][:3])
