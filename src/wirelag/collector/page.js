// The page of a collector: all data from its API, new results live. Text is never inserted as HTML.
"use strict";
const at = id => document.getElementById(id);
const state = {segments: [], chosen: null, reports: [], resolution: "interval", drawn: 0, network: null};
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const size = Math.abs(seconds);
  const [factor, unit] = size < 1e-6 ? [1e9, "ns"] : size < 1e-3 ? [1e6, "µs"] : size < 1 ? [1e3, "ms"] : size < 120 ? [1, "s"] : size < 7200 ? [1 / 60, "min"] : size < 172800 ? [1 / 3600, "h"] : [1 / 86400, "days"];
  return `${Number((seconds * factor).toPrecision(3))} ${unit}`;
}
const percent = share => share === null || share === undefined ? "–" : `${Number((100 * share).toPrecision(3))}%`;
const shown = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");  // plotly renders some HTML
const count = number => number.toLocaleString("en");

async function ask(path, parameters) {
  const answer = await fetch(path + (parameters ? "?" + new URLSearchParams(parameters) : ""));
  if (answer.status === 401) location.reload();
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

function row(cells, bad = []) {
  const made = document.createElement("tr");
  cells.forEach((text, i) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (bad.includes(i)) cell.className = "bad";
    made.append(cell);
  });
  return made;
}

// ---- segments ----

function drawSegments() {
  const {least, most} = drawMap(at("map"), state.segments, state.chosen, choose, state.network);
  at("segments").tBodies[0].replaceChildren(...state.segments.map(segment => {
    const latest = segment.latest, now = Date.now() / 1000;
    const unseen = latest ? latest.unseen.upstream + latest.unseen.downstream : 0;
    const clock = !latest ? "–" : latest.clock.synchronised ? `± ${duration(latest.clock.error)}` : "not synchronised";
    const made = latest ? row([segment.segment, duration(latest.mean), duration(latest.quantiles["0.99"]), percent(segment.loss), clock, count(unseen), duration(Math.max(0, now - latest.end))],
      [...(latest.clock.synchronised ? [] : [4]), ...(unseen ? [5] : []), ...(now - latest.end > 30 ? [6] : [])]) : row([segment.segment, "–", "–", "–", "–", "–", "–"]);
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colourOf(latest ? latest.mean : null, least, most);
    made.cells[0].prepend(swatch);
    made.dataset.segment = segment.segment;
    if (latest && latest.reason) made.title = latest.reason;
    if (segment.segment === state.chosen) made.className = "chosen";
    made.addEventListener("click", () => choose(segment.segment));
    return made;
  }));
}

async function loadSegments() {
  state.segments = (await ask("/api/v1/segments")).segments;
  for (const segment of state.segments) segment.loss = segment.settled ? segment.settled.loss : null;
  drawSegments();
  if (state.chosen === null && state.segments.length) await choose(state.segments[0].segment);
}

// ---- one segment over time ----

async function choose(name) {
  const changed = state.chosen !== name;
  state.chosen = name;
  at("one").hidden = false;
  at("name").textContent = name;
  if (changed) {
    const classes = (state.segments.find(s => s.segment === name) || {classes: []}).classes;
    at("class").replaceChildren(...["", ...classes].map(key => new Option(key || "all", key)));
  }
  const range = Number(at("range").value), now = Date.now() / 1000;
  state.resolution = range <= 3600 ? "interval" : range <= 604800 ? "minute" : "hour";
  const parameters = {segment: name, resolution: state.resolution, from: now - range, limit: 10000};
  if (at("class").value) parameters.class = at("class").value;
  try {
    state.reports = (await ask("/api/v1/reports", parameters)).reports;
  } catch (error) {
    state.reports = [];
  }
  drawSegments();
  drawReports();
}

const sums = orders => orders.reduce((all, one) => one ? {checked: all.checked + one.checked, overtaken: all.overtaken + one.overtaken} : all, {checked: 0, overtaken: 0});

const QUIET = {displayModeBar: false, responsive: true};

function layout(title, unit) {
  return {height: 300, margin: {l: 64, r: 56, t: 30, b: 34}, title: {text: title, font: {size: 14}, x: 0.01, y: 0.96}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: css("--text")}, xaxis: {type: "date", gridcolor: css("--line")}, yaxis: {gridcolor: css("--line"), rangemode: "tozero", ...unit}, legend: {orientation: "h", ...(window.innerWidth < 640 ? {y: -0.2, x: 0} : {y: 1.14, x: 0.4})}, hovermode: "x unified"};
}

