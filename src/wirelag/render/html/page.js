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
  function thin(axis) {
    var decades = axis.tickvals.map(function (x) { return Math.abs(Math.log10(x) % 1) < 1e-6; });
    if (decades.filter(Boolean).length < 2) return;
    ["tickvals", "ticktext"].forEach(function (name) {
      axis[name] = axis[name].filter(function (_, i) { return decades[i]; });
    });
  }
  function shorten(text, tail) {
    var letters = text.match(/&[a-z]+;|[^]/gu) || [];
    var cut = letters.slice(0, 21 - tail).join("") + "…" + letters.slice(letters.length - tail).join("");
    return letters.length > 22 ? cut : text;
  }
  function draw() {
    var styles = getComputedStyle(document.documentElement);
    var colour = function (name) { return styles.getPropertyValue(name).trim(); };
    var narrow = window.innerWidth < 640;
    Object.keys(figures).forEach(function (name) {
      var place = document.getElementById(name);
      var figure = resolve(figures[name], styles);
      var layout = figure.layout;
      Object.keys(layout).filter(function (key) { return /^[xy]axis/.test(key); }).forEach(function (axis) {
        layout[axis] = Object.assign({ gridcolor: colour("--line"), linecolor: colour("--track"), zeroline: false,
          ticks: "", tickcolor: colour("--track") }, layout[axis]);
        if (layout[axis].title) layout[axis].title.standoff = 12;
      });
      layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
      layout.font = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: narrow ? 11 : 13,
        color: colour("--text") };
      layout.margin = { l: narrow ? 46 : 64, r: 14, t: 34, b: 48 };
      var tail = { groups: 11, segments: 11, split: 11, worst: 0 }[name]; // a flow is recognised by its source
      if (narrow && tail !== undefined) {
        layout.yaxis.ticktext = layout.yaxis.ticktext.map(function (text) { return shorten(text, tail); });
      }
      if (narrow && layout.xaxis.ticktext && layout.xaxis.ticktext.length > 6) thin(layout.xaxis);
      layout.legend = Object.assign({ orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, layout.legend);
      layout.hoverlabel = { bgcolor: colour("--card"), bordercolor: colour("--track"), font: { color: colour("--text") } };
      layout.dragmode = window.matchMedia("(pointer: coarse)").matches ? false : "zoom";
      layout.autosize = true;
      layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--text") };
      // Only local buttons: plotly.js would also offer to send the chart to its makers' servers.
      Plotly.react(place, figure.data, layout, { responsive: true, displaylogo: false, plotlyServerURL: "",
        displayModeBar: narrow ? false : "hover", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
    });
  }
  document.querySelectorAll(".chart noscript").forEach(function (note) { note.remove(); });
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
