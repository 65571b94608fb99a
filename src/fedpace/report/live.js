"use strict";
// The server is asked every second; a finished run brings the report of all so far.
const place = document.getElementById("live");
const standing = place.querySelector(".standing"), bar = place.querySelector("progress");
const ended = "The command has ended: this is how far it came.";

function clock(seconds) {
  const whole = Math.round(seconds), two = number => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function told(run) {
  const number = (value, digits) => value === null ? "" : value.toFixed(digits);
  return [
    run.name, run.round === null ? "" : `${run.phase}, ${run.round}`, number(run.seconds, 1),
    number(run.loss, 4), number(run.accuracy === null ? null : 100 * run.accuracy, 1), run.waits,
    run.left === null ? "" : clock(run.left),
  ];
}

function show(now) {
  const left = now.left === null ? "" : `, about ${clock(now.left)} left`;
  standing.textContent = `${now.heading}: ${now.done} of ${now.total} runs are done${left}.`;
  bar.max = now.total;
  bar.value = now.done + now.runs.reduce((sum, run) => sum + run.share, 0);
  const rows = now.runs.map(run => {
    const row = document.createElement("tr");
    for (const text of told(run)) row.insertCell().textContent = text;
    return row;
  });
  place.querySelector("tbody").replaceChildren(...rows);
  const plot = place.querySelector(".plot");
  plot.parentElement.hidden = now.plot.data.length === 0;
  if (now.plot.data.length) {
    const { data, layout } = JSON.parse(coloured(JSON.stringify(now.plot)));
    Plotly.react(plot, data, layout, config);
  }
}

async function renew() {
  const before = hidden();
  const text = await (await fetch("/")).text();
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const part of ["header", "main", "footer"])
    document.querySelector(part).replaceWith(page.querySelector(part));
  document.getElementById("plots").textContent = page.getElementById("plots").textContent;
  place.dataset.stored = page.getElementById("live").dataset.stored;
  await draw();
  hide(before);
}

async function look() {
  await begun;
  try {
    const now = await (await fetch("/now")).json();
    show(now);
    if (String(now.stored) !== place.dataset.stored) await renew();
    if (now.over) {
      standing.textContent += ` ${ended}`;
      await fetch("/seen");
    } else {
      setTimeout(look, 1000);
    }
  } catch {
    standing.textContent += ` ${ended}`;
  }
}
look();
