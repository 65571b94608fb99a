"use strict";
// The server is asked every second; a finished run brings the report of all so far.
const place = document.getElementById("live");
const standing = place.querySelector(".standing"), bar = place.querySelector("progress");
const ended = "The command has ended.";

function clock(seconds) {
  const whole = Math.round(seconds), two = number => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function cells(run) {
  const number = (value, digits) => value === null ? "" : value.toFixed(digits);
  return [
    run.name, run.round === null ? "" : `${run.phase}, ${run.round}`, number(run.seconds, 1),
    number(run.loss, 4), number(run.accuracy === null ? null : 100 * run.accuracy, 1), run.waits,
    run.left === null ? "" : clock(run.left),
  ];
}

function show(now) {
  const left = now.left === null ? "" : `, about ${clock(now.left)} left`;
  const done = `${now.heading}: ${now.done} of ${now.total} runs are done${left}.`;
  standing.textContent = now.total ? done : `${now.stored} runs are stored. New ones will appear here.`;
  bar.hidden = place.querySelector(".scroll").hidden = !now.total;
  bar.max = now.total || 1;
  bar.value = now.done + now.runs.reduce((sum, run) => sum + run.share, 0);
  const rows = now.runs.map(run => {
    const row = document.createElement("tr");
    for (const text of cells(run)) row.insertCell().textContent = text;
    return row;
  });
  place.querySelector("tbody").replaceChildren(...rows);
  const figure = place.querySelector("figure");
  figure.hidden = now.chart === null;
  if (now.chart !== null) shown = chart(place.querySelector(".plot"), now.chart);
}

// Drawn anew when runs begin or end or the axis grows; else only the points are exchanged.
let shown = Promise.resolve(), drawn = "";
async function chart(plot, spec) {
  await shown;
  const { datasets, ...rest } = spec;
  const looks = JSON.stringify(rest) + dark.matches;
  if (looks !== drawn) {
    await embed(plot, spec);
    drawn = looks;
  } else {
    const { view } = views.get(plot);
    const points = vega.changeset().remove(() => true).insert(datasets.runs);
    await view.change("runs", points).runAsync();
  }
}

async function renew() {
  const before = [...document.querySelectorAll("main section")].map(
    section => [section.id, hiddenSchemes(section)]);
  const text = await (await fetch("./")).text();
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const part of ["header", "main", "footer"])
    document.querySelector(part).replaceWith(page.querySelector(part));
  document.getElementById("charts").textContent = page.getElementById("charts").textContent;
  place.dataset.stored = page.getElementById("live").dataset.stored;
  for (const [id, names] of before)
    for (const button of document.getElementById(id)?.querySelectorAll(".legend button") ?? [])
      if (names.includes(button.dataset.scheme)) button.setAttribute("aria-pressed", "false");
  charts = JSON.parse(await unpacked("charts"));
  await draw();
}

async function look() {
  await begun;
  try {
    const now = await (await fetch("now")).json();
    show(now);
    if (String(now.stored) !== place.dataset.stored) await renew();
    if (now.over) {
      standing.textContent += ` ${ended}`;
      await fetch("seen", { method: "POST" });
    } else {
      setTimeout(look, 1000);
    }
  } catch {
    standing.textContent += ` ${ended}`;
  }
}
look();
