// What the page shows, as its address: a link that is shared shows the same. And what all parts of the page use.
"use strict";
const at = id => document.getElementById(id);
const DEFAULTS = {q: "", state: "", by: "", in: "", sort: "", up: "", page: "1", rows: "25", segment: "", class: "", range: "600",
  from: "", to: "", zoom: "", source: "", target: "", agents_q: "", agents_sort: "", agents_up: "", agents_page: "1"};
const view = {...DEFAULTS};

function readView() {
  const given = new URLSearchParams(location.search);
  for (const name of Object.keys(DEFAULTS)) view[name] = given.get(name) ?? DEFAULTS[name];
  if (!(Date.parse(view.from) < Date.parse(view.to))) view.from = view.to = "";  // addresses may be typed
  for (const [name, most] of [["range", 1e9], ["rows", 1000]]) {
    if (!(view[name] >= 1 && view[name] <= most)) view[name] = DEFAULTS[name];
  }
}

// The address of the page with these changes.
function addressOf(changes = {}) {
  const wanted = {...view, ...changes};
  const given = Object.entries(wanted).filter(([name, value]) => value !== DEFAULTS[name]);
  return given.length ? `?${new URLSearchParams(given)}` : location.pathname;
}

// A new segment is a step in the browser's history; a new order is not.
function show(changes, isStep = false) {
  const address = addressOf(changes);
  Object.assign(view, changes);
  if (address !== (location.search || location.pathname)) history[isStep ? "pushState" : "replaceState"](null, "", address);
}

// ---- asking the collector ----

async function ask(path, parameters) {
  const answer = await fetch(path + (parameters ? "?" + new URLSearchParams(parameters) : ""));
  if (answer.status === 401) location.reload();
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

// Time by the collector's clock, which goes on when the collector does not: ages never stand still.
const clock = {ahead: 0};
const now = () => Date.now() / 1000 + clock.ahead;

// ---- values as text ----

const delayOf = seconds => seconds === null || seconds === undefined ? "–" : duration(seconds);
const shareOf = share => share === null || share === undefined ? "–" : `${Number((100 * share).toPrecision(3))}%`;
const ageOf = seconds => duration(seconds < 120 ? Math.max(0, Math.round(seconds)) : seconds);

function link(text, changes, act) {
  const made = element("a", {href: addressOf(changes)}, text);
  made.addEventListener("click", event => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;  // a new tab
    event.preventDefault();
    act();
  });
  return made;
}
