// What the page of a job takes of a browser: a job of 64 workers that make ten iterations a second each is written as a run log, star view serves
// it, and Chromium looks at it.
//
//   go build -o star ./cmd/star && NODE_PATH=…/node_modules node bench/page.js --star ./star --minutes 60 [--rate 10] [--workers 64] [--every 60] [--chromium /usr/bin/chromium]
//
// Each line of the CSV: minutes since the beginning, records written so far, the renderer's main thread in ms of processor time for each second since the
// line before, its memory in MB (private: its own pages), the script's memory after a garbage collection, and nodes of the document.
"use strict";
const { chromium } = require("playwright-core");
const { spawn } = require("node:child_process");
const fs = require("node:fs"), os = require("node:os"), path = require("node:path"), net = require("node:net");

const args = { star: "star", minutes: "60", rate: "10", workers: "64", every: "60", chromium: "/usr/bin/chromium" };
for (let i = 2; i < process.argv.length; i += 2) {
  const name = process.argv[i].replace(/^--/, "");
  if (!(name in args) || process.argv[i + 1] === undefined) {
    console.error(`page.js: ${process.argv[i]}: want ${Object.keys(args).map(n => `--${n} VALUE`).join(", ")}`);
    process.exit(2);
  }
  args[name] = process.argv[i + 1];
}
const workers = +args.workers, rate = +args.rate;

// The log: rounds of all workers, with two of them slow in turn for a minute each, and an evaluation each minute.
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "star-page-")), log = path.join(folder, "run.jsonl");
let rounds = 0, records = 0;
const line = o => JSON.stringify(o) + "\n";
const head = () => {
  let text = line({ type: "start", format: 1, program: "page.js", time: new Date().toISOString(), job: "page", config: { workers, batch: 32 } });
  for (let w = 0; w < workers; w++) text += line({ type: "join", t: 0, worker: w, peer: `10.0.0.${w}:7070` });
  return text + line({ type: "train", t: 0, workers, shards: 1, model: "none", model_hash: "", params: 1000, data: "none", samples: 1e6, limit: 1e12, version: 0, plan: "ssgd" });
};
const round = () => {
  let text = "";
  const t = (rounds + 1) / rate, minute = Math.floor(t / 60), all = [...Array(workers).keys()];
  for (const w of all) {
    const slow = w === minute % workers && minute % 2 ? 2 : 1, compute = 0.4 / rate * slow * (0.9 + 0.2 * Math.random());
    text += line({ type: "record", t, worker: w, step: rounds, basis: rounds, at: t - 0.1 / rate, load: 0.001, compute, push: 0.05 / rate, wait: Math.max(0, 0.8 / rate - compute), pull: 0.05 / rate,
      transit: 0, start: 32 * (rounds * workers + w), samples: 32, loss: 1 / (1 + rounds / 1000) + 0.1 * Math.random(), norm2: 1, cpu: 0.5, net_in: 4000, net_out: 4000 });
    records++;
  }
  rounds++;
  text += line({ type: "fire", t, seq: rounds, version: rounds, workers: all, staleness: all.map(() => 0), samples: 32 * workers * rounds });
  if (rounds % Math.round(60 * rate) === 0) text += line({ type: "eval", t, eval: rounds, from_version: rounds, to_version: rounds, samples: 32 * workers * rounds, loss: 0.5, accuracy: 0.9, count: 1000 });
  return text;
};

const freePort = () => new Promise(done => { const s = net.createServer().listen(0, "127.0.0.1", () => { const { port } = s.address(); s.close(() => done(port)); }); });
// Private memory of a process in MB, by Linux.
const memory = pid => +/^Private_Dirty: *(\d+)/m.exec(fs.readFileSync(`/proc/${pid}/smaps_rollup`, "utf8"))[1] / 1024;

(async () => {
  fs.writeFileSync(log, head());
  const file = fs.openSync(log, "a"), port = await freePort();
  const star = spawn(args.star, ["view", "--listen", `127.0.0.1:${port}`, folder], { stdio: ["ignore", "ignore", "inherit"] });
  const browser = await chromium.launch({ executablePath: args.chromium, args: ["--no-sandbox"] });
  const began = Date.now();
  const writing = setInterval(() => { while (rounds < (Date.now() - began) / 1000 * rate) fs.writeSync(file, round()); }, 100);
  try {
    const page = await browser.newPage({ viewport: { width: 1200, height: 900 } });
    for (let tries = 0; ; tries++) {
      try { await page.goto(`http://127.0.0.1:${port}/`); break; } catch (e) { if (tries > 100) throw e; await new Promise(r => setTimeout(r, 500)); }
    }
    const cdp = await page.context().newCDPSession(page), whole = await browser.newBrowserCDPSession();
    await cdp.send("Performance.enable", { timeDomain: "threadTicks" });
    const look = async () => {
      const m = Object.fromEntries((await cdp.send("Performance.getMetrics")).metrics.map(x => [x.name, x.value])); // before the collection: its time is not the page's
      await cdp.send("HeapProfiler.collectGarbage");
      const heap = (await cdp.send("Runtime.getHeapUsage")).usedSize / 1e6;
      const after = Object.fromEntries((await cdp.send("Performance.getMetrics")).metrics.map(x => [x.name, x.value]));
      const pids = (await whole.send("SystemInfo.getProcessInfo")).processInfo.filter(p => p.type === "renderer").map(p => p.id);
      return { task: m.TaskDuration, from: after.TaskDuration, at: Date.now(), heap, nodes: m.Nodes, memory: Math.max(...pids.map(memory)) };
    };
    console.log("minutes,records,main_thread_ms_per_s,renderer_mb,script_mb,nodes,load");
    let last = await look();
    while (Date.now() - began < args.minutes * 60000) {
      await new Promise(r => setTimeout(r, args.every * 1000));
      const now = await look(), s = (now.at - last.at) / 1000;
      console.log([((now.at - began) / 60000).toFixed(1), records, (1000 * (now.task - last.from) / s).toFixed(1), now.memory.toFixed(0), now.heap.toFixed(2), now.nodes, os.loadavg()[0].toFixed(0)].join(","));
      last = now;
    }
    console.error(`${await page.textContent("#headline")}`);
  } finally {
    clearInterval(writing);
    star.kill();
    await browser.close();
    fs.rmSync(folder, { recursive: true });
  }
})().catch(e => { console.error(e); process.exit(1); });
