"use strict";
// The page of a job. It shows the view that the server sends (view.go), whole each time, and keeps nothing of its own but where the reader is.
// Texts of a view come from a run log, that is from anywhere: they are only ever set as textContent.
(() => {
  const PAGE = 1; // of what view.go sends
  const { $, css, known, seconds, duration, at, percent, number, text, table, stats, chart, axis, times, fromZero, begin } = parts;

  // --- the timeline

  const ROW = 16, GAP = 2, MODE = 20, AXIS = 20, LABEL = 44;
  let view = null, cursor = null, width = 0; // cursor: {stretch, row}; width: of the timeline, for which to ask makes the browser lay out the page

  // stretches is what workers did, a pixel for each stretch of time: one picture is drawn in less time than a rectangle for each.
  const pixels = document.createElement("canvas");
  function stretches(rows, n, colour) {
    pixels.width = n;
    pixels.height = rows.length;
    const g = pixels.getContext("2d", { willReadFrequently: true }), image = g.createImageData(n, rows.length), data = new DataView(image.data.buffer);
    const rgba = new Uint32Array(128); // by character
    for (const c in colour) {
      g.fillStyle = colour[c]; // which makes #rrggbb of any name
      rgba[c.charCodeAt(0)] = parseInt(g.fillStyle.slice(1) + "ff", 16);
    }
    rows.forEach(({ line }, r) => {
      for (let k = 0; k < line.length; k++) data.setUint32(4 * (r * n + k), rgba[line.charCodeAt(k) & 127]);
    });
    g.putImageData(image, 0, 0);
    return pixels;
  }

  function drawTimeline() {
    const box = $("timeline"), canvas = box.firstElementChild;
    const rows = view.workers, n = view.series.t ? view.series.t.length : 0;
    const height = MODE + rows.length * (ROW + GAP) + AXIS;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = height + "px";
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    if (!n || !width) return;
    const span = view.now - view.series.from, x = (t, most = 1) => LABEL + (width - LABEL) * Math.min(Math.max((t - view.series.from) / span, 0), most);
    const edge = k => x(Math.min(view.series.from + k * view.series.width, view.now));
    g.font = "12px system-ui, sans-serif";
    g.textBaseline = "middle";
    const ink = css("--ink"), faint = css("--faint"), line = css("--line");
    const colour = { "=": css("--work"), "#": css("--slow"), ".": css("--wait") };
    view.modes.forEach((m, i) => {
      const a = x(m.at), z = i + 1 < view.modes.length ? x(view.modes[i + 1].at) : width;
      g.fillStyle = i % 2 ? css("--panel") : line;
      g.fillRect(a, 0, z - a, MODE - 3);
      g.save();
      g.beginPath();
      g.rect(a, 0, Math.max(z - a - 2, 0), MODE);
      g.clip();
      g.fillStyle = ink;
      g.fillText(m.plan, a + 4, (MODE - 3) / 2);
      g.restore();
    });
    rows.forEach((w, r) => {
      const y = MODE + r * (ROW + GAP);
      g.fillStyle = known(w.slow) ? css("--slow") : faint;
      g.textAlign = "right";
      g.fillText("w" + w.rank, LABEL - 6, y + ROW / 2);
      g.textAlign = "left";
    });
    if (rows.length) {
      const wide = x(view.series.from + n * view.series.width, Infinity) - LABEL; // the last stretch is not over
      g.save();
      g.beginPath();
      rows.forEach((_, r) => g.rect(LABEL, MODE + r * (ROW + GAP), width - LABEL, ROW));
      g.clip();
      g.imageSmoothingEnabled = wide * scale < n; // else a short time might not be seen
      g.drawImage(stretches(rows, n, colour), LABEL, MODE, wide, rows.length * (ROW + GAP));
      g.restore();
    }
    let step = 1e-3;
    for (let k = 0; step / span * (width - LABEL) < 80; k++) step *= [2, 2.5, 2][k % 3];
    g.fillStyle = faint;
    for (let t = Math.ceil(view.series.from / step) * step; t <= view.now; t += step) {
      const s = t < 600 ? +t.toPrecision(6) + " s" : duration(t);
      if (x(t) + g.measureText(s).width < width) g.fillText(s, x(t), height - AXIS / 2);
      g.fillRect(x(t), height - AXIS, 1, 4);
    }
    if (cursor) {
      g.strokeStyle = ink;
      const a = edge(cursor.stretch);
      g.strokeRect(a, MODE + cursor.row * (ROW + GAP) - 1, Math.max(edge(cursor.stretch + 1) - a, 3), ROW + 2);
    }
  }

  const DOES = { "=": "works", "#": "is slow", ".": "waits for others", " ": "does neither" };
  function under() {
    if (!cursor || !view.series.t) return text("under", "Point at the timeline, or use the arrow keys there, to read what a worker did.");
    const w = view.workers[cursor.row];
    if (!w) return text("under", "");
    const t = view.series.t[cursor.stretch], episode = view.episodes.find(e => e.worker === w.rank && e.since <= t && (!known(e.until) || t < e.until));
    const mode = view.modes.findLast(m => m.at <= t);
    text("under", `at ${at(t)}, worker ${w.rank} ${DOES[w.line[cursor.stretch] || " "]}${mode ? ", mode " + mode.plan : ""}${episode ? ": " + (known(episode.slowdown) ? episode.slowdown.toFixed(1) + "x, " : "") + episode.cause + ", " + episode.says : ""}`);
  }
  function point(stretch, row) {
    const n = view.series.t ? view.series.t.length : 0;
    if (!n || !view.workers.length) return;
    cursor = { stretch: Math.min(Math.max(stretch, 0), n - 1), row: Math.min(Math.max(row, 0), view.workers.length - 1) };
    drawTimeline();
    under();
  }
  $("timeline").addEventListener("mousemove", e => {
    if (!view || !view.series.t) return;
    const r = $("timeline").getBoundingClientRect(), y = e.clientY - r.top - MODE;
    const t = view.series.from + (e.clientX - r.left - LABEL) / (r.width - LABEL) * (view.now - view.series.from);
    point(Math.floor((t - view.series.from) / view.series.width), Math.floor(y / (ROW + GAP)));
  });
  $("timeline").addEventListener("keydown", e => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0] }[e.key];
    if (!view || !move) return;
    e.preventDefault();
    const from = cursor || { stretch: 0, row: 0 };
    point(from.stretch + move[0], from.row + move[1]);
  });

  // --- charts

  const marks = { // changes of mode
    hooks: {
      draw: u => {
        if (!view) return;
        const g = u.ctx;
        g.save();
        g.strokeStyle = css("--second");
        g.setLineDash([4, 4]);
        for (const m of view.modes.slice(1)) {
          const x = Math.round(u.valToPos(m.at, "x", true));
          if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
          g.beginPath();
          g.moveTo(x, u.bbox.top);
          g.lineTo(x, u.bbox.top + u.bbox.height);
          g.stroke();
        }
        g.restore();
      },
    },
  };

  // If the pointer is not on a chart, its legend shows the last value.
  const last = f => (u, v, i, k) => f(k === null ? u.data[i].findLast(known) : v);
  const few = (u, i) => u.data[i].filter(known).length < 3; // which make no line that is seen

  function drawCharts() {
    const s = view.series, drawn = s.t && s.t.length > 0;
    $("rate").parentElement.hidden = !drawn;
    $("loss").parentElement.hidden = !drawn || !s.loss.some(known) && !view.evals.length;
    if (!drawn) return;
    chart("rate", () => ({
      plugins: [marks], scales: { x: { time: false }, y: { range: fromZero } }, axes: [times(), axis({ size: 62 })],
      series: [{ label: "at", value: last(t => known(t) ? at(t) : "–") }, { label: "samples/s", stroke: () => css("--accent"), width: 2, points: { show: false }, value: last(number) }],
    }), [s.t, s.rate]);
    const accuracy = s.t.map(() => null);
    for (const e of view.evals) {
      const k = Math.min(Math.max(Math.floor((e.at - s.from) / s.width), 0), s.t.length - 1);
      accuracy[k] = e.accuracy;
    }
    chart("loss", () => ({
      plugins: [marks], scales: { x: { time: false }, y: { range: fromZero }, a: { range: [0, 1] } },
      axes: [times(), axis({ size: 62 }), axis({ scale: "a", side: 1, size: 56, grid: { show: false }, values: (_, vs) => vs.map(v => Math.round(100 * v) + " %") })],
      series: [{ label: "at", value: last(t => known(t) ? at(t) : "–") }, { label: "training loss", stroke: () => css("--accent"), width: 2, points: { show: few, size: 6 }, spanGaps: true, value: last(number) },
        { label: "test accuracy", scale: "a", stroke: () => css("--second"), width: 2, points: { show: true, size: 6 }, spanGaps: true, value: last(v => percent(v, 2)) }],
    }), [s.t, s.loss, accuracy]);
    const legend = document.querySelectorAll("#loss .u-series");
    if (legend.length) legend[legend.length - 1].hidden = !view.evals.length;
  }

  // --- the rest

  // Of a job that is over nothing more comes: what is empty then is left out, a column, a table, a number.
  const over = () => view.status === "ended" || view.status === "failed";
  function fill(id, heads, rows, empty) {
    const keep = heads.map((_, i) => !over() || !rows.length || rows.some(r => r.cells[i] !== "" && r.cells[i] !== "–"));
    table(id, heads.filter((_, i) => keep[i]), rows.map(r => ({ ...r, cells: r.cells.filter((_, i) => keep[i]) })), empty);
    $(id).closest(".pair > div, section").hidden = (over() || view.watched) && !rows.length && !empty;
  }

  function show(v) {
    view = v;
    if (v.page !== PAGE) {
      text("link", "this page is of another version of star: reload it");
    }
    const model = v.model.split(",")[0];
    text("title", model ? `${model} on ${v.data}` : v.job || "STAR");
    document.title = `${v.bad && v.status === "running" ? "slow: " : ""}${model || v.job || "job"} · STAR`;
    text("subtitle", `job ${v.job}, ${v.program}, ${v.arch}${v.shards_of ? ", " + v.shards_of + (v.shards_of === 1 ? " shard" : " shards") : ""}, ${v.workers.length + v.hidden} workers, began ${new Date(v.began).toLocaleString()}`);
    text("state", v.status);
    $("state").className = "chip " + v.status;
    text("headline", v.headline);
    $("headline").className = v.bad ? "bad" : "";
    text("lacks", v.lacks || "");
    text("notes", v.notes && v.notes.length ? "On purpose: " + v.notes.join("; ") : "");
    $("progress").hidden = Boolean(v.watched);
    $("progress").value = v.limit ? v.samples / v.limit : 0;
    const is = [
      ["progress", v.limit ? percent(v.samples / v.limit) : "–"], ["left", v.status === "running" ? duration(v.left) : "–"], ["elapsed", seconds(v.now - v.from)], ["mode", v.mode || "–"],
      ["samples/s", number(v.rate)], ["training loss", number(v.loss)], ["accuracy", percent(v.accuracy, 2)], ["updates", number(v.updates)],
    ];
    const said = is.filter(([name]) => !v.watched || name !== "progress" && name !== "left");
    stats(over() ? said.filter(([, value]) => value !== "–") : said);
    clearTimeout(later);
    const wait = drawn + 900 - performance.now(); // views come twice a second
    if (wait > 0 && v.status === "running") later = setTimeout(showRest, wait + 500); // if no other view comes
    else showRest();
  }

  // Expensive parts are drawn once a second, with a view so that the browser lays out and paints once for both, and not while the page is hidden.
  let drawn = -1000, later = 0;
  document.addEventListener("visibilitychange", () => { if (view) showRest(); });
  function showRest() {
    if (document.hidden) return;
    drawn = performance.now();
    const v = view;
    drawTimeline();
    under();
    drawCharts();
    fill("t-workers", [["worker"], ["state"], ["step", "n"], ["compute", "n"], ["loading", "n"], ["network", "n"], ["waits", "n"], ["address"]], v.workers.map(w => ({
      cls: known(w.slow) ? "bad" : w.left ? "gone" : "",
      cells: [w.rank, w.left ? "has left" : known(w.slow) ? `slow ${w.slow.toFixed(1)}x: ${w.cause}` : "", w.step < 0 ? "–" : w.step, seconds(w.compute), seconds(w.load), v.arch === "all-reduce" ? "–" : seconds(w.net), seconds(w.wait), w.peer].map(String),
    })), "no worker yet");
    text("hidden", v.hidden ? `and ${v.hidden} workers more, which were not slow` : "");
    fill("t-slow", [["worker", "n"], ["from"], ["to"], ["times", "n"], ["cause"], ["others waited", "n"], ["because", "text"]], v.episodes.concat(v.together.map(e => ({...e, worker: "all together", cost: null}))).sort((a, b) => b.since - a.since).map(e => ({
      cls: known(e.until) ? "" : "bad",
      cells: [String(e.worker), at(e.since), known(e.until) ? at(e.until) : "now", known(e.slowdown) ? e.slowdown.toFixed(1) : "–", e.cause, percent(e.cost, 0), e.says],
    })), over() ? "" : "no worker was slow");
    fill("t-modes", [["at"], ["mode"], ["gain predicted", "n"], ["seen", "n"], ["because", "text"]], v.modes.slice().reverse().map(m => ({
      cells: [at(m.at), m.plan, percent(m.predicted_gain), percent(m.seen_gain) + (m.reverted ? ", taken back" : ""), m.why],
    })), over() ? "" : "not yet");
    text("coordinator", v.watched ? "" : v.term ? `The coordinator's term is ${v.term}.` : "One process coordinates.");
    fill("t-shards", [["shard", "n"], ["answers"], ["copies"], ["of", "n"]], v.shards.map(s => ({
      cls: s.followers.length + 1 < s.of ? "bad" : "",
      cells: [String(s.shard), "server " + s.primary, s.followers.length ? "servers " + s.followers.join(", ") : "none", String(s.of)],
    })), v.watched || over() && !v.term ? "" : v.shards_of ? "No copy of a shard was made or lost." : "Workers hold the parameters.");
    fill("t-saves", [["at"], ["version", "n"], ["folder", "text"]], v.checkpoints.slice().reverse().map(c => ({ cls: c.error ? "bad" : "", cells: [at(c.at), String(c.version), c.error || c.id] })), v.watched ? "" : over() ? "none was written" : "none yet");
    fill("t-events", [["at"], ["what", "text"]], v.events.slice().reverse().map(e => ({ cells: [at(e.at), e.says] })), over() ? "" : "nothing else");
  }

  function resize() {
    width = $("timeline").clientWidth;
    if (!view) return;
    drawTimeline();
  }
  begin(show, resize, [["run.jsonl", "run log"], ["trace.json.gz", "trace for Perfetto"], ["view.json", "what this page shows"]]);
})();
