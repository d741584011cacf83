// The same commands as producer.py, for systems on Node: prepare, produce, work default, work tuned.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

const WARM = 20;
const RUN_BYTES = 16;
const run = Buffer.alloc(RUN_BYTES);
let runs = null;

// What every job does: append its number and the monotonic clock to the file of the measurement.
function ran(number) {
  if (runs === null) runs = fs.openSync(process.env.BENCH_RUNS, 'a');
  run.writeBigInt64LE(BigInt(number), 0);
  run.writeBigInt64LE(process.hrtime.bigint(), 8);
  fs.writeSync(runs, run);
}

const rest = (seconds) => new Promise((done) => setTimeout(done, seconds * 1e3));
const between = ([low, high]) => low + Math.random() * (high - low);

const actions = {
  async one(peer, { count }) {
    for (let number = 0; number < WARM; number++) await peer.enqueue(number);
    const taken = [];
    for (let number = 0; number < count; number++) {
      const began = process.hrtime.bigint();
      await peer.enqueue(number);
      taken.push(Number(process.hrtime.bigint() - began) / 1e3);
    }
    return taken;
  },
  async many(peer, { count }) {
    const began = process.hrtime.bigint();
    for (let start = 0; start < count; start += 1000) {
      const size = Math.min(1000, count - start);
      await peer.enqueueMany(Array.from({ length: size }, (_, i) => start + i));
    }
    return Number(process.hrtime.bigint() - began) / 1e9;
  },
  async pace(peer, { first, count, pauses, delays }) {
    const due = {};
    let at = performance.now() / 1e3;
    for (let number = first; number < first + count; number++) {
      at += between(pauses);
      await rest(Math.max(0, at - performance.now() / 1e3));
      const delay = delays ? between(delays) : null;
      due[number] = Number(process.hrtime.bigint()) + Math.round((delay ?? 0) * 1e9);
      await peer.enqueue(number, delay);
    }
    return due;
  },
};

async function main(name, action, setting) {
  const peer = require(path.join(__dirname, 'systems', `${name}.cjs`))(process.env.BENCH_URL, ran);
  if (action === 'prepare') {
    await peer.prepare();
    process.exit(0);
  }
  if (action === 'work') return peer.work(setting === 'tuned');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: what, ...rest } = JSON.parse(line);
    const answer = what === 'open' ? await peer.open() : await actions[what](peer, rest);
    process.stdout.write(`${JSON.stringify(answer ?? null)}\n`);
  }
  process.exit(0);
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