function series(reports, value) {
  // Unobserved time is a gap, never a line across it.
  const times = [], values = [];
  reports.forEach((report, i) => {
    if (i && report.start - reports[i - 1].end > 1e-6) { times.push(new Date(500 * (report.start + reports[i - 1].end))); values.push(null); }
    times.push(new Date(500 * (report.start + report.end)));
    values.push(value(report));
  });
  return [times, values];
}

function line(reports, name, colour, value, more = {}) {
  const [x, y] = series(reports, value);
  return {x, y, name, mode: reports.length < 40 ? "lines+markers" : "lines", line: {color: css(colour), width: 1.5}, connectgaps: false, ...more};
}

function drawReports() {
  const reports = state.reports, last = reports[reports.length - 1], known = reports.filter(r => r.lost !== null).pop();
  at("about").textContent = !last ? "No results for this time." : last.mean === null ? `Latest: no delay. ${last.reason || ""}` :
    `Latest: mean ${duration(last.mean)}` + (last.ci95.mean ? ` (95%: ${duration(last.ci95.mean[0])} to ${duration(last.ci95.mean[1])}, clocks ± ${duration(last.clock.error)})` : last.clock.synchronised ? "" : ", clocks are not synchronised: no interval") +
    (last.sent === null ? `; ${count(last.received)} packets received, ${count(last.used)} of them between references` + (last.references ? `; ${count(last.references.received)} references received, ${count(last.references.lost)} lost` : "") : `; ${count(last.sent)} packets sent`) + (last.lost === null ? known ? `; ${count(Math.round(known.lost))} of ${count(known.sent)} packets lost in the latest settled interval` : `; loss unknown: ${last.reason || "not yet"}` : `, ${count(Math.round(last.lost))} lost`) + (last.unseen.upstream + last.unseen.downstream ? `; captures missed ${count(last.unseen.upstream + last.unseen.downstream)}` : "");
  const order = sums(reports.map(r => r.order));
  if (order.checked) at("about").textContent += `. Over this time ${percent(order.overtaken / order.checked)} of packets arrived right after a later one (${count(order.overtaken)} of ${count(order.checked)} checked).`;
  const bound = i => report => report.ci95.mean ? 1e3 * report.ci95.mean[i] : null, ms = value => value === null ? null : 1e3 * value;
  const band = {line: {width: 0}, mode: "lines", showlegend: false, hoverinfo: "skip"};
  Plotly.react(at("delay"), [
    line(reports, "low", "--c1", bound(0), band), line(reports, "95% of mean", "--c1", bound(1), {...band, fill: "tonexty", fillcolor: css("--c1") + "33", showlegend: true}),
    line(reports, "mean", "--c1", r => ms(r.mean)), line(reports, "p50", "--c2", r => ms(r.quantiles["0.5"])),
    line(reports, "p90", "--c3", r => ms(r.quantiles["0.9"])), line(reports, "p99", "--c4", r => ms(r.quantiles["0.99"])),
  ], layout("One-way delay", {title: {text: "ms"}}), QUIET);
  Plotly.react(at("loss"), [
    line(reports, "loss", "--bad", r => r.loss === null ? null : 100 * r.loss),
    ...(reports.some(r => r.references) ? [line(reports, "loss of references", "--c3", r => r.references ? 100 * r.references.lost / (r.references.received + r.references.lost) : null)] : []),
    line(reports, "time not covered by both", "--soft", r => 100 * (1 - r.covered), {fill: "tozeroy", mode: "lines", line: {width: 0, color: css("--soft")}, yaxis: "y2"}),
  ], {...layout("Loss and coverage", {title: {text: "%"}, rangemode: "tozero"}), height: 200,
    yaxis2: {overlaying: "y", side: "right", range: [0, 100], showgrid: false, zeroline: false, tickvals: [0, 50, 100], title: {text: "% not covered"}}}, QUIET);
  state.drawn += 1;
  document.body.dataset.drawn = state.drawn;
}

// ---- path ----

async function drawPath() {
  const [source, target] = [at("source").value, at("target").value];
  if (!source || !target || source === target) return;
  try {
    const path = await ask("/api/v1/path", {source, target});
    const parts = path.segments, blamed = path.culprits;
    at("verdict").textContent = (path.mean === null ? "Not every segment is measured." : `Mean ${duration(path.mean)}.`) + (blamed.length ? ` Slow: ${blamed.join(", ")}.` : " No segment is slow.") + (path.missing.length ? ` Without a report: ${path.missing.join(", ")}.` : "");
    Plotly.react(at("waterfall"), [{type: "waterfall", x: [...parts.map(p => shown(p.segment)), "all"], y: [...parts.map(p => 1e3 * (p.mean || 0) * (p.share === undefined ? 1 : p.share)), 0],
      measure: [...parts.map(() => "relative"), "total"], connector: {line: {color: css("--line")}}, increasing: {marker: {color: css("--c1")}}, totals: {marker: {color: css("--soft")}}}],
      {...layout("What each segment adds to the mean", {title: {text: "ms"}}), xaxis: {type: "category"}, showlegend: false, hovermode: "closest"}, QUIET);
  } catch (error) {
    at("verdict").textContent = error.message;
    Plotly.purge(at("waterfall"));
  }
}

