// A browser looks at the page of a schedule: node schedule.js CHROMIUM URL simulated|live. It ends with 0 when all holds, and says what it saw.
"use strict";
const { browse, drawn, fail, fits } = require("./browse.js");

browse(async (page, kind) => {
  const until = (what, f, arg) => page.waitForFunction(f, arg, { timeout: 120000 }).catch(async e => fail(`${what}: ${e.message}\n${await page.textContent("main")}`));
  const says = (what, id, words) => until(what, ([id, words]) => document.getElementById(id).textContent.includes(words), [id, words]);
  const key = async k => { await page.focus("#timeline"); await page.keyboard.press(k); };

  if (kind === "simulated") {
    await says("a name that is a script", "t-ended", "<script>alert(1)</script>");
    await says("why a job had what it had at last", "t-ended", "starts on 4 GPUs: first come, first served");
    await says("who is declined, and why", "t-refused", "asks for 8 GPUs, and the cluster has 4");
    await key("Home");
    await says("the first job on the first GPU", "under", "job <script>alert(1)</script> has 4 GPUs from 0.0 s to 100.0 s: GPU 0");
    await key("ArrowRight");
    await says("the next one", "under", "job b has 4 GPUs from 100.0 s to 150.0 s");
    await page.setViewportSize({ width: 1200, height: 800 });
    const hidden = await page.evaluate(() => { const box = document.querySelector("#t-ended").closest(".scroll"); return box.scrollWidth - box.clientWidth; });
    if (hidden > 0) fail(`with a long name and late times ${hidden} px of the columns are out of sight`);
    await page.setViewportSize({ width: 390, height: 800 });
    await page.fill("#find", "3b90");
    await until("only what is looked for", () => document.querySelectorAll("#t-ended tbody tr").length === 1);
    await page.fill("#find", "");
    await page.selectOption("#policy", "srtf");
    await until("preemptions under the other policy", () => [...document.querySelectorAll("#t-ended tbody tr")].some(r => r.cells[0].textContent.startsWith("<script>") && r.cells[7].textContent === "1"));
    console.log(await page.textContent("#headline"));
  } else {
    await until("a job runs and one waits", () => document.querySelectorAll("#t-running tbody tr").length === 1 && document.querySelector("#t-running td.n") && document.querySelector("#t-queue td.text"));
    await says("why", "t-decided", "starts on 1 worker: first come, first served");
    console.log(await page.textContent("#headline"));
    await key("End");
    await until("who has the place", () => /^job first has .*, place 0 from .* on$/.test(document.getElementById("under").textContent));
    const done = () => page.evaluate(() => document.querySelector("#t-running tbody tr").cells[2].textContent);
    const before = await done();
    await until("it goes on by itself", b => document.querySelector("#t-running tbody tr").cells[2] && document.querySelector("#t-running tbody tr").cells[2].textContent !== b, before);
    console.log("ready for the end");
    await says("both are refused", "t-refused", "second");
  }
  await fits(page);
  await drawn(page);
});
