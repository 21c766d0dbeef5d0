// Draws the charts of a page from the data beside it.
"use strict";
for (const [name, data] of Object.entries(JSON.parse(document.getElementById("figures").textContent))) {
  drawChart(document.getElementById(name), data);
}
