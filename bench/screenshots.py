"""Screenshots of every page of the dashboard, light and dark, and some on a phone: `make screenshots`.

They show a shop with an hour of history and two workers, one of which is stopped for a while, on a real broker with
faults; then an operator works on its dead-letter messages. Everything in the screenshots really happened.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urljoin

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from screens.shop import ACCESS, Shop, Trade, open_shop, send_one_that_is_stuck, worker
from semel.dashboard.server import build
from semel.dashboard.settings import Settings
from semel.telemetry import annotation_log

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE, PHONE = (1280, 800), (390, 844)
PATIENCE: Final = 120_000.0
EXAMPLE = """\
example:
  python bench/screenshots.py                    all screenshots, into docs/images, in about three minutes
  python bench/screenshots.py --only deliveries,queue  some of them
"""
Scheme = Literal["light", "dark"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAMES", help="comma-separated names of pages (all)")
    parser.add_argument("--to", metavar="FOLDER", type=Path, default=IMAGES)
    parser.add_argument(
        "--live", metavar="SECONDS", type=float, default=75.0, help="how long the workers run first (75)"
    )
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-shop-")))
        os.environ |= ACCESS | {"SEMEL_STATE": str(folder / "state")}
        report("an hour of trade")
        shop = stack.enter_context(open_shop(folder))
        report(f"two workers for {options.live:g} s")
        at_work(shop, stack, options.live)
        url = stack.enter_context(serving(shop))
        playwright = stack.enter_context(sync_playwright())
        path = next(filter(None, map(shutil.which, CHROMIUM)), None)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        stack.callback(browser.close)
        report("an operator")
        job = with_page(browser, "light", lambda page: operate(page, url))
        take(browser, url, job, options.to, set(options.only.split(",")) if options.only else None)
    return 0


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def at_work(shop: Shop, stack: ExitStack, live: float) -> None:
    """Start faults, trade and workers. One worker is stopped for longer than its leases: its keys are taken over, and
    what it records after it continues is refused."""
    annotation_log.add(shop.state, "deploy 2.14", "ci", time.time() - 37 * 60)
    shop.broker.faults.set("duplicate", 0.03, queue="orders")
    shop.broker.faults.set("lost-delete", 0.02, queue="emails")
    stack.enter_context(worker(shop))
    second = stack.enter_context(worker(shop))
    stack.enter_context(Trade(shop))
    send_one_that_is_stuck(shop)
    time.sleep(live * 0.4)
    second.send_signal(signal.SIGSTOP)
    time.sleep(20)
    second.send_signal(signal.SIGCONT)
    time.sleep(live * 0.6)


@contextmanager
def serving(shop: Shop) -> Iterator[str]:
    settings = Settings(
        endpoint_url=shop.broker.url, region="eu-west-1", ledger=shop.ledger, attempt_logs=(shop.log,),
        state=shop.state, port=9325, open_access=True,
    )  # fmt: skip
    server = uvicorn.Server(
        uvicorn.Config(build(settings, client=shop.client), port=settings.port, log_level="error", log_config=None)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{settings.port}"
    finally:
        server.should_exit = True
        thread.join()


def with_page(browser: Browser, scheme: Scheme, do: Callable[[Page], Any], size: tuple[int, int] = WIDE) -> Any:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        device_scale_factor=2 if size is PHONE else 1,
    )
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        return do(page)
    finally:
        context.close()


def operate(page: Page, url: str) -> str:
    """Edit one message, delete a group, redrive another group with a canary; returns the address of that job."""
    page.goto(f"{url}/doctor")
    page.get_by_role("button", name="Check now").click()
    page.goto(f"{url}/dead-letters/orders-dead")
    page.get_by_role("link", name="ValidationError").click()
    page.locator("section[aria-labelledby=messages-title] tbody th a").first.click()
    body = page.locator("#edit-body")
    body.fill(body.input_value().replace("EURO", "EUR"))
    page.get_by_role("button", name="Resend").click()
    page.goto(f"{url}/dead-letters/emails-dead/delete?where=age+%3E+40m")
    page.get_by_label("To confirm").fill("emails-dead")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="Finished").wait_for()
    page.goto(f"{url}/dead-letters/orders-dead")
    page.get_by_role("link", name="TimeoutError").click()
    page.get_by_role("link", name="Redrive").click()
    page.get_by_label("Canary messages").fill("3")
    page.get_by_label("Rate").fill("40")
    page.get_by_role("button", name="Redrive").click()
    page.get_by_text("canary").first.wait_for()
    return page.url


# Each page: its address; or the address of a page that links to it, and the selector of the link.
MESSAGES: Final = "section[aria-labelledby=messages-title] tbody th a"
PAGES: Final[dict[str, tuple[str, str]]] = {
    "job": ("", ""),
    "queues": ("/", ""),
    "queue": ("/queues/orders", ""),
    "message": ("/queues/orders?where=Svalbard", "section[aria-labelledby=messages-title] tbody th a"),
    "dead-letter-queues": ("/dead-letters", ""),
    "dead-letter-queue": ("/dead-letters/orders-dead", ""),
    "dead-letter-message": ("/dead-letters/orders-dead", MESSAGES),
    "redrive": ("/dead-letters/orders-dead/redrive?where=error+~+%22currency%22+and+age+%3E+15m", ""),
    "deliveries": ("/deliveries", ""),
    "workers": ("/workers", ""),
    "doctor": ("/doctor", ""),
    "audit": ("/audit", ""),
    "api": ("/api", ""),
}
ON_A_PHONE: Final = ("queues", "dead-letter-queue", "deliveries")


def take(browser: Browser, url: str, job: str, folder: Path, only: set[str] | None) -> None:
    for name in PAGES if only is None else only:
        address, row = PAGES[name]
        whole = url + address if address else job
        shots: list[tuple[str, Scheme, tuple[int, int]]] = [("light", "light", WIDE), ("dark", "dark", WIDE)]
        if name in ON_A_PHONE:
            shots.append(("phone", "light", PHONE))
        for suffix, scheme, size in shots:
            path = folder / f"dashboard-{name}-{suffix}.png"
            with_page(browser, scheme, partial(shoot, address=whole, row=row, path=path), size)


def shoot(page: Page, *, address: str, row: str, path: Path) -> None:
    page.goto(address)
    if row:
        page.locator(row).first.wait_for()
        page.goto(urljoin(address, str(page.locator(row).first.get_attribute("href"))))
    page.get_by_text("Checking.").wait_for(state="detached")
    page.get_by_text("counting again").wait_for(state="detached")
    page.screenshot(path=path)
    report(path.name)


if __name__ == "__main__":
    sys.exit(main())
