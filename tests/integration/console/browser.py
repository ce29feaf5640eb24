"""Debian's chromium, driven by selenium, and what a user of the console does with it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil

from tests.missing import missing
from tests.waiting import SOON, stretched, wait_for

#: The password of every user.
SECRET = "a long shared secret"
#: The folder for pictures of the views; without it none are taken.
SHOTS = os.environ.get("SALTEXT_JOBS_SCREENSHOTS")
#: The pictures in the documentation.
PICTURES = {"batches", "batches-one", "batches-one-phone", "batches-output", "start", "queue", "jobs-one", "health"}
_FAULTS = pathlib.Path(__file__).with_name("faults.js")
#: Finds a button or link by its text. One that is disabled, at work, or leads nowhere so far would ignore a click.
_FIND = """
    const found = [...document.querySelectorAll(arguments[1] + " :is(button:enabled, a[href], summary):not(.busy)")]
        .find(n => n.innerText.trim().startsWith(arguments[0]) && n.checkVisibility()) ?? null;
"""


@contextlib.contextmanager
def chromium():
    """A browser without a window, in the size of a laptop's."""
    try:
        from selenium import webdriver
    except ImportError:
        missing("selenium is not installed")
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not browser:
        missing("chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-first-run",
        "--force-prefers-reduced-motion",
    ):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,900")
    options.add_argument("--lang=en-GB")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    with webdriver.Chrome(options=options, service=service) as chrome:
        chrome.set_script_timeout(stretched(SOON))
        yield chrome


class Page:
    """The console in a browser, as a user sees it."""

    def __init__(self, chrome, address):
        self.chrome, self.address = chrome, address

    def open(self, user="admin", password=SECRET, eauth="sharedsecret"):
        """Open the page anew and log in."""
        self.leave()
        self.log_in(user, password, eauth)
        wait_for(lambda: self.exists("header"), what=lambda: f"the page is there: {self.text()}")
        return self

    def be(self, user):
        """Open the first view as this user; log in if another user is logged in."""
        if self.text(".who").startswith(f"{user} "):
            self.go("batches")
            wait_for(lambda: self.text("h1") == "Batches", what=lambda: f"the batches are shown: {self.text()}")
        else:
            self.open(user)

    def leave(self):
        """Open the page with nobody logged in."""
        self.close()
        self.chrome.get(self.address)
        wait_for(lambda: self.exists("#user"), what=lambda: f"the login is there: {self.text()}")

    def enter(self, session, path=""):
        """Open the page anew, at a view, with a login kept in the tab: the answer of ``login``."""
        self.close()
        self.chrome.execute_script("sessionStorage.setItem('saltext-jobs-console', arguments[0])", json.dumps(session))
        self.chrome.get(f"{self.address}#/{path}")
        wait_for(lambda: self.exists("header"), what=lambda: f"the page is there: {self.text()}")

    def close(self):
        """Leave the page for a picture of the same server, and forget the login."""
        self.chrome.get(self.address.replace("index.html", "icon.svg"))
        self.chrome.execute_script("sessionStorage.clear()")

    def log_in(self, user, password=SECRET, eauth="sharedsecret"):
        self.fill("#user", user)
        self.fill("#password", password)
        self.fill("#eauth", eauth)
        self.click("Log in")

    def all(self, selector):
        return self.chrome.find_elements("css selector", selector)

    def exists(self, selector):
        return bool(self.all(selector))

    def text(self, selector="body"):
        """The text of the first such element; empty if there is none."""
        return self.chrome.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def fill(self, selector, value):
        (node,) = wait_for(lambda: self.all(selector), what=lambda: f"{selector} is there: {self.text()}")
        node.clear()
        node.send_keys(value)

    def choose(self, selector, value):
        script = """
            const node = document.querySelector(arguments[0]);
            node.value = arguments[1];
            node.dispatchEvent(new Event("change", {bubbles: true}));
        """
        self.chrome.execute_script(script, selector, value)

    def find(self, text, within="body"):
        """The visible button or link with this text that can be used now; None if there is none."""
        return self.chrome.execute_script(f"{_FIND} return found", text, within)

    def click(self, text, within="body"):
        """
        Use a button or a link, as soon as it is there and nothing covers it.

        The page finds and clicks it in one step: it could draw itself anew between two.
        """
        script = f"""{_FIND}
            found?.scrollIntoView({{block: "center"}});
            const box = found?.getClientRects()[0];
            if (!box || !found.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)))
                return false;
            found.focus();
            found.click();
            return true;
        """
        wait_for(
            lambda: self.chrome.execute_script(script, text, within),
            what=lambda: f"{text!r} can be used: {self.text()}",
        )

    def wait_text(self, text, selector="body", seconds=SOON):
        """Wait until this text is to be read there."""
        wait_for(lambda: text in self.text(selector), seconds, lambda: f"{text!r} in {selector}: {self.text()}")

    def go(self, path):
        """Open a view, and wait until it is there instead of the one before."""
        script = """
            const [hash, done] = arguments, before = location.href;
            const told = () => done();
            window.addEventListener("hashchange", told, {once: true});  // after the page itself
            location.hash = hash;
            if (location.href === before) {
                window.removeEventListener("hashchange", told);
                done();
            }
        """
        self.chrome.execute_async_script(script, f"#/{path}")

    def tell(self, script, *arguments):
        """Run a script that resolves to a value; it may import the page's modules."""
        wrapped = f"""
            const done = arguments[arguments.length - 1];
            (async () => {{ {script} }})().then(done, error => done("FAILED " + error.stack));
        """
        found = self.chrome.execute_async_script(wrapped, *arguments)
        assert not (isinstance(found, str) and found.startswith("FAILED ")), found
        return found

    def complaints(self):
        """What the browser has complained of, except refused requests, which it counts as errors."""
        return [
            entry["message"]
            for entry in self.chrome.get_log("browser")
            if entry["level"] == "SEVERE" and "Failed to load resource" not in entry["message"]
        ]

    def shot(self, name):
        """Take a picture for the documentation, if pictures are asked for and it has this one."""
        if SHOTS and name in PICTURES:
            folder = pathlib.Path(SHOTS)
            folder.mkdir(parents=True, exist_ok=True)
            script = "document.querySelector('.beside.open')?.scrollIntoView() ?? window.scrollTo(0, 0)"
            self.chrome.execute_script(script)
            self.chrome.save_screenshot(str(folder / f"{name}.png"))

    def faults(self):
        """What is wrong with the page for users who cannot see it, or see it badly."""
        return self.chrome.execute_script(_FAULTS.read_text(encoding="utf-8"))
