"""Markdown in the playground's answers: without harm, with code and formulas, while it comes."""

import re

from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import Fake
from tests.page.playground import Held, answers, chat_engine, is_done, opened, send

ELSEWHERE = "http://elsewhere.invalid/"


HOSTILE = f"""
<script>hacked = 1</script><img src="{ELSEWHERE}a.png" onerror="hacked = 1">
<iframe src="{ELSEWHERE}"></iframe><form action="{ELSEWHERE}"><input name="key"></form>
<svg onload="hacked = 1"><a href="javascript:hacked = 1">x</a></svg><style>body {{ display: none }}</style>
<math><mtext><table><mglyph><style><img src=x onerror="hacked = 1"></style></mglyph></table></mtext></math>
<div style="position: fixed; inset: 0" id="app" class="composer" onclick="hacked = 1">cover</div>

![picture]({ELSEWHERE}b.png "title") [script](javascript:hacked=1) [data](data:text/html,<script>hacked=1</script>)
[entity](&#106;avascript:hacked=1) <javascript:hacked=1> [file](file:///etc/passwd) [good](https://example.org/?a=1&b=2)

[image reference][1]

[1]: vbscript:hacked "x"

```html" onclick="hacked=1
<b>bold</b>
```
"""


def harmless(shown: Locator) -> None:
    assert shown.locator("script, img, iframe, form, input, svg, style, math, object, embed").count() == 0
    names = shown.evaluate("node => [...node.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())")
    assert set(names) <= {"href", "rel", "target", "start", "align", "tabindex", "class", "type"}
    classes = shown.evaluate("node => [...node.querySelectorAll('[class]')].map((one) => one.className)")
    ours = r"(block|bar|quiet|small copy|maths|language-\w*|hljs-\w+)"
    assert [one for one in classes if not re.fullmatch(ours, one)] == []


def test_hostile_markdown_does_no_harm(page: Page, fake: Fake) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    server = fake(chat_engine(HOSTILE))
    opened(page, server.url)
    send(page, "Hi")
    shown = is_done(page).locator(".markdown")
    expect(shown).to_contain_text("<script>hacked = 1</script>")
    expect(shown).to_contain_text("[image: picture]")
    harmless(shown)
    links = shown.locator("a[href]")
    expect(links).to_have_count(1)
    expect(links).to_have_attribute("href", "https://example.org/?a=1&b=2")
    expect(links).to_have_attribute("rel", "noopener noreferrer")
    for link in shown.locator("a").all():
        if link.get_attribute("href") is None:
            link.click()
    assert page.evaluate("typeof hacked") == "undefined"
    assert all(url.startswith((server.url, "blob:")) for url in asked), asked
    answers(page).get_by_role("button", name="Raw").click()
    expect(answers(page).locator(".raw")).to_contain_text('<img src="http://elsewhere.invalid/a.png"')


def test_raw_html_that_reaches_the_sanitiser_is_cut(page: Page, fake: Fake) -> None:
    """A second wall: the Markdown renderer shows HTML as text, and what it lets through is cleaned."""
    opened(page, fake(chat_engine()).url)
    texts = ["<b onclick=x>bold</b>", '[a](https://x.org" onclick="hacked=1)', "[a](JaVaScRiPt:x)", "# T", "- [x] done"]
    made = page.evaluate(
        """async (texts) => {
            const { toFragment } = await import('./play/markdown.js');
            return texts.map((text) => {
                const body = toFragment(text);
                const nodes = [...body.querySelectorAll('*')];
                return [body.textContent.trim(), nodes.map((node) => node.tagName).join(' '),
                    nodes.flatMap((node) => node.getAttributeNames()).join(' ')];
            });
        }""",
        texts,
    )
    assert made[0] == ["<b onclick=x>bold</b>", "P", ""]
    assert made[1][2] == "href rel target"
    assert made[2] == ["a", "P A", ""]
    assert made[3] == ["T", "H3", ""]
    assert made[4] == ["☑ done", "UL LI", ""]


