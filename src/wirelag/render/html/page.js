// Draws the charts of a page from the data beside it.
"use strict";
for (const [name, data] of Object.entries(JSON.parse(document.getElementById("figures").textContent))) {
  const place = document.getElementById(name);
  if (place) drawChart(place, data);  // others are drawn when they are chosen
}
