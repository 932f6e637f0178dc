"""The page in a real browser: typed text is translated, shown as text, and asks no other host."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import WIDTHS, chromium, complaints, dark, overflow, requested
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from test_serve import Server, serving

HOSTILE = "<script>alert(1)</script> \"a\" 'b' & 😀 שלום <img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def server(trained_run: Path) -> Iterator[Server]:
    with serving("--model_path", trained_run, trained_run, "--max_len", "40") as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def until(browser: Chrome, holds: Callable[[], object]) -> None:
    WebDriverWait(browser, 30).until(lambda _: holds())


def text_of(browser: Chrome, name: str) -> str:
    return browser.find_element(By.ID, name).get_attribute("textContent") or ""


def write(browser: Chrome, text: str) -> None:
    """As pasted: the driver itself types no emoji."""
    script = "const t = document.getElementById('text'); t.value = arguments[0];"
    browser.execute_script(f"{script} t.dispatchEvent(new Event('input'))", text)


def test_typing_choosing_and_linking(browser: Chrome, server: Server) -> None:
    browser.get(f"http://127.0.0.1:{server.port}/")
    until(browser, lambda: text_of(browser, "length"))
    browser.find_element(By.ID, "text").send_keys("Le chat dort.")
    answer = server.translate(q="Le chat dort.", alternatives=2).json()
    until(browser, lambda: text_of(browser, "best") == answer["translatedText"])
    ranked = browser.find_elements(By.CSS_SELECTOR, "#ranked li span:last-child")
    assert [item.text for item in ranked] == [answer["translatedText"], *answer["alternatives"]]
    Select(browser.find_element(By.ID, "search")).select_by_visible_text("greedy")
    greedy = server.translate(q="Le chat dort.", search="greedy").json()["translatedText"]
    until(browser, lambda: text_of(browser, "best") == greedy)
    assert not browser.find_element(By.ID, "ranked-part").is_displayed()
    assert not browser.find_element(By.ID, "count").is_enabled()
    models = Select(browser.find_element(By.ID, "model"))
    assert len(models.options) == 2
    models.select_by_index(1)
    until(browser, lambda: text_of(browser, "status").endswith(" ms"))


def test_any_text_is_shown_as_text_and_nothing_leaves_the_page(
    browser: Chrome, server: Server
) -> None:
    browser.get(f"http://127.0.0.1:{server.port}/")
    until(browser, lambda: text_of(browser, "length"))
    write(browser, f"{HOSTILE}\n{'mot ' * 500}")
    line = "#words .line:first-child p:first-child .word"
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, line))
    words = browser.find_elements(By.CSS_SELECTOR, line)
    assert [word.text for word in words] == HOSTILE.split()
    assert not browser.find_elements(By.CSS_SELECTOR, "main script, main img")
    for width in WIDTHS:
        for on in (False, True):
            dark(browser, on)
            assert overflow(browser, width) <= 0, width
    assert complaints(browser) == []
    assert {url.split("/")[2] for url in requested(browser)} == {f"127.0.0.1:{server.port}"}


def test_an_error_is_told_on_the_page(browser: Chrome, server: Server) -> None:
    browser.get(f"http://127.0.0.1:{server.port}/")
    until(browser, lambda: text_of(browser, "length"))
    write(browser, "mot\n" * 600)
    until(browser, lambda: "lines: at most 512" in text_of(browser, "status"))
