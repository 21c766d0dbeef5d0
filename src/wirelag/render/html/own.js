// One group, chosen in a list or by its name in a table: its own distribution, and its time line.
"use strict";
const ownFigures = JSON.parse(document.getElementById("figures").textContent);

function drawOwn(number) {
  for (const name of ["own-delays", "own-time"]) {
    const place = document.getElementById(name), figure = ownFigures[`${name}-${number}`];
    place.hidden = !figure;
    if (place.chart) zoomChart(place, null);  // what was zoomed was another group
    if (place.nextElementSibling?.classList.contains("marked")) place.nextElementSibling.remove();
    if (figure) drawChart(place, figure);
  }
}

for (const list of document.querySelectorAll("#own")) {
  list.addEventListener("change", () => drawOwn(list.value));
  for (const button of document.querySelectorAll("[data-own]")) {
    button.addEventListener("click", () => {
      list.value = button.dataset.own;
      drawOwn(list.value);
      list.closest("section").scrollIntoView({behavior: "smooth"});
      list.focus({preventScroll: true});
    });
  }
  drawOwn(list.value);
}
