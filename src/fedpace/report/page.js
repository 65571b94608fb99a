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

// Colours of a dark page: what a plot has for a light one, and what it becomes.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function colours() {
  const [letters, page, lines] = dark.matches
    ? ["#ddd", "#16181c", "#33373d"] : ["#222", "#fff", "#eee"];
  return {
    "font.color": letters, paper_bgcolor: page, plot_bgcolor: page,
    "xaxis.gridcolor": lines, "yaxis.gridcolor": lines,
  };
}

async function draw() {
  const plots = JSON.parse(await unpacked("plots"));
  for (const [id, plot] of Object.entries(plots)) {
    if (touch) plot.layout.dragmode = false;
    await Plotly.newPlot(id, plot.data, plot.layout, config);
    if (dark.matches) await Plotly.relayout(id, colours());
  }
  document.body.dataset.drawn = "true";
}

async function begin() {
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.head.append(script);
  await draw();
  dark.addEventListener("change", () => {
    for (const plot of document.querySelectorAll(".plot")) Plotly.relayout(plot, colours());
  });
}
const begun = begin();

// One legend per setup: a click shows or hides the scheme in all of its plots.
function toggle(button) {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(shown));
  for (const plot of button.closest("section").querySelectorAll(".plot")) {
    const traces = plot.data.flatMap((trace, index) =>
      trace.legendgroup === button.dataset.scheme ? [index] : []);
    if (traces.length) Plotly.restyle(plot, { visible: shown }, traces);
  }
}
document.addEventListener("click", event => {
  const button = event.target.closest(".legend button");
  if (button) toggle(button);
});
