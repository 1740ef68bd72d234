"use strict";
// What the pages have in common. Texts come from run logs and events, that is from anywhere: they are only ever set as textContent.
const parts = (() => {
  const $ = id => document.getElementById(id);
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const known = x => x !== null && x !== undefined;
  const seconds = s => !known(s) ? "–" : s < 0.001 ? (1e6 * s).toFixed(0) + " µs" : s < 1 ? (1e3 * s).toPrecision(3) + " ms" : s < 10 ? s.toFixed(2) + " s" : duration(s);
  const duration = s => {
    if (!known(s)) return "–";
    s = Math.round(s);
    if (s < 60) return s + " s";
    const m = Math.floor(s / 60), h = Math.floor(m / 60);
    return h ? `${h} h ${m % 60} min` : `${m} min ${s % 60} s`;
  };
  const at = s => s < 600 ? s.toFixed(1) + " s" : duration(s);
  const percent = (x, digits = 1) => known(x) ? (100 * x).toFixed(digits) + " %" : "–";
  const number = x => known(x) ? Number(x.toPrecision(4)).toLocaleString("en") : "–";

  const text = (id, s) => { const e = $(id); if (e.textContent !== s) e.textContent = s; };

  // table fills a table: heads are [name, class], rows lists of texts, each with a class of its own. Unchanged cells are not touched.
  const shown = {};
  function table(id, heads, rows, empty) {
    const t = $(id), before = shown[id];
    shown[id] = rows;
    if (before && rows.length && before.length === rows.length && before[0].cells.length === rows[0].cells.length) {
      rows.forEach(({ cells, cls }, r) => {
        const was = before[r], tr = t.tBodies[0].rows[r];
        if (was.cls !== cls) tr.className = cls || "";
        cells.forEach((c, i) => { if (was.cells[i] !== c) tr.cells[i].firstChild.data = c; });
      });
      return;
    }
    t.replaceChildren();
    if (!rows.length) {
      const c = t.insertRow().insertCell();
      c.textContent = empty;
      return;
    }
    const head = t.createTHead().insertRow();
    for (const [name, cls] of heads) {
      const th = document.createElement("th");
      th.scope = "col";
      th.textContent = name;
      if (cls) th.className = cls;
      head.append(th);
    }
    const body = t.createTBody();
    for (const { cells, cls } of rows) {
      const tr = body.insertRow();
      if (cls) tr.className = cls;
      cells.forEach((c, i) => {
        const td = tr.insertCell();
        td.append(document.createTextNode(c));
        if (heads[i][1]) td.className = heads[i][1];
      });
    }
  }

  // --- charts

  const charts = {};
  function chart(id, make, data) {
    const box = $(id);
    if (!charts[id]) {
      charts[id] = new uPlot({ width: box.clientWidth || 300, height: 220, ...make() }, data, box);
    } else {
      charts[id].setData(data);
    }
  }
  const axis = extra => ({ stroke: () => css("--faint"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { stroke: () => css("--line") }, font: "12px system-ui, sans-serif", ...extra });
  const times = () => axis({ values: (_, ts) => ts.map(t => t < 600 ? t + " s" : duration(t)), space: 70 });
  const fromZero = (_, low, high) => [Math.min(0, low ?? 0), (high ?? 1) * 1.05 || 1];
  function stats(pairs) {
    const dl = $("stats");
    pairs.forEach(([name, value], i) => {
      let d = dl.children[i];
      if (!d) {
        d = document.createElement("div");
        d.append(document.createElement("dt"), document.createElement("dd"));
        dl.append(d);
      }
      if (d.firstChild.textContent !== name) d.firstChild.textContent = name;
      if (d.lastChild.textContent !== value) d.lastChild.textContent = value;
    });
    while (dl.children.length > pairs.length) dl.lastChild.remove();
  }

  function downloads(files) {
    for (const [name, what] of files) {
      const a = document.createElement("a");
      a.href = name;
      a.download = name;
      a.textContent = what;
      $("downloads").append($("downloads").childNodes.length ? ", " : "Download: ", a);
    }
  }

  // follow has each view shown that the server sends, until the last one.
  function follow(show) {
    let wait = 500;
    const connect = () => {
      const events = new EventSource("events");
      events.onmessage = e => {
        wait = 500;
        text("link", "");
        show(JSON.parse(e.data));
      };
      events.addEventListener("end", () => events.close());
      events.onerror = () => {
        events.close();
        text("link", "not connected: tries again");
        setTimeout(connect, wait);
        wait = Math.min(2 * wait, 10000);
      };
    };
    connect();
  }

  // begin shows the view that star report has put into the page, or each one that the server sends. resized draws what is as wide as the page.
  function begin(show, resized, files) {
    const resize = () => {
      resized();
      for (const id in charts) charts[id].setSize({ width: $(id).clientWidth, height: 220 });
    };
    new ResizeObserver(resize).observe(document.body);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { resize(); for (const id in charts) charts[id].redraw(); });
    const embedded = $("view"); // of star report
    if (embedded) {
      show(JSON.parse(embedded.textContent));
      return;
    }
    downloads(files);
    follow(show);
  }

  return { $, css, known, seconds, duration, at, percent, number, text, table, stats, charts, chart, axis, times, fromZero, begin };
})();
