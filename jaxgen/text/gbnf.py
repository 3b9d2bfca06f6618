"""Turn GBNF, llama.cpp's notation of grammars, into Lark, with llguidance's parser. Host only.

llguidance finds the rules that are terminals in passes over all rules, as many as the longest chain of references has.
Here they are marked first, in one walk, so that its passes end at once.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance.gbnf_to_lark import ASTNode, RuleNode


def gbnf_to_lark(text: str) -> str:
    """Return the grammar in Lark. Raises Exception, as the parser does, for text that is not valid GBNF."""
    from llguidance.gbnf_to_lark import GrammarParser, resolve

    rules = GrammarParser().parse(text)
    _mark_terminals(rules)
    resolve(rules)
    written = map(str, sorted(rules.values(), key=lambda rule: rule.order))
    return "\n".join(["%llguidance {}\n", *written, ""])


def _mark_terminals(rules: dict[str, "RuleNode"]) -> None:
    """Mark rules that refer to terminals alone; never the root, nor rules that refer to themselves by any way."""
    referring: dict[str, list[str]] = defaultdict(list)
    left: dict[str, int] = {}
    for name, rule in rules.items():
        references = set(_references(rule))
        left[name] = len(references)
        for reference in references:
            referring[reference].append(name)
    ready = [name for name, count in left.items() if not count and name != "root"]
    while ready:
        name = ready.pop()
        rules[name].rule_is_terminal = True
        for other in referring[name]:
            left[other] -= 1
            if not left[other] and other != "root":
                ready.append(other)


def _references(rule: "RuleNode") -> Iterator[str]:
    from llguidance.gbnf_to_lark import RuleRefNode

    waiting: list[ASTNode] = [rule]
    while waiting:
        node = waiting.pop()
        if isinstance(node, RuleRefNode):
            yield node.name
        waiting += node.children()
