// What to do with a time that was marked in a chart: the command that measures it alone, and Wireshark's filter for it.
"use strict";

// A place on a time axis, as nanoseconds since 1970 with nine digits behind the point: exact for both programs.
function epochText(spec, x) {
  const ns = spec.kind === "time" ? BigInt(Math.round(x * 1e3)) * 1000n : BigInt(spec.since_ns) + BigInt(Math.round(x * 1e9));
  const text = String(ns).padStart(10, "0");
  return `${text.slice(0, -9)}.${text.slice(-9)}`;
}

function copyable(title, text) {
  const made = element("p", {}, `${title} `), code = element("code", {}, text), button = element("button", {type: "button"}, "copy");
  button.setAttribute("aria-label", `Copy: ${title}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "copied";
  });
  made.append(code, " ", button);
  return made;
}

function tellMarked(place, range) {
  const {x} = place.chart.data, before = place.nextElementSibling?.classList.contains("marked") ? place.nextElementSibling : null;
  if (!range) return before?.remove();
  const [from, to] = range.map(end => epochText(x, end)), made = before || element("div", {class: "marked", role: "status"});
  const command = document.querySelector("main").dataset.command, times = `--from ${from} --to ${to}`;
  made.replaceChildren(element("p", {}, `Marked: ${saySpan({spec: x, say: at => SAY[x.kind](at, x)}, ...range)}${x.kind === "time" ? " UTC" : ""}`),
    copyable("Measure it alone:", command ? `${command} ${times}` : times),
    copyable("Wireshark's filter:", `frame.time_epoch >= ${from} && frame.time_epoch < ${to}`));
  if (!before) place.after(made);
}

for (const place of document.querySelectorAll(".chart")) {
  place.addEventListener("zoomed", event => {
    const {kind, since_ns: since} = place.chart.data.x;
    if (kind === "time" || since !== undefined) tellMarked(place, event.detail);
  });
}
