// One segment over time: the last minutes live, longer times by the minute or hour, or between two times.
"use strict";
const one = {reports: [], resolution: "interval", drawn: 0, loaded: 0, source: null, asked: 0, added: 0, missed: false};
const POINTS = 1200;  // what a screen shows: the collector adds up neighbours of more
const AGAIN = {interval: 60, minute: 30, hour: 300};  // seconds after which reports are read again; intervals also come live

function clear(...charts) {
  for (const id of charts) {
    at(id).replaceChildren();
    delete at(id).chart;
  }
}

// ---- the time that is shown ----

const isFixed = () => Boolean(view.from && view.to);

function timesShown() {
  if (isFixed()) return [Date.parse(view.from) / 1000, Date.parse(view.to) / 1000];
  return [now() - (Number(view.range) || 600), now()];
}

const resolutionOf = seconds => seconds <= 3600 ? "interval" : seconds <= 604800 ? "minute" : "hour";
const localText = seconds => { const ms = 1000 * seconds; return new Date(ms - 60000 * new Date(ms).getTimezoneOffset()).toISOString().slice(0, 19); };
const isoText = ms => new Date(ms).toISOString().replace(/\.000Z$/, "Z");

function drawTimes() {
  at("range").value = isFixed() ? "between" : view.range;
  at("between").hidden = at("range").value !== "between";
  if (isFixed()) [at("from").value, at("to").value] = timesShown().map(localText);
}

function takeRange() {
  if (at("range").value === "between") {
    const [from, to] = timesShown();  // begin with what is shown now
    show({from: isoText(1000 * Math.floor(from)), to: isoText(1000 * Math.ceil(to)), zoom: ""});
  } else show({range: at("range").value, from: "", to: "", zoom: ""});
  loadOne(true);
}

function takeTimes() {
  const [from, to] = [at("from").value, at("to").value].map(text => new Date(text).getTime());
  at("to").setCustomValidity(from < to ? "" : "the end must be after the beginning");
  if (!at("to").reportValidity() || !(from < to)) return;
  show({from: isoText(from), to: isoText(to), zoom: ""});
  loadOne(true);
}

// ---- reading ----

function choose(name) {
  if (name !== view.segment) show({segment: name, class: "", zoom: ""}, true);
  drawSegments();
  listen();
  loadOne(true).then(() => at("one").scrollIntoView({block: "nearest"}));
}

async function loadOne(isNew = false) {
  if (!view.segment) return;
  const asked = one.asked += 1;
  at("one").hidden = false;
  at("name").textContent = view.segment;
  drawTimes();
  if (isNew) await loadClasses(asked);
  const [from, to] = timesShown(), wanted = resolutionOf(to - from), finer = ["interval", "minute", "hour"];
  let found = [], resolution = wanted;
  for (resolution of finer.slice(finer.indexOf(wanted))) {  // single intervals are kept for days, hours for years
    const parameters = {segment: view.segment, resolution, from, to: isFixed() ? to : to + 3600, points: POINTS};
    if (view.class) parameters.class = view.class;
    try {
      found = (await ask("/api/v1/reports", parameters)).reports;
    } catch (error) {
      if (error instanceof TypeError) return;  // the collector does not answer: what is drawn stays
    }
    if (found.length || !isFixed()) break;
  }
  if (asked !== one.asked) return;  // another question came after this one
  one.reports = found;
  one.added = found.some(report => report.intervals + report.missed > 1) ? found[found.length - 1].end : 0;
  one.resolution = resolution;
  one.loaded = now();
  if (isNew) clear("delay", "loss");  // what was zoomed was something else
  drawOne();
  if (isNew && view.zoom) {
    const range = view.zoom.split("/").map(Date.parse);
    if (range[0] < range[1]) for (const id of ["delay", "loss"]) zoomChart(at(id), range);
  }
}

async function loadClasses(asked) {
  const {segments} = await ask("/api/v1/segments", {segment: view.segment}).catch(() => ({segments: []}));
  if (asked !== one.asked) return;
  const classes = segments.flatMap(segment => segment.classes);
  at("class").replaceChildren(...["", ...classes].map(key => new Option(key || "all", key)));
  at("class").value = view.class;
  at("class").parentElement.hidden = !classes.length;
}

// Reports that come live; what is older than the time shown goes.
function takeReports(said) {
  if (one.resolution !== "interval" || view.class || isFixed()) return;
  for (const {segment, report} of said.filter(({segment}) => segment === view.segment)) {
    if (report.start < one.added) continue;  // it is in a sum already, or will be when reports are read again
    const place = one.reports.findIndex(r => r.start >= report.start);
    if (place < 0) one.reports.push(report);
    else one.reports.splice(place, one.reports[place].start === report.start ? 1 : 0, report);
    one.fresh = true;
  }
  trimReports();
}

function trimReports() {
  const [from] = timesShown(), kept = isFixed() ? 0 : one.reports.findIndex(report => report.start >= from);
  if (kept > 0) one.reports.splice(0, kept);
}

// Called every second.
function refreshOne() {
  if (!view.segment || isFixed()) return;
  if (now() - one.loaded > AGAIN[one.resolution]) {
    one.loaded = now();
    loadOne();
  }
}

// ---- drawing ----

const sums = orders => orders.reduce((all, each) => each ? {checked: all.checked + each.checked, overtaken: all.overtaken + each.overtaken} : all, {checked: 0, overtaken: 0});

