"use strict";
// A finger scrolls the page; zooming is for the mouse.
const touch = window.matchMedia("(pointer: coarse)").matches;
const config = {
  responsive: true,
  displaylogo: false,
  displayModeBar: !touch,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

// plotly.js and the plots come as base 85 of a gzip file, with "," in the place of "<".
const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
function unpacked(id) {
  const text = document.getElementById(id).textContent.trim();
  const digits = new Uint8Array(128);
  for (let i = 0; i < 85; i++) digits[alphabet.charCodeAt(i)] = i;
  const whole = Math.ceil(text.length / 5), missing = 5 * whole - text.length;
  const bytes = new Uint8Array(4 * whole), view = new DataView(bytes.buffer);
  for (let i = 0; i < whole; i++) {
    let value = 0;
    for (let j = 5 * i; j < 5 * i + 5; j++)
      value = 85 * value + (j < text.length ? digits[text.charCodeAt(j)] : 84);
    view.setUint32(4 * i, value);
  }
  const zipped = new Blob([bytes.subarray(0, bytes.length - missing)]).stream();
  return new Response(zipped.pipeThrough(new DecompressionStream("gzip"))).text();
}

// Colours of a light page, and what they are on a dark one: letters, ground, lines, and black.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const inDark = {
  "#222222": "#dddddd", "#ffffff": "#16181c", "#eeeeee": "#33373d", "#e0e0e0": "#33373d",
  "#f3efe2": "#25231c", "#000000": "#e8e8e8", "#444444": "#cccccc", "#777777": "#a2a7ae",
};
// With its quotation mark, and perhaps with how opaque it is behind it.
const light = new RegExp(`"(${Object.keys(inDark).join("|")})`, "g");
function coloured(text) {
  return dark.matches ? text.replace(light, (_, colour) => `"${inDark[colour]}`) : text;
}

async function draw() {
  const plots = JSON.parse(coloured(await unpacked("plots")));
  for (const [id, plot] of Object.entries(plots)) {
    if (touch) plot.layout.dragmode = false;
    await Plotly.newPlot(id, plot.data, plot.layout, config);
  }
  document.body.dataset.drawn = "true";
}

async function begin() {
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.head.append(script);
  await draw();
  dark.addEventListener("change", async () => {
    await draw();
    hide(hidden());
  });
}
const begun = begin();

// One legend per setup: a click shows or hides the scheme in all of its plots.
function toggle(button, shown = button.getAttribute("aria-pressed") !== "true") {
  button.setAttribute("aria-pressed", String(shown));
  for (const plot of button.closest("section").querySelectorAll(".plot")) {
    const traces = plot.data.flatMap((trace, index) =>
      trace.legendgroup === button.dataset.scheme ? [index] : []);
    if (traces.length) Plotly.restyle(plot, { visible: shown }, traces);
  }
}
function hidden() {
  return [...document.querySelectorAll('.legend button[aria-pressed="false"]')]
    .map(button => [button.closest("section").id, button.dataset.scheme]);
}
function hide(schemes) {
  for (const [section, scheme] of schemes)
    for (const button of document.getElementById(section)?.querySelectorAll(".legend button") ?? [])
      if (button.dataset.scheme === scheme) toggle(button, false);
}
document.addEventListener("click", event => {
  const button = event.target.closest(".legend button");
  if (button) toggle(button);
});
