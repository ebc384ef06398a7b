"""The dashboard "Kneewatch / Server": what one server says of itself, and whether it agrees with the client.

In: the links. Out: the dashboard's JSON text. Rows of what only some servers have are collapsed.
"""

from alerts.links import SERVER, Links
from dashboards import layout, marks, queries
from dashboards.intervals import Intervals
from dashboards.pieces import PanelRow
from dashboards.server_agreement import agreement
from dashboards.server_gpus import gpu_details
from dashboards.server_options import engines, options
from dashboards.server_transfers import transfers
from dashboards.variables import chosen

TITLE = "Kneewatch / Server"


def server_dashboard(links: Links, intervals: Intervals, *, has_gpus: bool) -> str:
    """Return the dashboard as JSON text. `has_gpus`: whether any target has GPUs that are read."""
    return layout.dashboard(
        TITLE,
        SERVER,
        "One model server: whether its metrics can be trusted, its GPUs in detail, its engines and optional metrics.",
        variables=chosen(),
        rows=[
            PanelRow("Do the client and the server agree?", agreement()),
            PanelRow("More GPU metrics", gpu_details(), is_collapsed=not has_gpus),
            PanelRow("Engines of a data-parallel server", engines(), is_collapsed=True),
            PanelRow("Prefill and decode on different servers", transfers(), is_collapsed=True),
            PanelRow("Optional server metrics", options(), is_collapsed=True),
        ],
        annotations=marks.marks(queries.TARGET),
        links=links,
        intervals=intervals,
    )
