"""axe-core: what of a page keeps people with disabilities out."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def violations(page: Page) -> list[str]:
    """Each rule that a page breaks, with the elements that do; axe's own recommendations count too."""
    found = Axe().run(page).response
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
