"""A report as one HTML page that needs nothing but itself: charts to look closely, tables where no script runs.

The page loads nothing: plotly.js and the data are inside, and a content security policy with the hashes of both scripts
forbids everything else. What comes from a capture or from the command line is escaped. The same report gives the same
bytes.
"""

from wirelag.render.html.charts import Entry
from wirelag.render.html.flow_charts import drawn
from wirelag.render.html.flows import FlowsPage, render_flows
from wirelag.render.html.oneway import ClockFit, OnewayPage, SpanEntry, render_oneway
from wirelag.render.html.page import Page, render
from wirelag.render.html.response import ResponsePage, render_pairs, render_response
from wirelag.render.html.timeline import Timeline

__all__ = [
    "ClockFit",
    "Entry",
    "FlowsPage",
    "OnewayPage",
    "Page",
    "ResponsePage",
    "SpanEntry",
    "Timeline",
    "drawn",
    "render",
    "render_flows",
    "render_oneway",
    "render_pairs",
    "render_response",
]
