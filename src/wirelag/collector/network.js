// The network: the sum of segments along a path, and what changed.
"use strict";
const network = {now: null};
const CHANGES = {links_up: "links up", links_down: "links down", costs: "costs changed", routers: "routers added or removed", upgraded: "now measuring",
  no_longer: "no longer measuring", new: "new segments", gone: "removed segments", rerouted: "rerouted"};

async function drawPath() {
  const [source, target] = [at("source").value, at("target").value];
  if (!source || !target || source === target) return;
  try {
    const [from, to] = isFixed() ? timesShown() : [], path = await ask("/api/v1/path", {source, target, ...(from ? {from, to} : {})});
    const parts = path.segments, blamed = path.culprits;
    at("verdict").textContent = (path.mean === null ? "Not every segment is measured." : `Mean ${delayOf(path.mean)}.`) + (blamed.length ? ` Slow: ${blamed.join(", ")}.` : " No segment is slow.") + (path.missing.length ? ` Without a report: ${path.missing.join(", ")}.` : "");
    drawWaterfall(parts);
  } catch (error) {
    at("verdict").textContent = error.message;
    clear("waterfall");
  }
}

// A row for each segment, from where the one before it ends, and one for the sum.
function drawWaterfall(parts) {
  const values = parts.map(part => (part.mean || 0) * (part.share === undefined ? 1 : part.share));
  const base = values.map((_, i) => values.slice(0, i).reduce((sum, value) => sum + value, 0));
  const all = values.reduce((sum, value) => sum + value, 0), ends = base.map((from, i) => from + values[i]);
  const bars = {draw: "bars", along: "x", x: [...values, all], base: [...base, 0], y: [...values.keys(), values.length],
    colour: "c1", colours: [...values.map(() => "c1"), "soft"], says: "mean"};
  at("waterfall").style.height = `${70 + 30 * bars.x.length}px`;
  drawChart(at("waterfall"), {x: upTo("delay", "delay since the path began", [...ends, all], 1e-9),
    panels: [{series: [bars], y: {kind: "rows", names: [...parts.map(part => part.segment), "all"]}}]});
}

function takeEnds() {
  show({source: at("source").value, target: at("target").value});
  drawPath();
}

async function loadNetwork() {
  const found = await ask("/api/v1/topology"), before = network.now;
  network.now = found;
  if (!before || String(before.routers) !== String(found.routers)) {
    for (const id of ["source", "target"]) {
      const chosen = view[id] || at(id).value;
      at(id).replaceChildren(...found.routers.map(name => new Option(name, name)));
      if (found.routers.includes(chosen)) at(id).value = chosen;
      else if (id === "target") at(id).selectedIndex = found.routers.length - 1;
    }
    at("path").hidden = false;
  }
  at("network").hidden = !found.follows;
  at("routing").textContent = found.problem ? `Cannot read the topology; showing the last one: ${found.problem}` :
    `${count(found.routers.length)} routers, ${count(found.upgraded.length)} of them measure, ${count(found.segments.length)} segments by reference packets.`;
  at("changes").tBodies[0].replaceChildren(...found.changes.map(change => {
    const words = Object.entries(CHANGES).filter(([name]) => change[name].length).map(([name, word]) => `${word}: ${change[name].slice(0, 8).join(", ")}${change[name].length > 8 ? ", …" : ""}`);
    const made = element("tr");
    made.append(element("td", {}, new Date(1000 * change.at).toLocaleString()), element("td", {}, words.join("; ")));
    return made;
  }));
  drawFound();
}
