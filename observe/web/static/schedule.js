"use strict";
// The page of a schedule. It shows the view that the server sends (schedule.go), whole each time, and keeps nothing of its own but where the reader is and what is looked for.
(() => {
  const PAGE = 1; // of what schedule.go sends
  const { $, css, known, duration, at, percent, number, text, table, stats, charts, chart, axis, fromZero, begin } = parts;
  const AXIS = 20, LISTED = 100; // jobs in a table
  const STEPS = [1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600]; // s between marks
  for (let h = 1; h < 1e6; h *= 10) STEPS.push(7200 * h, 18000 * h, 36000 * h);
  let all = null, view = null, chosen = 0, cursor = null, sought = ""; // cursor: {row, t}

  const matches = name => !sought || name.toLowerCase().includes(sought);
  const end = b => b[4] < 0 ? view.now : b[4];
  const barAt = (row, t) => view.bars.find(b => b[1] <= row && row < b[1] + b[2] && b[3] <= t && t < end(b));

  // --- the picture: what takes long is drawn when the view changes, the cursor over it

  const picture = document.createElement("canvas");
  const label = () => view.hosts.length ? Math.min(110, $("timeline").clientWidth / 4) : 58;
  function shape() {
    const width = $("timeline").clientWidth, rows = Math.max(view.rows, 1), left = label();
    const row = Math.min(480 / rows, 24 / view.parts), span = Math.max(view.now - view.from, 1e-9);
    return { width, left, row, span, height: Math.ceil(row * rows) + AXIS, x: t => left + (width - left) * Math.min(Math.max((t - view.from) / span, 0), 1) };
  }
  const hue = name => { // FNV-1a, and mixed, because names differ little
    let h = 2166136261;
    for (const c of name) h = Math.imul(h ^ c.codePointAt(0), 16777619);
    h = Math.imul(h ^ (h >>> 15), 2246822519);
    return ((h ^ (h >>> 13)) >>> 0) % 360;
  };

  function drawPicture() {
    const canvas = $("timeline").firstElementChild, s = shape(), scale = window.devicePixelRatio || 1;
    for (const c of [canvas, picture]) {
      if (c.width !== Math.round(s.width * scale) || c.height !== Math.round(s.height * scale)) {
        c.width = Math.round(s.width * scale);
        c.height = Math.round(s.height * scale);
      }
    }
    canvas.style.height = s.height + "px";
    const g = picture.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, s.width, s.height);
    g.fillStyle = css("--panel");
    g.fillRect(s.left, 0, s.width - s.left, s.row * view.rows);
    g.font = "12px system-ui, sans-serif";
    g.textBaseline = "middle";
    const colours = view.names.map(n => `hsl(${hue(n)} 55% 55%)`), faded = view.names.map(n => !matches(n));
    const gap = s.row > 4 ? 1 : 0;
    for (const b of view.bars) {
      const a = s.x(b[3]), z = s.x(end(b));
      g.fillStyle = colours[b[0]];
      g.globalAlpha = faded[b[0]] ? 0.12 : 1;
      g.fillRect(a, b[1] * s.row, Math.max(z - a, 0.5), b[2] * s.row - gap);
    }
    g.globalAlpha = 1;
    const faint = css("--faint"), line = css("--line");
    g.fillStyle = faint;
    g.textAlign = "right";
    const name = (words, y) => {
      let short = words;
      while (short.length > 1 && g.measureText(short + "…").width > s.left - 8) short = short.slice(0, -1);
      g.fillText(short === words || g.measureText(words).width <= s.left - 8 ? words : short + "…", s.left - 6, y);
    };
    let row = 0, last = -20;
    for (const h of view.hosts) {
      const y = (row + h.places / 2) * s.row;
      g.fillStyle = h.slow ? css("--slow") : faint;
      if (y - last >= 13) {
        name(h.host, y);
        last = y;
      }
      row += h.places;
      g.fillStyle = line;
      g.fillRect(0, row * s.row - 1, s.width, 1);
    }
    if (!view.hosts.length && view.rows) {
      name(`${view.place} 0`, Math.max(s.row / 2, 6));
      if (s.row * view.rows > 30) name(String(Math.floor((view.rows - 1) / view.parts)), s.row * view.rows - Math.max(s.row / 2, 6));
    }
    g.textAlign = "left";
    const step = STEPS.find(x => x / s.span * (s.width - s.left) >= 90) || STEPS.at(-1);
    g.fillStyle = faint;
    for (let t = Math.ceil(view.from / step) * step; t <= view.now; t += step) {
      const words = step >= 3600 ? +(t / 3600).toPrecision(6) + " h" : t < 600 ? +t.toPrecision(6) + " s" : duration(t);
      if (s.x(t) + g.measureText(words).width < s.width) g.fillText(words, s.x(t), s.height - AXIS / 2);
      g.fillRect(s.x(t), s.height - AXIS, 1, 4);
    }
    drawCursor();
  }

  function drawCursor() {
    const canvas = $("timeline").firstElementChild, s = shape(), scale = window.devicePixelRatio || 1, g = canvas.getContext("2d");
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, canvas.width, canvas.height);
    if (picture.width && picture.height) g.drawImage(picture, 0, 0);
    if (!cursor) return;
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.strokeStyle = css("--ink");
    const own = barAt(cursor.row, cursor.t);
    if (own) { // all that the job has had
      for (const b of view.bars) if (b[0] === own[0]) g.strokeRect(s.x(b[3]), b[1] * s.row, Math.max(s.x(end(b)) - s.x(b[3]), 1), Math.max(b[2] * s.row - 1, 1));
      g.lineWidth = 2.5;
      g.strokeRect(s.x(own[3]), own[1] * s.row, Math.max(s.x(end(own)) - s.x(own[3]), 1), Math.max(own[2] * s.row - 1, 1));
      g.lineWidth = 1;
    } else {
      g.strokeRect(s.x(cursor.t) - 1, cursor.row * s.row, 3, Math.max(s.row, 3));
    }
  }

  function placeOf(row) {
    let first = 0;
    for (const h of view.hosts) {
      if (row < first + h.places) return `${h.host}, place ${row - first}`;
      first += h.places;
    }
    return `${view.place} ${Math.floor(row / view.parts)}`;
  }
  const many = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
  function under() {
    if (!cursor) return text("under", "");
    const b = barAt(cursor.row, cursor.t), where = placeOf(cursor.row);
    if (!b) return text("under", `${where} is free at ${at(cursor.t)}`);
    const until = b[4] < 0 ? "has it still" : `to ${at(b[4])}`;
    text("under", view.hosts.length ? `job ${view.names[b[0]]} has ${where} from ${at(b[3])}${b[4] < 0 ? " on" : " " + until}` : `job ${view.names[b[0]]} has ${many(b[2] / view.parts, view.place)} from ${at(b[3])} ${until}: ${where}`);
  }
  function point(row, t) {
    if (!view || !view.rows) return;
    cursor = { row: Math.min(Math.max(row, 0), view.rows - 1), t: Math.min(Math.max(t, view.from), view.now) };
    drawCursor();
    under();
  }
  $("timeline").addEventListener("mousemove", e => {
    if (!view) return;
    const r = $("timeline").getBoundingClientRect(), s = shape();
    point(Math.floor((e.clientY - r.top) / s.row), view.from + (e.clientX - r.left - s.left) / (s.width - s.left) * s.span);
  });
  $("timeline").addEventListener("keydown", e => {
    if (!view || !view.rows || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(e.key)) return;
    e.preventDefault();
    const { row, t } = cursor || { row: 0, t: view.from }, here = view.bars.filter(b => b[1] <= row && row < b[1] + b[2]).map(b => b[3]).sort((a, b) => a - b);
    if (!cursor) return point(0, here.length ? here[0] : view.from);
    const now = barAt(row, t), begin = now ? now[3] : t;
    const to = {
      ArrowLeft: () => [row, here.findLast(x => x < begin) ?? t], ArrowRight: () => [row, here.find(x => x > t) ?? t],
      ArrowUp: () => [(now ? now[1] : row) - 1, t], ArrowDown: () => [now ? now[1] + now[2] : row + 1, t],
      Home: () => [row, here[0] ?? t], End: () => [row, here.at(-1) ?? t],
    }[e.key]();
    point(...to);
  });

  // --- the rest

  function drawCharts() {
    const x = view.used.map((_, i) => view.from + (i + 0.5) * view.length);
    if (!x.length || !view.length) return;
    const options = (name, unit) => () => ({
      scales: { x: { time: false }, y: { range: fromZero } }, axes: [view.now - view.from > 36000 ? axis({ values: (_, ts) => ts.map(t => +(t / 3600).toPrecision(6) + " h"), incrs: STEPS, space: 70 }) : axis({ values: (_, ts) => ts.map(t => t < 600 ? t + " s" : duration(t)), incrs: STEPS, space: 90 }), axis({ size: 62 })],
      series: [{ label: "at", value: (_, t) => known(t) ? at(t) : "–" }, { label: name, stroke: () => css(unit), width: 2, points: { show: false }, value: (_, v) => number(v) }],
    });
    chart("used", options(view.place + "s in use", "--accent"), [x, view.used]);
    chart("waiting", options("jobs that wait", "--second"), [x, view.waiting]);
  }

  // jobs fills the table of a state with the jobs that are looked for.
  function jobs(id, of, heads, cells, empty) {
    const found = of.jobs.filter(j => matches(j.job)), more = found.length - LISTED, unsent = of.count - of.jobs.length;
    $("s-" + id).hidden = !all.live && !of.count;
    table("t-" + id, heads, found.slice(0, LISTED).map(j => cells(j)), of.count ? "no job of that name" : empty);
    text("more-" + id, [more > 0 ? `and ${many(more, "more")}: look for one by its name` : "", unsent > 0 ? `${unsent} of ${of.count} are not on this page` : ""].filter(Boolean).join("; "));
  }
  const due = j => !known(j.deadline) ? "–" : known(j.ended) ? (j.ended <= j.deadline ? "met, " : "missed, ") + duration(Math.abs(j.deadline - j.ended)) + (j.ended <= j.deadline ? " before" : " late")
    : j.deadline < view.now ? duration(view.now - j.deadline) + " ago" : "in " + duration(j.deadline - view.now);
  const since = s => !all.live ? at(s) : view.now - s < 0.5 ? "now" : duration(view.now - s) + " ago";
  const late = j => known(j.deadline) && (known(j.ended) ? j.ended : view.now) > j.deadline;
  const has = j => number(j.has) + (j.want !== j.has ? " → " + number(j.want) : "");

  function show(v) {
    all = v;
    if (v.page !== PAGE) text("link", "this page is of another version of star: reload it");
    chosen = Math.min(chosen, v.schedules.length - 1);
    const select = $("policy");
    $("l-policy").hidden = v.schedules.length < 2;
    if (select.options.length !== v.schedules.length) {
      select.replaceChildren(...v.schedules.map(s => new Option(s.policy)));
      select.selectedIndex = chosen;
    }
    showOne();
  }
  function showOne() {
    const before = view, v = view = all.schedules[chosen], places = v.place + "s";
    if (before && before.policy !== v.policy) cursor = null;
    text("title", all.title);
    document.title = `${v.bad ? "! " : ""}${all.title} · STAR`;
    text("subtitle", `${v.policy ? "policy " + v.policy + ", " : ""}${all.began ? "since " + new Date(all.began).toLocaleString() : "simulated"}`);
    text("state", !all.live ? "ended" : "running");
    $("state").className = "chip " + (all.live ? "running" : "ended");
    text("headline", v.headline);
    $("headline").className = v.bad ? "bad" : "";
    text("notes", v.note);
    text("h-timeline", `${places[0].toUpperCase() + places.slice(1)} by job over time`);
    text("h-used", places[0].toUpperCase() + places.slice(1) + " in use");
    if (document.hidden) return;
    const used = v.running.jobs.reduce((n, j) => n + j.has, 0);
    stats([
      ["jobs", number(v.running.count + v.queue.count + v.refused.count + v.ended.count)], ...(all.live ? [["run", number(v.running.count)], ["wait", number(v.queue.count)]] : []), ["done", number(v.ended.count)], ["refused", number(v.refused.count)],
      all.live ? [places, v.hosts.length ? `${v.hosts.reduce((n, h) => n + h.workers, 0)} of ${v.hosts.reduce((n, h) => n + h.places, 0)}` : number(used)] : [`most ${places}`, number(Math.ceil(v.rows / v.parts))],
      ["deadlines met", v.due ? `${number(v.met)} of ${number(v.due)}` : "–"], all.live ? ["time", duration(v.now)] : ["takes", duration(v.now - v.from)],
    ]);
    drawPicture();
    under();
    drawCharts();
    $("s-hosts").hidden = !v.hosts.length;
    table("t-hosts", [["host"], ["workers", "n"], ["places", "n"], ["slow", "text"]], v.hosts.map(h => ({ cls: h.slow ? "bad" : "", cells: [h.host, String(h.workers), String(h.places), h.slow || "–"] })), "no hosts");
    jobs("running", v.running, [["job", "name"], [places, "n"], ["done", "n"], ["deadline"], ["waited", "n"], ["on"], ["why", "text"]],
      j => ({ cls: late(j) ? "bad" : "", cells: [j.job, has(j), percent(j.done, 0), due(j), duration(j.waited), (j.hosts || []).join(", ") || "–", j.why] }), "no job runs");
    jobs("queue", v.queue, [["job", "name"], ["came"], ["done", "n"], ["deadline"], ["waited", "n"], ["preemptions", "n"], ["why", "text"]],
      j => ({ cls: late(j) ? "bad" : "", cells: [j.job, since(j.submitted), percent(j.done, 0), due(j), duration(j.waited), String(j.preemptions), j.why] }), "no job waits");
    jobs("refused", v.refused, [["job", "name"], ["state"], ["when"], ["why", "text"]],
      j => ({ cls: j.state === "failed" ? "bad" : "", cells: [j.job, j.state, since(known(j.ended) ? j.ended : j.submitted), j.why] }), "none");
    jobs("ended", v.ended, [["job", "name"], ["submitted"], ["began"], ["ended"], ["took", "n"], ["waited", "n"], ["deadline"], ["preemptions", "n"], ["last decision, or result", "text"]],
      j => ({ cls: late(j) ? "bad" : "", cells: [j.job, since(j.submitted), known(j.begun) ? since(j.begun) : "–", since(j.ended), duration(j.ended - j.submitted), duration(j.waited), due(j), String(j.preemptions), j.why] }), "none yet");
    $("s-decided").hidden = !v.decided.length;
    table("t-decided", [["when"], ["job"], ["what", "text"]], v.decided.filter(d => matches(d.job)).map(d => ({ cells: [at(d.at), d.job || "–", d.says] })), "no job of that name");
  }

  $("policy").addEventListener("change", () => {
    chosen = $("policy").selectedIndex;
    for (const id in charts) charts[id].destroy(), delete charts[id];
    showOne();
  });
  $("find").addEventListener("input", () => {
    sought = $("find").value.trim().toLowerCase();
    if (view) showOne();
  });
  document.addEventListener("visibilitychange", () => { if (view && !document.hidden) showOne(); });
  begin(show, () => { if (view) drawPicture(); }, [["view.json", "what this page shows"]]);
})();
