// The Node.js side of a peer's process; it speaks with the harness as child.py does.
import crypto from "node:crypto";
import readline from "node:readline";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

// The packages are installed outside the tree, where import does not look.
export const need = createRequire(`${process.env.REDRIVE_BENCH_NODE}/package.json`);

const BATCH = 1000;
const CONNECTIONS = 100;
const PATH = "/hooks/orders";
const PROGRESS_MS = 10;
const SAMPLE_TIMEOUT_MS = 10_000;
const WARM = 5;
const BODY_BYTES = 1024;

const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC
const seconds = (begun) => Number(now() - begun) / 1e9;
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const tell = (event, fields = {}) => process.stdout.write(JSON.stringify({ event, ...fields }) + "\n");

const { positionals, values: given } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string" },
    count: { type: "string" },
    slots: { type: "string" },
    job: { type: "string", default: "noop" },
    port: { type: "string", default: "0" },
  },
});
const role = positionals[0];
export const options = { ...given, count: Number(given.count), slots: Number(given.slots), port: Number(given.port) };

const lines = readline.createInterface({ input: process.stdin });
const words = [];
const waiting = [];
lines.on("line", (line) => (waiting.length ? waiting.shift()(line) : words.push(line)));
lines.on("close", () => process.exit(0));
const heard = () => (words.length ? Promise.resolve(words.shift()) : new Promise((resolve) => waiting.push(resolve)));

/** An event whose JSON is exactly 1024 bytes. */
export function event(number) {
  const head = JSON.stringify({ id: number, data: "" });
  return { id: number, data: "x".repeat(BODY_BYTES - head.length) };
}

const work = { handled: 0, first: 0n };
const report = () => tell("progress", { handled: work.handled, first: Number(work.first) });

function finished() {
  if (++work.handled === options.count) report();
}

function noop() {
  if (!work.first) work.first = now();
  finished();
}

const key = Buffer.from((process.env.REDRIVE_BENCH_SECRET ?? "").replace(/^whsec_/, ""), "base64");
let pool;

/** undici's dispatch with a handler: a fifth faster here than its request(), and twice as fast as node:http. */
class Answer {
  constructor(resolve, reject) {
    this.resolve = resolve;
    this.reject = reject;
    this.status = 0;
  }
  onRequestStart() {}
  onResponseStart(_controller, status) {
    this.status = status;
  }
  onResponseData() {}
  onResponseEnd() {
    if (this.status === 200) this.resolve();
    else this.reject(new Error(`the sink answered ${this.status}`));
  }
  onResponseError(_controller, error) {
    this.reject(error);
  }
}

/** Sign and POST as Standard Webhooks 1.0 says. */
async function post(message, content) {
  if (!work.first) work.first = now();
  const stamp = String(Math.floor(Date.now() / 1000));
  const mac = crypto.createHmac("sha256", key).update(`${message}.${stamp}.${content}`).digest("base64");
  const headers = {
    "content-type": "application/json",
    "webhook-id": message,
    "webhook-timestamp": stamp,
    "webhook-signature": `v1,${mac}`,
  };
  await new Promise((resolve, reject) => {
    pool.dispatch({ path: PATH, method: "POST", body: content, headers }, new Answer(resolve, reject));
  });
  finished();
}

const samples = [];
let started = () => {};

function stamp(sent) {
  samples.push(Number(now() - BigInt(sent)) / 1e6);
  started();
}

/** What handlers call first: noop(), post(id, text) or stamp(nanoseconds as text). */
export const jobs = { noop, post, stamp };

const roles = {
  async enqueue(peer) {
    await peer.install();
    tell("ready");
    await heard();
    const begun = now();
    for (let first = 0; first < options.count; first += BATCH) {
      await peer.enqueue(options.job, first, Math.min(first + BATCH, options.count));
    }
    tell("done", { took_s: seconds(begun) });
  },

  async work(peer) {
    if (options.job === "hook") {
      const { Pool } = need("undici");
      pool = new Pool(`http://127.0.0.1:${options.port}`, { connections: CONNECTIONS });
    }
    await peer.connect();
    tell("ready");
    await heard();
    await peer.run(options.job);
    let last = 0;
    setInterval(() => {
      if (work.handled !== last) {
        last = work.handled;
        report();
      }
    }, PROGRESS_MS);
  },

  async pickup(peer) {
    await peer.install();
    await peer.connect();
    await peer.run("stamp");
    await sleep(1000);
    tell("ready");
    await heard();
    const begun = now();
    for (let n = 0; n < options.count + WARM; n++) {
      const seen = new Promise((resolve) => (started = resolve));
      await peer.enqueueStamp(String(now()));
      const late = sleep(SAMPLE_TIMEOUT_MS).then(() => "late");
      if ((await Promise.race([seen, late])) === "late") throw new Error("a job was not started");
      await sleep(20 + Math.random() * 10);
    }
    tell("done", { took_s: seconds(begun), samples: samples.slice(WARM) });
  },
};

/** A peer script's main function. It stays until the harness closes its input. */
export function main(peer) {
  roles[role](peer).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
