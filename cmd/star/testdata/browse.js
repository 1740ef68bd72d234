// What scripts that look at pages have in common: node SCRIPT CHROMIUM URL ABOUT. It ends with 0 when all holds, and says what it saw.
"use strict";
const { chromium } = require("playwright-core");

exports.fail = why => { throw new Error(why); };

// fits looks whether a page is as wide as telephones and desktops are.
exports.fits = async page => {
  for (const width of [390, 1200]) {
    await page.setViewportSize({ width, height: 800 });
    await page.emulateMedia({ colorScheme: width === 390 ? "light" : "dark" });
    const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (over > 0) exports.fail(`at ${width} px the page is ${over} px too wide`);
  }
};

// drawn looks whether the picture of a timeline has something in it.
exports.drawn = async page => {
  const colours = await page.evaluate(() => {
    const c = document.querySelector("#timeline canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, seen = new Set();
    for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
    return seen.size;
  });
  if (colours < 3) exports.fail("the timeline is empty");
};

// browse opens the page and has look look at it. No other host may be asked, and nothing go wrong in the page.
exports.browse = async look => {
  const [path, url, about] = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath: path, args: ["--no-sandbox"] });
  try {
    const page = await browser.newPage({ viewport: { width: 390, height: 800 } });
    const asked = [], wrong = [];
    page.on("request", r => asked.push(r.url()));
    page.on("pageerror", e => wrong.push(e.message));
    page.on("console", m => { if (m.type() === "error" && !/ERR_|Failed to load resource/.test(m.text())) wrong.push(m.text()); });
    page.on("dialog", d => { wrong.push("a dialog: " + d.message()); d.dismiss(); });
    await page.goto(url, { timeout: 60000 });
    await look(page, about);
    const host = new URL(url).host;
    for (const r of asked) if (!r.startsWith("data:") && new URL(r).host !== host) exports.fail("it asked for " + r);
    if (wrong.length) exports.fail(wrong.join("; "));
  } catch (e) {
    console.error(e.message);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
};