// Unobserved time is a gap, never a line or a band across it.
function series(reports, name, colour, value, more = {}) {
  const x = [], y = [];
  reports.forEach((report, i) => {
    if (i && report.start - reports[i - 1].end > 1e-6) { x.push(500 * (report.start + reports[i - 1].end)); y.push(null); }
    x.push(500 * (report.start + report.end));
    y.push(value(report));
  });
  return {draw: "line", name, colour, width: 1.5, x, y, ...(reports.length < 40 ? {mark: "circle", size: 2.5} : {}), ...more};
}

const upTo = (kind, title, values, least) => ({kind, title, range: [values.reduce((a, b) => Math.min(a, b), 0), 1.05 * values.reduce((a, b) => Math.max(a, b), least)]});
const present = (...lists) => lists.flat().filter(value => value !== null && value !== undefined);

// What the latest reports say, in words.
function aboutOne(reports) {
  const last = reports[reports.length - 1], settled = reports.filter(r => r.lost !== null).pop();
  if (!last) return noResults();
  if (last.mean === null && !settled) return `Latest: no delay. ${last.reason || ""}`;
  const told = last.mean === null ? settled : last, clocks = told.clock?.synchronised ? "" : ", clocks are not synchronised: no interval";
  const parts = [`Latest: mean ${delayOf(told.mean)}` + (told.ci95.mean ? ` (95%: ${interval(...told.ci95.mean)}, of which clocks ± ${delayOf(told.clock.error)})` : clocks)];
  if (told.sent === null) parts.push(`${count(told.received)} packets received, ${count(told.used)} of them between references`);
  if (told.references) parts.push(`${count(told.references.received)} references received, ${count(told.references.lost)} lost`);
  if (told.sent !== null) parts.push(`${count(told.sent)} packets sent`);
  parts.push(settled ? `${count(Math.round(settled.lost))} of ${count(settled.sent)} packets lost in the latest settled interval` : `loss unknown: ${told.reason || "not yet"}`);
  const unseen = told.unseen.upstream + told.unseen.downstream, order = sums(reports.map(r => r.order));
  if (unseen) parts.push(`captures missed ${count(unseen)}`);
  const overtaken = order.checked ? ` Over this time ${shareOf(order.overtaken / order.checked)} of packets arrived right after a later one (${count(order.overtaken)} of ${count(order.checked)} checked).` : "";
  return `${parts.join("; ")}.${overtaken}`;
}

function noResults() {
  const row = fleet.rows.find(each => each.segment === view.segment);
  if (row?.end) return `No results for this time. The latest was ${ageOf(now() - row.end)} ago.`;
  const heard = new Set(agents.rows.map(agent => agent.point)), missing = [row?.upstream, row?.downstream].filter(point => point && !heard.has(point));
  return `No results for this time.${missing.length ? ` Nothing was heard yet from ${missing.join(" and ")}.` : ""}`;
}

const objectivesOf = figures => (fleet.rows.find(row => row.segment === view.segment)?.objectives || []).filter(each => figures.test(each.objective))
  .map(each => ({y: each.bound, colour: "bad", text: each.objective}));

function drawOne() {
  const reports = one.reports, last = reports[reports.length - 1];
  at("about").textContent = aboutOne(reports);
  document.body.dataset.drawn = one.drawn += 1;
  if (!last) return clear("delay", "loss");
  const range = isFixed() ? timesShown().map(seconds => 1e3 * seconds) : [1e3 * reports[0].start, 1e3 * last.end];
  const time = {kind: "time", local: true, range}, bound = i => r => r.ci95.mean ? r.ci95.mean[i] : null;
  const ends = {low: series(reports, "", "c1", bound(0)).y, high: series(reports, "", "c1", bound(1)).y};
  const delays = [series(reports, "mean (95% band)", "c1", r => r.mean, ends),
    ...[["p50", "0.5", "c2"], ["p90", "0.9", "c3"], ["p99", "0.99", "c4"]].map(([name, q, colour]) => series(reports, name, colour, r => r.quantiles[q]))].filter((each, i) => !i || present(each.y).length);
  const across = objectivesOf(/^(?!loss)/);
  drawChart(at("delay"), {x: time, hover: "x", panels: [{series: delays, across, y: upTo("delay", "delay", present(...delays.map(each => each.y), ends.low, ends.high, across.map(each => each.y)), 1e-9)}]});
  const losses = [series(reports, "loss", "bad", r => r.loss)];
  if (reports.some(r => r.references)) losses.push(series(reports, "loss of references", "c3", r => r.references ? r.references.lost / (r.references.received + r.references.lost) : null));
  const uncovered = series(reports, "time not covered by both", "soft", r => 1 - r.covered, {fill: true, mark: null}), lossAcross = objectivesOf(/^loss/);
  drawChart(at("loss"), {x: time, hover: "x", panels: [
    {series: losses, across: lossAcross, tall: 3, y: upTo("share", "loss", present(...losses.map(each => each.y), lossAcross.map(each => each.y)), 1e-3)},
    {series: [uncovered], tall: 2, y: {kind: "share", title: "not covered", range: [0, 1.05]}}]});
}

// Both charts show the same time, and the address says which.
function takeZoom(event) {
  const range = event.detail;
  for (const id of ["delay", "loss"]) if (at(id) !== event.currentTarget) zoomChart(at(id), range);
  show({zoom: range ? range.map(isoText).join("/") : ""});
}
