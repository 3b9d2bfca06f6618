"""The kinds of loads that servers are compared under, by the name that ``--load`` takes."""

from scripts.peers.load import cells
from scripts.peers.loads import agents, agents_page, schemas, schemas_page
from scripts.peers.loads.load import LoadKind
from scripts.peers.page import sections
from scripts.peers.shapes import CLIENTS, SHAPES

LOADS = {
    CLIENTS: LoadKind(SHAPES, cells, sections),
    "agents": LoadKind(agents.SHAPES, agents.cells, agents_page.sections),
    "schemas": LoadKind(schemas.SHAPES, schemas.cells, schemas_page.sections),
}
