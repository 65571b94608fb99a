// A device in JavaScript: holds its own samples, and trains a logistic regression when asked.
//
//   npm install
//   node device.js HOST:PORT NAME PROTO SAMPLES.json [CERTS]
//
// PROTO is src/fedpace/network/devices.proto, all that this file knows of fedpace. SAMPLES.json holds
// {"classes": 3, "train": [[[features…], label], …], "test": […]}. CERTS is a folder with ca.pem,
// NAME.pem and NAME-key.pem; without it the connection is plain, which servers accept on loopback only.

"use strict";

const fs = require("fs");
const path = require("path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, name, proto, samplesFile, certs] = process.argv.slice(2);
const { classes, train, test } = JSON.parse(fs.readFileSync(samplesFile));
const features = train[0][0].length;
const PART = 1 << 20; // bytes of numbers in one message
const STEPS = 5;
const BATCH = 8;

// The parameters: for each class its weights of all features, and the intercept.
function logits(model, x) {
  const out = [];
  for (let c = 0; c < classes; c++) {
    const first = c * (features + 1);
    let sum = model[first + features];
    for (let i = 0; i < features; i++) sum += x[i] * model[first + i];
    out.push(sum);
  }
  return out;
}

function probabilities(model, x) {
  const z = logits(model, x);
  const top = Math.max(...z);
  const e = z.map((each) => Math.exp(each - top));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((each) => each / sum);
}

function meanLoss(model) {
  const losses = train.map(([x, y]) => -Math.log(probabilities(model, x)[y]));
  return losses.reduce((a, b) => a + b, 0) / train.length;
}

function gradient(model) {
  const out = new Float64Array(model.length);
  for (let n = 0; n < BATCH; n++) {
    const [x, y] = train[Math.floor(Math.random() * train.length)];
    probabilities(model, x).forEach((p, c) => {
      const error = (p - (c === y ? 1 : 0)) / BATCH;
      const first = c * (features + 1);
      for (let i = 0; i < features; i++) out[first + i] += error * x[i];
      out[first + features] += error;
    });
  }
  return out;
}

function trained(model, rate) {
  const local = Float64Array.from(model);
  let squares = 0;
  for (let step = 0; step < STEPS; step++) {
    gradient(local).forEach((g, i) => {
      squares += g * g;
      local[i] -= rate * g;
    });
  }
  return [local.map((w, i) => w - model[i]), Math.sqrt(squares / STEPS)];
}

function counts(model) {
  const right = ([x, y]) => {
    const z = logits(model, x);
    return z.indexOf(Math.max(...z)) === y;
  };
  return { loss: meanLoss(model), correct: test.filter(right).length, heldOut: test.length };
}

function floats(bytes) {
  return Float64Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readFloatLE(4 * i));
}

function bytes(numbers) {
  const out = Buffer.alloc(4 * numbers.length);
  numbers.forEach((each, i) => out.writeFloatLE(each, 4 * i));
  return out;
}

function answer(asked, numbers) {
  if (asked.kind === "job") return { ready: { samples: train.length } };
  const model = floats(numbers);
  if (asked.kind === "evaluate") return { counts: counts(model) };
  const begin = process.hrtime.bigint();
  const loss = meanLoss(model);
  const [update, gradNorm] = trained(model, asked.train.learningRate);
  const computingSeconds = Number(process.hrtime.bigint() - begin) / 1e9;
  return { update: { numbers: bytes(update), gradNorm, loss, computingSeconds } };
}

// Send an answer; numbers that do not fit into one message go ahead in parts.
function send(call, task, said) {
  if (said.update) {
    let rest = said.update.numbers;
    for (; rest.length > PART; rest = rest.subarray(PART))
      call.write({ part: { numbers: rest.subarray(0, PART) } });
    said.update.numbers = rest;
  }
  call.write({ task, ...said });
}

function credentials() {
  if (!certs) return grpc.credentials.createInsecure();
  const read = (file) => fs.readFileSync(path.join(certs, file));
  return grpc.credentials.createSsl(read("ca.pem"), read(`${name}-key.pem`), read(`${name}.pem`));
}

const { Devices } = grpc.loadPackageDefinition(
  loader.loadSync(proto, { longs: String, oneofs: true, defaults: true }),
).fedpace.v1;

function attend() {
  const client = new Devices(address, credentials());
  const call = client.Attend();
  let parts = [];
  call.on("data", (asked) => {
    if (asked.kind === "welcome") return;
    const said = asked[asked.kind];
    if (said.numbers) parts.push(said.numbers);
    if (asked.kind === "part") return;
    const numbers = Buffer.concat(parts);
    parts = [];
    try {
      send(call, asked.task, answer(asked, numbers));
    } catch (error) {
      send(call, asked.task, { failed: { message: error.name } }); // no more: it may quote a sample
    }
  });
  call.on("error", () => {}); // the status says it
  call.on("status", ({ code, details }) => {
    client.close();
    if (code === grpc.status.OK) return; // goodbye
    console.error(`${name}: ${details}`);
    if (code === grpc.status.PERMISSION_DENIED) process.exitCode = 1;
    else setTimeout(attend, 1000);
  });
  call.write({ hello: { name } });
}

attend();
