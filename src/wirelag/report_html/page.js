(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("figures").textContent);
  function resolve(value, styles) {
    if (Array.isArray(value)) return value.map(function (one) { return resolve(one, styles); });
    if (value && typeof value === "object") {
      var made = {};
      Object.keys(value).forEach(function (key) { made[key] = resolve(value[key], styles); });
      return made;
    }
    var named = typeof value === "string" && /^var\((--\w+)\)$/.exec(value);
    return named ? styles.getPropertyValue(named[1]).trim() : value;
  }
  function draw() {
    var styles = getComputedStyle(document.documentElement);
    var colour = function (name) { return styles.getPropertyValue(name).trim(); };
    var narrow = window.innerWidth < 640;
    Object.keys(figures).forEach(function (name) {
      var place = document.getElementById(name);
      var figure = resolve(figures[name], styles);
      var layout = figure.layout;
      ["xaxis", "yaxis"].forEach(function (axis) {
        layout[axis] = Object.assign({ gridcolor: colour("--line"), linecolor: colour("--track"), zeroline: false,
          ticks: "", tickcolor: colour("--track") }, layout[axis]);
        if (layout[axis].title) layout[axis].title.standoff = 12;
      });
      layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
      layout.font = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: narrow ? 11 : 13,
        color: colour("--text") };
      layout.margin = { l: narrow ? 46 : 64, r: 12, t: 34, b: 48 };
      layout.legend = Object.assign({ orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, layout.legend);
      layout.hoverlabel = { bgcolor: colour("--card"), bordercolor: colour("--track"), font: { color: colour("--text") } };
      layout.dragmode = window.matchMedia("(pointer: coarse)").matches ? false : "zoom";
      layout.autosize = true;
      if (narrow && figure.data[0].colorbar) figure.data[0].colorbar.title.text = "";
      Plotly.react(place, figure.data, layout, { responsive: true, displaylogo: false,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] });
    });
  }
  document.querySelectorAll(".chart noscript").forEach(function (note) { note.remove(); });
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
