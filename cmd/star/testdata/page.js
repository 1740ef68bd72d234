// A browser looks at the page of a job while it trains: node page.js CHROMIUM URL WORKER. It ends with 0 when all holds, and says what it saw.
"use strict";
const { chromium } = require("playwright-core");

const fail = why => { throw new Error(why); };

(async () => {
  const [path, url, worker] = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath: path, args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage({ viewport: { width: 390, height: 800 } });
    const asked = [], wrong = [];
    page.on("request", r => asked.push(r.url()));
    page.on("pageerror", e => wrong.push(e.message));
    page.on("console", m => { if (m.type() === "error" && !/ERR_|Failed to load resource/.test(m.text())) wrong.push(m.text()); });
    await page.goto(url, { timeout: 60000 });

    // The slow worker is in the headline, and within a second in its row, in the table of slow times and in the timeline: these are drawn once a second.
    await page.waitForFunction(w => document.getElementById("headline").textContent.startsWith(`Worker ${w} is `), worker, { timeout: 120000 });
    console.log(await page.textContent("#headline"));
    const drawn = (what, f) => page.waitForFunction(f, worker, { timeout: 20000 }).catch(async e => fail(`${what}: ${e.message}\n${await page.textContent("#t-workers")}\n${await page.textContent("#t-slow")}`));
    await drawn("its row does not say so", w => /^slow [0-9.]+x: /.test(document.querySelectorAll("#t-workers tbody tr")[+w].cells[1].textContent));
    await drawn("the table of slow times has no open one", () => document.querySelector("#t-slow tbody").textContent.includes("now"));
    await page.focus("#timeline");
    await page.keyboard.press("End");
    for (let i = 0; i < 64; i++) await page.keyboard.press("ArrowDown");
    await page.waitForFunction(() => /, worker \d+ (works|is slow|waits|does)/.test(document.getElementById("under").textContent), null, { timeout: 20000 });
    console.log(await page.textContent("#under"));
    const colours = () => page.evaluate(() => {
      const c = document.querySelector("#timeline canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      const seen = new Set();
      for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
      return seen.size;
    });
    if (await colours() < 3) fail("the timeline is empty");
    if (await page.locator(".uplot canvas").count() !== 2) fail("there are not two charts");

    // It fits a telephone, and a wide screen, in the dark.
    for (const width of [390, 1200]) {
      await page.setViewportSize({ width, height: 800 });
      await page.emulateMedia({ colorScheme: width === 390 ? "light" : "dark" });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      if (over > 0) fail(`at ${width} px the page is ${over} px too wide`);
    }

    // It goes on by itself, and sees the end.
    const step = () => page.evaluate(() => document.querySelector("#t-workers tbody td:nth-child(3)").textContent);
    const before = await step();
    await page.waitForFunction(b => document.querySelector("#t-workers tbody td:nth-child(3)").textContent !== b, before, { timeout: 60000 });
    console.log("ready for the end");
    await page.waitForFunction(() => /ended|failed/.test(document.getElementById("state").textContent), null, { timeout: 120000 });
    console.log(await page.textContent("#headline"));
    const host = new URL(url).host;
    for (const r of asked) if (!r.startsWith("data:") && new URL(r).host !== host) fail("it asked for " + r);
    if (wrong.length) fail(wrong.join("; "));
  } finally {
    await browser.close();
  }
})().catch(e => { console.error(e.message); process.exit(1); });
