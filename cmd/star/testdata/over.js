// A browser looks at the page of a job that is over: node over.js CHROMIUM URL STATE. Nothing that it shows is without content.
"use strict";
const { browse, fail } = require("./browse.js");

browse(async (page, state) => {
  await page.waitForFunction(s => document.getElementById("state").textContent === s, state, { timeout: 120000 });
  await page.waitForFunction(() => document.querySelector("#t-workers").rows.length > 0, null, { timeout: 60000 });
  const empty = await page.evaluate(() => {
    const found = [], nothing = s => ["", "–", "--"].includes(s.trim());
    const seen = e => !e.closest("[hidden]");
    for (const d of document.querySelectorAll("#stats > div")) if (nothing(d.lastChild.textContent)) found.push("number " + d.firstChild.textContent);
    for (const t of document.querySelectorAll("table")) {
      if (!seen(t)) continue;
      if (nothing(t.textContent)) found.push("table " + t.id);
      if (!t.tHead) continue;
      [...t.tHead.rows[0].cells].forEach((h, i) => {
        if ([...t.tBodies[0].rows].every(r => nothing(r.cells[i].textContent))) found.push(`column ${h.textContent} of ${t.id}`);
      });
    }
    for (const c of document.querySelectorAll(".chart")) if (seen(c) && !c.querySelector("canvas")) found.push("chart " + c.id);
    for (const v of document.querySelectorAll(".u-legend .u-value")) if (seen(v) && nothing(v.textContent)) found.push("legend " + v.closest(".u-series").textContent);
    const watched = ![...document.querySelectorAll("#stats > div")].some(d => d.firstChild.textContent === "progress");
    for (const id of ["progress", "t-saves", "t-shards"]) if (watched && seen(document.getElementById(id))) found.push(`${id} of a job that star only watches`);
    if (nothing(document.getElementById("under").textContent)) found.push("line under the timeline");
    return found;
  });
  if (empty.length) fail("empty: " + empty.join(", "));
  console.log(await page.textContent("#stats"));
});
