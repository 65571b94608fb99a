"use strict";
const plots = JSON.parse(document.getElementById("plots").textContent);
// A finger scrolls the page; zooming is for the mouse.
const touch = window.matchMedia("(pointer: coarse)").matches;
const config = {
  responsive: true,
  displaylogo: false,
  displayModeBar: !touch,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

for (const [id, plot] of Object.entries(plots)) {
  if (touch) plot.layout.dragmode = false;
  Plotly.newPlot(id, plot.data, plot.layout, config);
}

// One legend per setup: a click shows or hides the scheme in all of its plots.
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const plot of button.closest("section").querySelectorAll(".plot")) {
      const traces = plot.data.flatMap((trace, index) =>
        trace.legendgroup === button.dataset.scheme ? [index] : []);
      if (traces.length) Plotly.restyle(plot, { visible: shown }, traces);
    }
  });
}
