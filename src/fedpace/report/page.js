"use strict";
// Vega and the charts come as base 85 of a gzip file, with "," in the place of "<".
const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
function unpacked(id) {
  const text = document.getElementById(id).textContent.trim();
  const digits = new Uint8Array(128);
  for (let i = 0; i < 85; i++) digits[alphabet.charCodeAt(i)] = i;
  const groups = Math.ceil(text.length / 5), missing = 5 * groups - text.length;
  const bytes = new Uint8Array(4 * groups), view = new DataView(bytes.buffer);
  for (let i = 0; i < groups; i++) {
    let value = 0;
    for (let j = 5 * i; j < 5 * i + 5; j++)
      value = 85 * value + (j < text.length ? digits[text.charCodeAt(j)] : 84);
    view.setUint32(4 * i, value);
  }
  const zipped = new Blob([bytes.subarray(0, bytes.length - missing)]).stream();
  return new Response(zipped.pipeThrough(new DecompressionStream("gzip"))).text();
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");
let charts;
const views = new Map();

// Draw a specification; black marks are light on a dark page.
async function embed(place, spec) {
  // The buttons above the charts are the legend, unless a chart keeps its own.
  const plain = (key, value) => (key === "legend" && typeof value === "object" ? null : value);
  const text = JSON.stringify(spec, spec.usermeta?.legend ? null : plain);
  const shown = JSON.parse(dark.matches ? text.replace(/"#(000000|444444|777777)"/g, '"#d8d8d8"') : text);
  const config = structuredClone(dark.matches ? charts.dark : charts.light);
  const { view, finalize } = await vegaEmbed(place, shown, {
    ast: true, actions: false, renderer: "canvas", config,
    tooltip: { theme: dark.matches ? "dark" : "custom" },
  });
  views.get(place)?.finalize();
  views.set(place, { view, finalize });
  return view;
}

// Charts of folded parts have no width: they are drawn when they are opened.
async function draw(within = document) {
  for (const place of within.querySelectorAll("main .plot")) {
    if (place.dataset.drawn || place.closest("details:not([open])")) continue;
    place.dataset.drawn = "true";
    const view = await embed(place, charts.specs[place.id]);
    await hide(place.closest("section"), view);
  }
}

function hiddenSchemes(section) {
  return [...section.querySelectorAll('.legend button[aria-pressed="false"]')]
    .map(button => button.dataset.scheme);
}
// Leave out the schemes that are switched off: in one chart, or in all of a section.
async function hide(section, only) {
  const names = hiddenSchemes(section);
  for (const part of section.querySelectorAll("figure[data-scheme], .why[data-scheme]"))
    part.hidden = names.includes(part.dataset.scheme);
  for (const [place, { view }] of views)
    if ((only ? view === only : section.contains(place)) && "hidden" in view.getState().signals)
      await view.signal("hidden", names).runAsync();
}

async function redraw() {
  for (const place of document.querySelectorAll("main .plot")) delete place.dataset.drawn;
  await draw();
}

async function begin() {
  const script = document.createElement("script");
  script.textContent = await unpacked("vega");
  document.head.append(script);
  charts = JSON.parse(await unpacked("charts"));
  await draw();
  document.body.dataset.drawn = "true";
  dark.addEventListener("change", redraw);
}
const begun = begin();

function sort(head) {
  const table = head.closest("table"), column = head.cellIndex;
  const falling = head.getAttribute("aria-sort") === "ascending";
  const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");  // nothing known: always last
    const less = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return falling ? -less : less;
  };
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", falling ? "descending" : "ascending");
}

document.addEventListener("click", event => {
  const button = event.target.closest(".legend button");
  if (button) {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    hide(button.closest("section"));
  }
  const head = event.target.closest("table.sortable th");
  if (head) sort(head);
});
document.addEventListener("toggle", event => begun.then(() => draw(event.target)), true);
