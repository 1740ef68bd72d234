"use strict";
// A page of tables, and a chart: it shows the view that the server sends (tables.go), whole each time.
(() => {
  const PAGE = 1; // of what tables.go sends
  const { $, css, text, number, table, chart, axis, begin } = parts;

  function section(i) {
    const s = document.createElement("section"), h = document.createElement("h2"), box = document.createElement("div"), t = document.createElement("table");
    h.id = "h-" + i;
    t.id = "t-" + i;
    box.className = "scroll";
    box.tabIndex = 0;
    s.setAttribute("aria-labelledby", h.id);
    box.append(t);
    s.append(h, box);
    $("tables").append(s);
  }

  function show(v) {
    if (v.page !== PAGE) {
      text("headline", "This page is of another version of star: load it again.");
      return;
    }
    document.title = v.title + " · STAR";
    text("title", v.title);
    text("subtitle", v.subtitle);
    text("headline", v.headline);
    $("headline").className = v.bad ? "bad" : "";
    v.tables.forEach((t, i) => {
      if (!$("t-" + i)) section(i);
      text("h-" + i, t.title);
      table("t-" + i, t.heads.map(h => [h.name, h.class]), t.rows.map(r => ({ cells: r.cells, cls: r.bad ? "bad" : "" })), t.empty);
    });
    $("s-chart").hidden = !v.chart;
    if (!v.chart) return;
    text("h-chart", v.chart.title);
    const colours = ["--work", "--slow"];
    chart("chart", () => ({
      scales: { x: { time: false } },
      axes: [axis({ values: (_, xs) => xs.map(number), space: 80 }), axis({ size: 60 })],
      series: [{ label: "samples", value: (_, x) => number(x) }].concat(v.chart.names.map((name, i) => ({ label: name, stroke: () => css(colours[i % colours.length]), width: 1.5, spanGaps: true, value: (_, y) => number(y) }))),
    }), [v.chart.x, ...v.chart.lines]);
  }

  begin(show, () => {}, [["view.json", "what this page shows"]]);
})();
