// Start: theme, legend, tools, and the first drawing.

const THEMES = ["auto", "light", "dark"];

function readTheme() {
  try { return localStorage.getItem("graphplan-theme") || "auto"; } catch { return "auto"; }
}

function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  try { localStorage.setItem("graphplan-theme", theme); } catch { /* a page from a file may have no storage */ }
  readColours();
  view.changed();
}

/** A coloured square as SVG: the content policy forbids style attributes. */
function makeSwatch(colour) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  svg.setAttribute("viewBox", "0 0 10 10");
  for (const [name, value] of [["width", 10], ["height", 10], ["fill", colour]]) box.setAttribute(name, value);
  svg.appendChild(box);
  return svg;
}

function drawLegend() {
  const legend = document.getElementById("legend");
  const entries = [];
  if (timeline.scheme === "kind") {
    const used = new Set(deviceRows.flatMap((row) => [...new Set(row.kind)]));
    for (const kind of Object.keys(planData.kind_names)) {
      if (used.has(kind)) entries.push([planData.kind_colours[kind], planData.kind_names[kind]]);
    }
    if (timeline.channels) entries.push([planData.transfer_colours.F, "activations sent"], [planData.transfer_colours.B, "gradients sent"], [planData.transfer_colours.R, "gradients reduced"]);
  } else {
    const word = timeline.scheme === "stage" ? "stage" : "micro-batch";
    const seen = new Set(deviceRows.flatMap((row) => [...row[timeline.scheme]]));
    for (const i of [...seen].sort((a, b) => a - b).slice(0, 16)) entries.push([wheelColour(i), `${word} ${i}`]);
    if (seen.size > 16) entries.push(["transparent", `and ${seen.size - 16} more`]);
  }
  legend.replaceChildren(...entries.map(([colour, text]) => {
    const entry = makeElement("span", {}, [makeSwatch(colour)]);
    entry.appendChild(document.createTextNode(text));
    return entry;
  }));
}

function listenToTools() {
  const at = (id) => document.getElementById(id);
  at("zoom-in").addEventListener("click", () => view.zoom(0.6));
  at("zoom-out").addEventListener("click", () => view.zoom(1 / 0.6));
  at("zoom-fit").addEventListener("click", () => view.fit());
  at("colour").addEventListener("change", (event) => { timeline.scheme = event.target.value; drawLegend(); timeline.redraw(); });
  at("show-channels").checked = timeline.channels;
  at("show-channels").disabled = channelRows.length === 0;
  at("show-channels").addEventListener("change", (event) => { timeline.channels = event.target.checked; drawLegend(); timeline.layout(); });
  at("show-critical").addEventListener("change", (event) => { timeline.critical = event.target.checked; timeline.redraw(); });
  at("theme").addEventListener("click", () => applyTheme(THEMES[(THEMES.indexOf(readTheme()) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); view.changed(); });
}

view.onChange(timeline.redraw);
view.onChange(memory.redraw);
view.onChange(markChosen);
listenToTimeline();
listenToMemory();
listenToStages();
listenToTools();
timeline.layout();
memory.layout();
drawLegend();
applyTheme(THEMES.includes(readTheme()) ? readTheme() : "auto");
new ResizeObserver(() => { timeline.redraw(); memory.redraw(); }).observe(document.querySelector("main"));
// For tests and curious readers: the state of the page.
window.graphplan = { view, timeline, memory };