// ---- agents ----

async function loadAgents() {
  const {agents} = await ask("/api/v1/agents");
  at("agents").tBodies[0].replaceChildren(...agents.map(agent => row(
    [agent.point, agent.alive ? `${duration(agent.silent)} ago` : `silent for ${duration(agent.silent)}`, agent.clock.synchronised ? agent.clock.source : "not synchronised", duration(agent.clock.error), duration(agent.behind), count(agent.packets), count(agent.unseen), agent.says.spooled === undefined ? "–" : count(agent.says.spooled)],
    [...(agent.alive ? [] : [1]), ...(agent.clock.synchronised ? [] : [2]), ...(Math.abs(agent.behind) > 5 ? [4] : []), ...(agent.unseen ? [6] : [])])));
}

async function loadStatus() {
  const status = await ask("/api/v1/status");
  at("foot").textContent = `wirelag ${status.version}; store ${count(Math.round(status.store_bytes / 1048576))} MiB; ${count(status.counted.synopsis || 0)} synopses, ${count(status.counted.garbage || 0)} unreadable messages`;
  if (status.topology !== null) await loadNetwork();
  if (!at("path").hidden) await drawPath();
}

// ---- the network ----

const WORDS = {links_up: "links up", links_down: "links down", costs: "costs changed", routers: "routers added or removed", upgraded: "now measuring",
  no_longer: "no longer measuring", new: "new segments", gone: "removed segments", rerouted: "rerouted"};

async function loadNetwork() {
  const network = await ask("/api/v1/topology"), before = state.network;
  state.network = network;
  if (!before || String(before.routers) !== String(network.routers)) {
    for (const id of ["source", "target"]) {
      const chosen = at(id).value;
      at(id).replaceChildren(...network.routers.map(name => new Option(name, name)));
      if (network.routers.includes(chosen)) at(id).value = chosen;
      else if (id === "target") at(id).selectedIndex = network.routers.length - 1;
    }
    at("path").hidden = false;
  }
  at("network").hidden = !network.follows;
  at("routing").textContent = network.problem ? `Cannot read the topology; showing the last one: ${network.problem}` :
    `${count(network.routers.length)} routers, ${count(network.upgraded.length)} of them measure, ${count(network.segments.length)} segments by reference packets.`;
  at("changes").tBodies[0].replaceChildren(...network.changes.map(change => row([new Date(1000 * change.at).toLocaleString(),
    Object.entries(WORDS).filter(([name]) => change[name].length).map(([name, word]) => `${word}: ${change[name].slice(0, 8).join(", ")}${change[name].length > 8 ? ", …" : ""}`).join("; ")])));
  state.stale = true;
}

// ---- live ----

function take(said) {
  for (const {segment, report} of said) {
    const known = state.segments.find(s => s.segment === segment);
    if (!known) { loadSegments(); return; }
    if (!known.latest || report.start >= known.latest.start) known.latest = report;
    if (report.loss !== null) known.loss = report.loss;
    if (segment === state.chosen && state.resolution === "interval" && !at("class").value) {
      const place = state.reports.findIndex(r => r.start >= report.start);
      if (place < 0) state.reports.push(report);
      else state.reports.splice(place, state.reports[place].start === report.start ? 1 : 0, report);
      state.fresh = true;
    }
  }
  state.stale = true;
}

function listen() {
  const source = new EventSource("/api/v1/events");
  source.onopen = () => { at("live").className = "dot on"; at("said").textContent = "live"; };
  source.onerror = () => { at("live").className = "dot off"; at("said").textContent = "cannot reach the collector; retrying"; };
  source.addEventListener("reports", event => take(JSON.parse(event.data)));
  source.addEventListener("topology", () => loadNetwork().catch(() => {}));
}

async function start() {
  for (const id of ["range", "class"]) at(id).addEventListener("change", () => choose(state.chosen));
  for (const id of ["source", "target"]) at(id).addEventListener("change", drawPath);
  listen();
  await Promise.all([loadSegments(), loadAgents(), loadStatus()]);
  document.body.dataset.ready = "yes";
  setInterval(() => { if (state.stale) { state.stale = false; drawSegments(); } if (state.fresh) { state.fresh = false; drawReports(); } }, 500);
  setInterval(() => Promise.all([loadAgents(), loadStatus()]).catch(() => {}), 5000);
}
start().catch(error => { at("said").textContent = error.message; });
