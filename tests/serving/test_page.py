"""The page in a real browser: typed text is translated, shown as text, and asks no other host."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import WIDTHS, chromium, complaints, dark, overflow, requested
from made_runs import untrained_run
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait
from test_serve import Server, serving_here

from configs.positions import Sinusoidal

HOSTILE = "<script>alert(1)</script> \"a\" 'b' & 😀 שלום <img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def server(trained_run: Path) -> Iterator[Server]:
    with serving_here("--model_path", trained_run, trained_run, "--max_len", "40") as server:
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
    prefix = browser.find_element(By.ID, "prefix")
    prefix.send_keys("We two")
    until(browser, lambda: text_of(browser, "best").startswith("We two"))
    prefix.send_keys(6 * Keys.BACKSPACE)
    greedy = server.translate(q="Le chat dort.", search="greedy").json()["translatedText"]
    until(browser, lambda: text_of(browser, "best") == greedy)
    write(browser, "Le chat")  # another text than the one translated
    assert not browser.find_element(By.ID, "copy").is_enabled()
    write(browser, "Le chat dort.")
    until(browser, lambda: browser.find_element(By.ID, "copy").is_enabled())
    browser.find_element(By.ID, "copy").click()
    until(browser, lambda: text_of(browser, "status") == "copied")
    assert browser.execute_script("return getSelection().toString()") == greedy
    prefix.send_keys("We")
    browser.refresh()
    until(browser, lambda: text_of(browser, "best").startswith("We"))
    assert browser.find_element(By.ID, "text").get_property("value") == "Le chat dort."
    write(browser, "")  # and what it began with goes too
    assert browser.find_element(By.ID, "prefix").get_property("value") == ""
    write(browser, "Le chat dort.")
    Select(browser.find_element(By.ID, "search")).select_by_visible_text("greedy")
    until(browser, lambda: text_of(browser, "best") == greedy)
    assert not browser.find_element(By.ID, "ranked-part").is_displayed()
    assert not browser.find_element(By.ID, "count").is_enabled()
    models = Select(browser.find_element(By.ID, "model"))
    assert len(models.options) == 2
    models.select_by_index(1)
    until(browser, lambda: text_of(browser, "status").endswith(" ms"))
    chosen = Select(browser.find_element(By.ID, "search")).first_selected_option
    assert chosen.text == "greedy"  # what was chosen stays


BUSY = """
const asked = window.fetch;
window.fetch = async (...request) => {
  window.fetch = asked;
  const how = { status: 503, headers: { "Retry-After": "1" } };
  return new Response('{"error": "busy"}', how);
};
"""


def test_any_text_is_shown_as_text_and_nothing_leaves_the_page(
    browser: Chrome, server: Server
) -> None:
    browser.get(f"http://127.0.0.1:{server.port}/")
    until(browser, lambda: text_of(browser, "length"))
    text = f"{HOSTILE}\n{'mot ' * 500}"
    write(browser, text)
    assert text_of(browser, "length") == f"{len(text):,} of 5,000 characters"
    line = "#words .line:first-child p:first-child .word"
    until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#words .line")) == 2)
    words = browser.find_elements(By.CSS_SELECTOR, line)
    assert [word.text for word in words] == HOSTILE.split()
    words[0].send_keys(Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element == words[1]
    stops = browser.find_elements(By.CSS_SELECTOR, "#words .word[tabindex='0']")
    assert len(stops) == 2  # one for each line
    assert not browser.find_elements(By.CSS_SELECTOR, "main script, main img")
    for width in WIDTHS:
        for on in (False, True):
            dark(browser, on)
            assert overflow(browser, width) <= 0, width
    write(browser, "The cat that was here is of my brother.")
    until(browser, lambda: "this does not read like French; " in text_of(browser, "status"))
    browser.execute_script(BUSY)
    write(browser, "Le chat dort.")
    until(browser, lambda: text_of(browser, "status") == "busy")
    until(browser, lambda: text_of(browser, "status").endswith(" ms"))  # without another key
    browser.find_element(By.ID, "explore").send_keys(Keys.TAB)
    best = browser.find_element(By.ID, "best")
    assert browser.switch_to.active_element == best  # the end of a long one is reached by keys too
    assert complaints(browser) == []
    assert {url.split("/")[2] for url in requested(browser)} == {f"127.0.0.1:{server.port}"}


def test_a_model_without_attention_and_scores_of_another_kind(
    browser: Chrome, trained_run: Path, tmp_path: Path
) -> None:
    changes = {"backend": "torch", "dropout": 0, "position": Sinusoidal()}
    plain = untrained_run(trained_run, tmp_path, **changes)
    plain = plain.rename(plain.with_name("a  b"))
    options = ("--beam_size", "3", "--mbr", "chrf", "--max_len", "5")
    with serving_here("--model_path", plain, trained_run, *options) as server:
        browser.get(f"http://127.0.0.1:{server.port}/")
        until(browser, lambda: text_of(browser, "length"))
        write(browser, "Le chat dort.\nIl fait froid.")
        until(browser, lambda: text_of(browser, "status").endswith(" ms"))
        assert text_of(browser, "status").startswith("cut off at the greatest length; ")
        assert text_of(browser, "best").count("\n") == 1  # not the error of linking
        assert not browser.find_element(By.ID, "explore").is_displayed()
        assert browser.execute_script("return chosen().name") == "a  b"  # an option shows "a b"
        assert text_of(browser, "ranked-note").startswith("Best first. Expected chrf against")
        items = browser.find_elements(By.CSS_SELECTOR, "#ranked li")
        assert {item.get_attribute("lang") for item in items} == {"en"}
        Select(browser.find_element(By.ID, "model")).select_by_index(1)
        rows = "#words .line p"
        until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, rows)) == 4)
        found = browser.find_elements(By.CSS_SELECTOR, rows)
        assert [row.get_attribute("lang") for row in found] == ["fr", "en"] * 2
        assert browser.find_element(By.ID, "explore").is_displayed()
        assert complaints(browser) == []


def test_an_error_is_told_on_the_page(browser: Chrome, server: Server) -> None:
    browser.get(f"http://127.0.0.1:{server.port}/")
    until(browser, lambda: text_of(browser, "length"))
    write(browser, "un livre")
    until(browser, lambda: text_of(browser, "best"))
    write(browser, "mot\n" * 600)
    until(browser, lambda: "sentences: at most 512" in text_of(browser, "status"))
    assert text_of(browser, "best") == ""  # and not what the text before became
    write(browser, "")
    browser.find_element(By.ID, "text").click()
    browser.execute_cdp_cmd("Input.insertText", {"text": "mot " * 1500})  # as it is pasted
    until(browser, lambda: "6,000 characters: at most 5,000" in text_of(browser, "status"))


def test_a_page_that_finds_no_server_finds_it_later(browser: Chrome, server: Server) -> None:
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/models"]})
    browser.get(f"http://127.0.0.1:{server.port}/")
    until(browser, lambda: text_of(browser, "status") == "the server does not answer")
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    until(browser, lambda: text_of(browser, "length"))
    write(browser, "un livre")
    until(browser, lambda: text_of(browser, "best"))
    assert "does not answer" not in text_of(browser, "status")
