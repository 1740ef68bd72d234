// A browser looks at the page of a job while it trains: node page.js CHROMIUM URL WORKER. It ends with 0 when all holds, and says what it saw.
"use strict";
const { browse, drawn, fail, fits } = require("./browse.js");

browse(async (page, worker) => {
  // The slow worker is in the headline, and within a second in its row, in the table of slow times and in the timeline: these are drawn once a second.
  await page.waitForFunction(w => document.getElementById("headline").textContent.startsWith(`Worker ${w} is `), worker, { timeout: 120000 });
  console.log(await page.textContent("#headline"));
  const shows = (what, f) => page.waitForFunction(f, worker, { timeout: 20000 }).catch(async e => fail(`${what}: ${e.message}\n${await page.textContent("#t-workers")}\n${await page.textContent("#t-slow")}`));
  await shows("its row does not say so", w => /^slow [0-9.]+x: /.test(document.querySelectorAll("#t-workers tbody tr")[+w].cells[1].textContent));
  await shows("the table of slow times has no open one", () => document.querySelector("#t-slow tbody").textContent.includes("now"));
  await page.focus("#timeline");
  await page.keyboard.press("End");
  for (let i = 0; i < 64; i++) await page.keyboard.press("ArrowDown");
  await page.waitForFunction(() => /, worker \d+ (works|is slow|waits|does)/.test(document.getElementById("under").textContent), null, { timeout: 20000 });
  console.log(await page.textContent("#under"));
  await drawn(page);
  if (await page.locator(".uplot canvas").count() !== 2) fail("there are not two charts");

  // It fits a telephone, and a wide screen, in the dark.
  await fits(page);

  // It goes on by itself, and sees the end.
  const step = () => page.evaluate(() => document.querySelector("#t-workers tbody td:nth-child(3)").textContent);
  const before = await step();
  await page.waitForFunction(b => document.querySelector("#t-workers tbody td:nth-child(3)").textContent !== b, before, { timeout: 60000 });
  console.log("ready for the end");
  await page.waitForFunction(() => /ended|failed/.test(document.getElementById("state").textContent), null, { timeout: 120000 });
  console.log(await page.textContent("#headline"));
});
