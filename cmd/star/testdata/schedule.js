// A browser looks at the page of a schedule: node schedule.js CHROMIUM URL simulated|live. It ends with 0 when all holds, and says what it saw.
"use strict";
const { chromium } = require("playwright-core");

const fail = why => { throw new Error(why); };

(async () => {
  const [path, url, kind] = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath: path, args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage({ viewport: { width: 390, height: 800 } });
    const asked = [], wrong = [];
    page.on("request", r => asked.push(r.url()));
    page.on("pageerror", e => wrong.push(e.message));
    page.on("console", m => { if (m.type() === "error" && !/ERR_|Failed to load resource/.test(m.text())) wrong.push(m.text()); });
    page.on("dialog", () => fail("a job's name was run"));
    const until = (what, f, arg) => page.waitForFunction(f, arg, { timeout: 120000 }).catch(async e => fail(`${what}: ${e.message}\n${await page.textContent("main")}`));
    const says = (what, id, words) => until(what, ([id, words]) => document.getElementById(id).textContent.includes(words), [id, words]);
    const key = async k => { await page.focus("#timeline"); await page.keyboard.press(k); };
    await page.goto(url, { timeout: 60000 });

    if (kind === "simulated") {
      await says("a name that is a script", "t-ended", "<script>alert(1)</script>");
      await says("who is declined, and why", "t-refused", "asks for 8 GPUs, and the cluster has 4");
      await key("Home");
      await says("the first job on the first GPU", "under", "job <script>alert(1)</script> has 4 GPUs from 0.0 s to 100.0 s: GPU 0");
      await key("ArrowRight");
      await says("the next one", "under", "job b has 4 GPUs from 100.0 s to 150.0 s");
      await page.fill("#find", "d");
      await until("only what is looked for", () => document.querySelectorAll("#t-ended tbody tr").length === 1);
      await page.fill("#find", "");
      await page.selectOption("#policy", "srtf");
      await until("preemptions under the other policy", () => [...document.querySelectorAll("#t-ended tbody tr")].some(r => r.cells[0].textContent.startsWith("<script>") && r.cells[7].textContent === "1"));
      console.log(await page.textContent("#headline"));
    } else {
      await until("a job runs and one waits", () => document.querySelectorAll("#t-running tbody tr").length === 1 && document.querySelector("#t-running td.n") && document.querySelector("#t-queue td.text"));
      await says("why", "t-decided", "starts on 1: first come, first served");
      console.log(await page.textContent("#headline"));
      await key("End");
      await until("who has the place", () => /^job first has .*, place 0 from .* on$/.test(document.getElementById("under").textContent));
      const done = () => page.evaluate(() => document.querySelector("#t-running tbody tr").cells[2].textContent);
      const before = await done();
      await until("it goes on by itself", b => document.querySelector("#t-running tbody tr").cells[2] && document.querySelector("#t-running tbody tr").cells[2].textContent !== b, before);
      console.log("ready for the end");
      await says("both are refused", "t-refused", "second");
    }
    for (const width of [390, 1200]) {
      await page.setViewportSize({ width, height: 800 });
      await page.emulateMedia({ colorScheme: width === 390 ? "light" : "dark" });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      if (over > 0) fail(`at ${width} px the page is ${over} px too wide`);
    }
    const colours = await page.evaluate(() => {
      const c = document.querySelector("#timeline canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, seen = new Set();
      for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
      return seen.size;
    });
    if (colours < 3) fail("the picture is empty");
    const host = new URL(url).host;
    for (const r of asked) if (!r.startsWith("data:") && new URL(r).host !== host) fail("it asked for " + r);
    if (wrong.length) fail(wrong.join("; "));
  } finally {
    await browser.close();
  }
})().catch(e => { console.error(e.message); process.exit(1); });