FORMULAS = r"""Inline \(a^2\) and $b_1$, display:

\[
\frac{1}{2}
\]

$5 and $10, $HOME/$USER, `$c$`, $$broken \frac{$$
$\href{javascript:hacked=1}{x} \style{position:fixed}{y}$ \(\text{<img src=x onerror="hacked = 1">}\)

```python
def f(): # $x$
    return "1"
```

```unknown
<b>x</b>
```
"""


def test_formulas_and_code_are_drawn(page: Page, fake: Fake) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(page, fake(chat_engine(FORMULAS)).url)
    assert page.evaluate("typeof temml") == "undefined", "it is read when it is needed"
    send(page, "Hi")
    shown = is_done(page).locator(".markdown")
    expect(shown.locator("math")).to_have_count(4)
    expect(shown.locator("code.maths")).to_have_text(
        ["$$broken \\frac{$$", "$\\href{javascript:hacked=1}{x} \\style{position:fixed}{y}$"]
    )
    expect(shown.locator("math msup")).to_have_text("a2")
    expect(shown.locator(".display math mfrac")).to_have_text("12")
    expect(shown).to_contain_text("$5 and $10, $HOME/$USER, $c$, $$broken \\frac{$$")
    foreign = """node => [...node.querySelectorAll('math *')].flatMap((one) => [
        ...(one.namespaceURI.endsWith('MathML') ? [] : [one.tagName]),
        ...one.getAttributeNames().filter((name) => /^(on|href|src|id)/.test(name)),
        ...(one.style.position ? ['position'] : [])])"""
    assert shown.evaluate(foreign) == []
    assert page.evaluate("typeof hacked") == "undefined"
    expect(shown.locator(".hljs-keyword")).to_have_text(["def", "return"])
    expect(shown.locator(".hljs-comment")).to_have_text("# $x$")
    blocks = shown.locator(".block")
    expect(blocks.nth(1)).to_contain_text("<b>x</b>")
    expect(blocks.locator(".bar span")).to_have_text(["python", "unknown"])
    copy = blocks.nth(0).get_by_role("button", name="Copy code")
    copy.focus()
    page.keyboard.press("Enter")
    expect(blocks.nth(0).get_by_role("button", name="Copied")).to_be_focused()
    assert page.evaluate("navigator.clipboard.readText()") == 'def f(): # $x$\n    return "1"'


def test_formulas_are_drawn_where_frames_come_late(page: Page, fake: Fake) -> None:
    """The library is there before the first effect that waits for a frame."""
    page.add_init_script(
        """requestAnimationFrame = () => 0;
        const soon = setTimeout;
        setTimeout = (call, milliseconds = 0) => soon(call, milliseconds + 500);"""
    )
    opened(page, fake(chat_engine("$a$")).url)
    send(page, "Hi")
    expect(is_done(page).locator("math")).to_have_text("a")


def test_what_is_done_stays_while_more_comes(page: Page, fake: Fake) -> None:
    """So that a selection or the focus in it is not lost."""
    held = Held(12)
    opened(page, fake(chat_engine("First.\n\nSecond, that grows.", pace=held)).url)
    send(page, "Hi")
    first = answers(page).locator("p").first
    expect(answers(page).locator(".markdown p").nth(1)).to_contain_text("S")
    first.evaluate("node => { window.kept = document.querySelector('.markdown p'); }")
    held.release()
    expect(is_done(page)).to_contain_text("that grows.")
    assert page.evaluate("window.kept === document.querySelector('.markdown p')")


def test_markdown_streams(page: Page, fake: Fake) -> None:
    held = Held(12)
    opened(page, fake(chat_engine("**Bold** and *more*", pace=held)).url)
    send(page, "Hi")
    expect(answers(page).locator("strong")).to_have_text("Bold")
    held.release()
    expect(answers(page).locator("em")).to_have_text("more")
